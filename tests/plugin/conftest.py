"""Keeps pytest out of the plugin packages in this folder. Their tests run on the installed wheels."""

collect_ignore = ["triggerer-lines", "triggerer-redis", "triggerer-sqlite"]
