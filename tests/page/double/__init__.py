"""A stand-in for the HTTP API, with made-up data in three sizes. In tests, it also serves the built web page."""
