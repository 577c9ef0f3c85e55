"""What the lists of all nouns share: views, filters and counts."""
