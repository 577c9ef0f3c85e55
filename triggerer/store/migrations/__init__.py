"""Numbered scripts that bring a database to what this release's models describe.

`versions/NNNN_before_*.py` is applied before the code is replaced: the release before still runs on
its outcome. `NNNN_after_*.py` waits until no process of the release before is left.
"""

from typing import Final

HEAD: Final = "0020"
"""The newest script's revision, so that a database at it is recognised without loading Alembic."""
