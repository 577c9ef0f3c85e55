"""Records which watchers are behind, in which lanes, and from which positions they must read."""
