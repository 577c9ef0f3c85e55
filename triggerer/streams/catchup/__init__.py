"""Catch-up: a watcher that fell behind reads its backlog alone, while its siblings continue (contract, rule 18)."""
