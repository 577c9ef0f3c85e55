"""The audit of changes that people and programs asked for, and the numbers of rows that cleanings deleted."""
