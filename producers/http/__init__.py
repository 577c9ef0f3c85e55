"""Polls URLs for shared streams."""

from __future__ import annotations

from producers.http.producer import HttpSharedStreamProducer

__all__ = ["HttpSharedStreamProducer"]
