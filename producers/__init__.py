"""One package for each broker, and one for HTTP.

Each package contains its connection settings, its producer, and the translation of its client's errors.
"""
