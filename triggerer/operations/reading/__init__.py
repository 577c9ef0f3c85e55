"""Operations that show the settings, why a run exists, the copy of a run's log, and why a log is missing."""
