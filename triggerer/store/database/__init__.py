"""Connections, transactions and scripts on each supported database, and wake-ups between processes."""
