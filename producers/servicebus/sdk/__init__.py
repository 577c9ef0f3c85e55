"""Every call into azure-servicebus. All run in one thread with its own event loop, so that they never block ours."""
