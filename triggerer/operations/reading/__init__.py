"""Operations that only read: the settings, the reasons for a run, and the reason why a log is missing."""
