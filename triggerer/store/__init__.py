"""All reads and writes of the database. Sessions and ORM rows stay in this package; functions return dataclasses."""
