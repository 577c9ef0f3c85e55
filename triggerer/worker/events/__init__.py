"""The asset events that tasks receive and emit."""
