"""A stand-in for the HTTP API: the page's own server in its tests, with made-up data in three sizes."""
