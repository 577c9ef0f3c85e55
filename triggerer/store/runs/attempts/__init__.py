"""Attempts of runs: their claims, their launches, and an operator's word about unknown ones."""
