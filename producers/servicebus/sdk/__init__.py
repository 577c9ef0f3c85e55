"""Every call into azure-servicebus, in a thread with an event loop of its own."""
