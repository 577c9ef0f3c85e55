"""Recognises errors of Spark, in classic sessions and over Connect."""

from __future__ import annotations


def has_condition(error: BaseException, *names: str) -> bool:
    """Return whether the error has one of these error conditions of Spark or of an extension of Spark."""
    condition = getattr(error, "getCondition", lambda: None)() or ""
    # An extension may write its condition into the text of another error.
    return condition.split(".")[0] in names or any(f"[{name}" in str(error) for name in names)


def mentions(error: BaseException, *texts: str) -> bool:
    """Return whether the error's text contains one of these texts. The text includes the Java cause."""
    return any(text in str(error) for text in texts)
