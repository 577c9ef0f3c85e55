"""Tells Spark's errors apart, in classic sessions and over Connect."""

from __future__ import annotations


def has_condition(error: BaseException, *names: str) -> bool:
    """Return whether the error is one of these conditions of Spark or of an extension of it."""
    condition = getattr(error, "getCondition", lambda: None)() or ""
    # An extension may wrap its condition into the text of another error.
    return condition.split(".")[0] in names or any(f"[{name}" in str(error) for name in names)


def mentions(error: BaseException, *texts: str) -> bool:
    """Return whether the error's text, which has its Java cause, contains one of these."""
    return any(text in str(error) for text in texts)
