"""What a user can ask for, one function for each thing: the commands and the HTTP API call the same.

They parse nothing and print nothing. Those that take a session are part of the caller's transaction.
"""
