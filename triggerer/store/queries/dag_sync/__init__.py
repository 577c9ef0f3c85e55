"""Updates the store to what the DAG files define; only differences are written."""

from triggerer.store.queries.dag_sync.differences import Changed
from triggerer.store.queries.dag_sync.folder import (
    lock_folder,
    read_incumbents,
    show_incumbents,
    sync_folder,
)

__all__ = ["Changed", "lock_folder", "read_incumbents", "show_incumbents", "sync_folder"]
