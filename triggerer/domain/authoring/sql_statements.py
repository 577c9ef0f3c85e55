"""Splits a text of SQL into statements, as Spark's own command line does."""

from __future__ import annotations

import re
from typing import Final

from triggerer.errors import DagError

_PIECE: Final = re.compile(
    r"""
      (?P<line_comment>--[^\n]*)
    | (?P<comment>/\*)
    | (?P<raw>(?<![\w])[rR](?:'[^']*(?P<raw1>')?|"[^"]*(?P<raw2>")?))
    | (?P<text>'(?:[^'\\]|\\.)*(?P<text1>')?|"(?:[^"\\]|\\.)*(?P<text2>")?)
    | (?P<name>`[^`]*(?P<name1>`)?)
    | (?P<end>;)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_MARK: Final = re.compile(r"/\*|\*/")
_SCRIPT: Final = re.compile(r"(?:[\w`]+\s*:\s*)?BEGIN\b(?!\s+TRANSACTION)", re.IGNORECASE)


def split_statements(sql: str) -> list[str]:
    """Return the statements without the `;` between them. Statements without any code are left out.

    A `;` in quotes or in a comment does not end a statement. A script (`BEGIN … END`) and everything after it are one
    statement.

    Raises:
        DagError: A quote or a comment is not closed.
    """
    statements = list[str]()
    start = at = 0
    code = ""
    while (piece := _PIECE.search(sql, at)) is not None:
        code += sql[at : piece.start()]
        if _SCRIPT.match(code.lstrip()):
            break
        at = piece.end()
        if piece["comment"]:
            at = _end_of_comment(sql, at)
        elif piece["end"]:
            if code.strip():
                statements.append(sql[start : piece.start()].strip())
            start, code = at, ""
        elif not piece["line_comment"]:
            if not any(piece[name] for name in ("raw1", "raw2", "text1", "text2", "name1")):
                raise _unclosed(sql, piece.start(), f"the quote {piece[0][0]}")
            code += piece[0]
    if (code + sql[at:]).strip():
        statements.append(sql[start:].strip())
    return statements


def _end_of_comment(sql: str, start: int) -> int:
    """Return the index after the end of the comment whose `/*` ends at `start`. Comments nest, as in Spark."""
    depth, at = 1, start
    while depth:
        mark = _COMMENT_MARK.search(sql, at)
        if mark is None:
            raise _unclosed(sql, start - 2, "the comment /*")
        depth += 1 if mark[0] == "/*" else -1
        at = mark.end()
    return at


def _unclosed(sql: str, at: int, what: str) -> DagError:
    line = sql.count("\n", 0, at) + 1
    return DagError(f"{what} in line {line} of the SQL is not closed")
