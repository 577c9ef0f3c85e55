"""A stand-in for the HTTP API, with made-up data in three sizes. It also serves the built web page."""
