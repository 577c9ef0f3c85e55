"""One package for each broker, and one for HTTP.

Each package has settings, messages, a producer, and the translation of its client's errors.
"""
