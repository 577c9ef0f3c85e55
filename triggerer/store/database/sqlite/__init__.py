"""SQLite: connections, their thread, scripts, and the lock that keeps a second service out."""
