"""Every call into azure-servicebus, in a thread with its own event loop."""
