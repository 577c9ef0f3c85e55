"""The package below is a project of its own: its tests run where it is installed, started by test_package.py."""

collect_ignore = ["triggerer-lines"]
