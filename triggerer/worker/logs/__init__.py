"""The log of a run on the disk: its writing, the limit of its size, and its reading."""
