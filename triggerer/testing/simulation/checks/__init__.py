"""Checks of the promises, from evidence that the models collect."""
