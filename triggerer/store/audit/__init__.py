"""The audit of changes that people and programs requested, and the numbers of rows that cleanings deleted."""
