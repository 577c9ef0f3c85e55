"""Counts sentences that are hard to read: `python -m tests.prose [PATH ...]` shows them with file and line.

A match is worth a look, but it need not be an error. `tests/unit/repository/test_prose.py` fails if a folder gets a
higher rate of matches.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDERS: Final = ("triggerer", "producers", "watchers", "docs")
_SHORTEST_SENTENCE: Final = 20

HABITS: Final = {
    "a question word is the subject": r"(?:^|[,.:;] )(?:Wh|wh)(?:o|at)(?:ever)? [a-z]+",
    "a pronoun stands for the noun": (
        r"\bthose (?:of|that|who)\b|\bthat (?:of|which)\b|\b(?:in|of) which\b|\bfor whom\b|\bof what\b"
        r"|\bbehind (?:it|that|what)\b|\bthe same (?:for|in|of) "
    ),
    "a preposition comes first": r"^(?:Among|Behind|Beside|Of) [a-z`]",
    "the sentence needs its neighbour": r"^(?:The same|Likewise)\b",
    "the phrase is not English": (
        r"\b(?:any more|are to be|are told|at the most|anew|by itself|is to be|is told|no more|once more"
        r"|since somebody|so many|so often)\b"
    ),
}
"""Why a sentence is hard to read, with the pattern that finds it."""

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Sentence(NamedTuple):
    """A sentence of a docstring, a comment or a page, and the line where its paragraph begins."""

    path: Path
    line: int
    text: str

    @property
    def is_suspect(self) -> bool:
        return any(re.search(pattern, self.text) for pattern in HABITS.values())


class Count(NamedTuple):
    """The number of sentences, and of the sentences with one of `HABITS`."""

    sentences: int
    suspects: int

    @property
    def per_thousand(self) -> float:
        return 1_000 * self.suspects / self.sentences if self.sentences else 0.0


def count(paths: Iterable[Path]) -> Count:
    """Count the sentences of files and folders."""
    found = [sentence.is_suspect for sentence in sentences(paths)]
    return Count(len(found), sum(found))


def sentences(paths: Iterable[Path]) -> Iterator[Sentence]:
    """Yield the sentences of Python files and Markdown pages, file by file. Very short sentences are left out."""
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            paragraphs = {".py": _python_paragraphs, ".md": markdown_paragraphs}.get(file.suffix)
            if paragraphs is None or not file.is_file():
                continue
            for line, paragraph in paragraphs(file.read_text()):
                for text in re.split(r"(?<=[.!?]) ", " ".join(paragraph.split())):
                    if len(text) > _SHORTEST_SENTENCE:
                        yield Sentence(file, line, text)


def _python_paragraphs(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        body = node.body if isinstance(node, _DOCUMENTED) else []
        for child in body:
            match child:
                case ast.Expr(value=ast.Constant(value=str(docstring))):
                    yield from (
                        (child.lineno, paragraph) for paragraph in re.split(r"\n\s*\n", docstring)
                    )
    yield from _comments(text)


def _comments(text: str) -> Iterator[tuple[int, str]]:
    lines: list[str] = []
    for number, row in enumerate([*text.splitlines(), ""], 1):
        if comment := re.match(r"\s*#:? (.*)", row):
            lines.append(comment[1])
        elif lines:
            yield number - len(lines), " ".join(lines)
            lines.clear()


def markdown_paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs, list items and cells of tables with their line numbers, without code and headings."""
    lines: list[str] = []
    for number, row in enumerate([*outside_code(text), ""], 1):
        starts = re.match(r"\s*(?:[-*:] |\d+\. )", row)
        if lines and (starts or not row.strip() or row.startswith(("#", "|", "<!--"))):
            yield number - len(lines), " ".join(lines)
            lines.clear()
        if row.startswith("|"):
            yield from ((number, cell) for cell in cells(row))
        elif row.strip() and not row.startswith(("#", "<!--")):
            lines.append(row[starts.end() :] if starts else row)


def outside_code(text: str) -> Iterator[str]:
    """Yield the lines of a page. A line of a fenced block is empty."""
    fenced = False
    for row in text.splitlines():
        fence = row.lstrip().startswith("```")
        yield "" if fenced or fence else row
        fenced ^= fence


def cells(row: str) -> list[str]:
    """Return the cells of a table's row."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip().strip("|"))]


def main(arguments: list[str]) -> int:
    paths = [Path(argument) for argument in arguments] or [ROOT / name for name in FOLDERS]
    for sentence in sentences(paths):
        if sentence.is_suspect:
            print(f"{sentence.path}:{sentence.line}: {sentence.text[:160]}")
    for path in paths:
        counted = count([path])
        print(f"{counted.per_thousand:.1f} in 1,000 of {counted.sentences:,} sentences: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
