"""Child processes: how they start, talk to their parent, and end with it."""
