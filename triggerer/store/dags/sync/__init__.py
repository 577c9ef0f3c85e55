"""Updates the stored DAGs, assets and watchers to match the DAG files. It writes only the differences."""

from triggerer.store.dags.sync.differences import Changed
from triggerer.store.dags.sync.folder import (
    lock_folder,
    read_incumbents,
    show_incumbents,
    sync_folder,
)

__all__ = ["Changed", "lock_folder", "read_incumbents", "show_incumbents", "sync_folder"]
