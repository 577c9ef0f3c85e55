"""The JVM of a classic session: how it starts, warms up, and is cleared between runs."""
