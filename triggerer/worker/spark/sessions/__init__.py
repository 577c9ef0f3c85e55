"""Opens Spark sessions, classic or over Connect, and waits for a cluster or a Connect server."""
