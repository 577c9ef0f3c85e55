"""Logging, metrics, and hiding secrets in log lines, errors and the output of commands."""
