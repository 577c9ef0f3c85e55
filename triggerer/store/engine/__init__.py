"""Connections, transactions and scripts on each database that we support."""
