"""The database, concretely; rows and sessions stay in here, dataclasses go out."""
