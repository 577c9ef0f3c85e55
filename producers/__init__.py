"""One module per broker: its configuration, position, producer and error translation."""
