"""Further questions of a user: the settings, the reasons for a run, and why a log is missing."""
