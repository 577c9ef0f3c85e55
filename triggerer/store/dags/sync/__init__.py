"""Updates the store to what the DAG files define; only differences are written."""

from triggerer.store.dags.sync.differences import Changed
from triggerer.store.dags.sync.folder import (
    lock_folder,
    read_incumbents,
    show_incumbents,
    sync_folder,
)

__all__ = ["Changed", "lock_folder", "read_incumbents", "show_incumbents", "sync_folder"]
