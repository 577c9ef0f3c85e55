"""The packages below are projects of their own: their tests run where they are installed."""

collect_ignore = ["triggerer-lines", "triggerer-redis", "triggerer-sqlite"]
