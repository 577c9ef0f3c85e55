"""All reads and writes of the database. ORM rows stay in this package: its functions return plain values."""
