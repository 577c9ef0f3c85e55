"""How the commands read options, reach the database and print tables, fields and JSON."""
