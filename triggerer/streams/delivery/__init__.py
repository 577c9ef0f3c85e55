"""One group's life: poll, fan-out, resolution and advance."""
