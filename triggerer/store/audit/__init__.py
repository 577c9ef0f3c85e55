"""The audit of changes: their actors, subjects and times; and the sums of what cleanings deleted."""
