"""Cron expressions in words, as far as a few words do it."""

from __future__ import annotations

from triggerer.domain.timetables.cron import Cron
from triggerer.domain.timetables.zones import zone_name


def describe_cron(cron: Cron) -> str:
    """Return a phrase for people."""
    return f"at the times of cron {cron.expression!r} ({zone_name(cron.zone)})"
