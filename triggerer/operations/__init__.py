"""The operations that a user can ask for, one function each. The commands and the HTTP API share them.

They parse nothing and print nothing. An operation that takes a session is part of the caller's transaction.
"""
