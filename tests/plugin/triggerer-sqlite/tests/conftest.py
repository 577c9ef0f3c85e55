pytest_plugins = ["triggerer.testing.pytest_plugin"]
