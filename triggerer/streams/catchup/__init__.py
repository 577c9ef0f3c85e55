"""A watcher that fell behind catches up alone, beside its siblings (contract, rule 18)."""
