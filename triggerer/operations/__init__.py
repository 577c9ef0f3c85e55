"""The operations that a user can request. The commands and the HTTP API call these functions.

An operation parses no input and prints nothing. An operation that takes a session is part of the caller's transaction.
"""
