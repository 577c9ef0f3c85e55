"""Records the backlogs: the watchers that are behind, their lanes, and the positions from which they read."""
