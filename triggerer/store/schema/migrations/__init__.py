"""Numbered scripts that bring a database to the schema of this release's models.

`versions/0001_initial.py` creates the tables of release 0.1.0. The name of a later script says when it runs.
`NNNN_before_*.py` runs before the code is replaced, and the former release still works with the new tables.
`NNNN_after_*.py` runs once no process of the former release is left. A script's revision is the name of its file.
"""

from typing import Final

HEAD: Final = "0001_initial"
"""The newest script's revision. With this constant, an up-to-date database is recognised without loading Alembic."""
