"""Attempts of runs: their claims, their launches, and an operator's decision about unknown attempts."""
