"""Every use of private parts of azure-servicebus, and the thread with its own event loop that receivers work in."""
