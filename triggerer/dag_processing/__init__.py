"""Reads DAG files in a child process when they change, and stores their definitions."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triggerer.dag_processing.checking import ParsedFolder, parse_once
    from triggerer.dag_processing.guarantees import CheckedGuarantees, check_guarantees
    from triggerer.dag_processing.processor import DagProcessor
    from triggerer.dag_processing.sources import CheckedSources, check_sources

__all__ = [
    "CheckedGuarantees",
    "CheckedSources",
    "DagProcessor",
    "ParsedFolder",
    "check_guarantees",
    "check_sources",
    "parse_once",
]

# Names that are imported on first use, with their modules. The parser's process imports this package too, and must not
# import `processor`: this would import the store's modules, which would take most of the parser's memory.
_HOMES = {
    "CheckedGuarantees": "guarantees",
    "CheckedSources": "sources",
    "DagProcessor": "processor",
    "ParsedFolder": "checking",
    "check_guarantees": "guarantees",
    "check_sources": "sources",
    "parse_once": "checking",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
