"""The commands: they parse options and print results. `triggerer.operations` does the work."""
