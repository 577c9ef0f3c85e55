"""Validates the parser's messages, because they contain results of processes that ran the code of DAG files."""

from __future__ import annotations

from typing import Final, final

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from triggerer.domain.dag_files.parsed import ParsedFile, Problem
from triggerer.processes.ipc import MalformedFrame


@final
class Accepted(TypedDict):
    """The parser has read a request with this number of paths."""

    accepted: int


@final
class Begun(TypedDict):
    """The parser is about to read a file."""

    begun: str


@final
class Answer(TypedDict):
    """The result of reading one file."""

    path: str
    file: object
    output: str


_ANSWER: Final[TypeAdapter[Accepted | Begun | Answer]] = TypeAdapter(Accepted | Begun | Answer)
_FILE: Final = TypeAdapter(ParsedFile)


def read_answer(document: object) -> Accepted | Begun | Answer:
    """Validate a message from the parser, except for the definitions in an `Answer`, which `file_in` validates.

    Raises:
        MalformedFrame: The message has none of the three forms.
    """
    try:
        return _ANSWER.validate_python(document)
    except ValidationError as error:
        raise MalformedFrame(_reason(error)) from error


def file_in(answer: Answer) -> ParsedFile:
    """Return the file's definitions, or a broken file if the definitions are malformed."""
    path = answer["path"]
    try:
        parsed = _FILE.validate_python(answer["file"])
    except ValidationError as error:
        reason = _reason(error)
    else:
        if parsed.path == path:
            return parsed
        reason = f"it describes another file, {parsed.path}"
    # The file's code has probably written into the pipe through which the fork returns the definitions.
    problem = f"importing it left a result that cannot be understood: {reason}"
    return ParsedFile(
        path=path, parse_seconds=0.0, errors=(Problem(path, None, problem),), is_broken=True
    )


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]
