"""Logging, and the redaction of secrets in what is logged and shown."""
