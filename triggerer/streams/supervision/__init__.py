"""Which streams exist, which triggers belong to them, and how both are restarted."""
