"""Announcements: commits wake parts of the service, in this process and in others."""
