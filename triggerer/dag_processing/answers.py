"""Checks what the parser answers: it hands on what forks have left, in which the files' own code has run."""

from __future__ import annotations

from typing import Final, final

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from triggerer.domain.dag_files.parsed import ParsedFile, Problem
from triggerer.processes.ipc import MalformedFrame


@final
class Accepted(TypedDict):
    """The request has been read; so many paths were in it."""

    accepted: int


@final
class Begun(TypedDict):
    """A file is about to be read."""

    begun: str


@final
class Answer(TypedDict):
    """Of one file."""

    path: str
    file: object
    output: str


_ANSWER: Final[TypeAdapter[Accepted | Begun | Answer]] = TypeAdapter(Accepted | Begun | Answer)
_FILE: Final = TypeAdapter(ParsedFile)


def read_answer(document: object) -> Accepted | Begun | Answer:
    """Return an answer; what it holds of the file is not checked yet.

    Raises:
        MalformedFrame: The parser does not send this.
    """
    try:
        return _ANSWER.validate_python(document)
    except ValidationError as error:
        raise MalformedFrame(_reason(error)) from error


def file_in(answer: Answer) -> ParsedFile:
    """Return what the file defines, or that it cannot be used."""
    path = answer["path"]
    try:
        parsed = _FILE.validate_python(answer["file"])
    except ValidationError as error:
        reason = _reason(error)
    else:
        if parsed.path == path:
            return parsed
        reason = f"it is of another file, {parsed.path}"
    # Code of the file has written into the pipe of its fork.
    problem = f"what importing it left in its result cannot be understood: {reason}"
    return ParsedFile(
        path=path, parse_seconds=0.0, errors=(Problem(path, None, problem),), is_broken=True
    )


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]
