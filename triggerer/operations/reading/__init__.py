"""Operations that only read: the settings, why a run exists, and why the log of a run is missing."""
