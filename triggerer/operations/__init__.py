"""The operations that a user can ask for, one function each. The commands and the HTTP API call these functions.

An operation parses no input and prints nothing. If it takes a session, it is part of the caller's transaction.
"""
