"""Lets an `AssetWatcher` use the triggers of Airflow's provider packages, unchanged.

Needs Airflow 3.3 and the provider packages in the same environment; importing this module needs neither.
"""

from watchers.airflow.trigger import AirflowEventTrigger

__all__ = ["AirflowEventTrigger"]
