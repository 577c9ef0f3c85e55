"""Finds the descriptors of a Protobuf schema, also where the registry has none to give.

Confluent's registry gives any schema as a descriptor. Apicurio's (3.3) answers that with an error for a file that has a
package, and with bytes that are no base64 for others; but it gives what was registered. That is a descriptor, where the
clients for Python and .NET registered it, and else the file's text, which is compiled.
"""

from __future__ import annotations

import base64
import errno
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from anyio import to_thread

from triggerer.errors import BrokerError, ConfigurationError
from triggerer.pluginkit.schemas.known_files import find_known_file
from triggerer.pluginkit.schemas.registry import RegisteredSchema, SchemaRegistry

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

_IMPORT = re.compile(r'^\s*import\s+(?:public\s+|weak\s+)?"([^"]+)"', re.MULTILINE)
_COMPILE_S = 30.0
_NO_SPACE = os.strerror(errno.ENOSPC)


async def find_descriptors(registry: SchemaRegistry, schema_id: int) -> RegisteredSchema:
    """The schema of an id, as descriptors if it is one of Protobuf.

    Raises:
        ValueError: It is text that does not compile.
        BrokerRefused, BrokerUnavailable: As `SchemaRegistry.get`.
        ConfigurationError: It is text, and the compiler is not installed.
    """
    try:
        schema = await registry.get(schema_id, serialized=True)
    except BrokerError as error:
        # Whatever else it may be, the next question meets it too.
        if getattr(error.__cause__, "http_status_code", None) != 500:
            raise
    else:
        if schema.kind != "PROTOBUF" or _are_descriptors(schema):
            return schema
    schema = await registry.get(schema_id)
    if schema.kind != "PROTOBUF" or _are_descriptors(schema):
        return schema
    return await to_thread.run_sync(_compile, schema, f"schema-{schema_id}.proto")


def _are_descriptors(schema: RegisteredSchema) -> bool:
    return _descriptor(schema.text) is not None and all(
        _are_descriptors(referred) for referred in schema.references.values()
    )


def _descriptor(text: str) -> FileDescriptorProto | None:
    """The file that a schema describes, if it is a descriptor, serialized, in base64."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (DecodeError, NotBase64, ValueError):
        return None


def _compile(schema: RegisteredSchema, name: str) -> RegisteredSchema:
    """The same as descriptors, by Google's compiler; in a process of its own, since the text is somebody else's.

    Blocks: for a thread. Raises as `find_descriptors`; where it may compile later, `OSError`, and after half a minute
    `subprocess.TimeoutExpired`.
    """
    if importlib.util.find_spec("grpc_tools") is None:
        raise ConfigurationError(
            "the schema registry gives a Protobuf schema as text only, and its compiler is not installed",
            hint="pip install 'triggerer[schema-registry]'",
        )
    from google.protobuf import descriptor_pb2

    files = dict(_files(schema, name))
    with tempfile.TemporaryDirectory(prefix="triggerer-protobuf-") as folder:
        known = descriptor_pb2.FileDescriptorSet()
        for file, text in files.items():
            if (descriptor := _descriptor(text)) is not None:
                descriptor.name = file
                known.file.append(descriptor)
                continue
            for imported in _IMPORT.findall(text):
                _add_known(known, imported, files)
            path = Path(folder, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        given, output = Path(folder, ".given"), Path(folder, ".made")
        given.write_bytes(known.SerializeToString())
        command = [
            sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={folder}", "--include_imports",
            f"--descriptor_set_in={given}", f"--descriptor_set_out={output}", name,
        ]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMPILE_S, check=False
        )
        if done.returncode != 0:
            shown = done.stderr.replace(f"{folder}/", "").strip()
            if done.returncode < 0 or _NO_SPACE in shown:
                # Killed, for want of memory or with the service, or out of room: that says nothing about the schema.
                raise ChildProcessError(
                    f"the Protobuf compiler ended with {done.returncode}: {shown}"
                )
            raise ValueError(f"its Protobuf schema does not compile: {shown}")
        compiled = _descriptors(output.read_bytes())
    return _with_descriptors(schema, name, compiled)


def _add_known(known: FileDescriptorSet, name: str, files: Mapping[str, str]) -> None:
    """Add a file that everybody has, behind what it imports; the compiler has those of Protobuf itself."""
    if name in files or name.startswith("google/protobuf/"):
        return
    if any(file.name == name for file in known.file):
        return
    if (file := find_known_file(name)) is not None:
        for imported in file.dependency:
            _add_known(known, imported, files)
        known.file.append(file)


def _files(schema: RegisteredSchema, name: str) -> Iterator[tuple[str, str]]:
    """What was registered of each file, by the name under which it is imported."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"its Protobuf schema refers to {name!r}, which is no name of a file")
    yield name, schema.text
    for referred_name, referred in schema.references.items():
        yield from _files(referred, referred_name)


def _descriptors(output: bytes) -> Mapping[str, str]:
    from google.protobuf import descriptor_pb2

    files = descriptor_pb2.FileDescriptorSet.FromString(output).file
    return {file.name: base64.b64encode(file.SerializeToString()).decode() for file in files}


def _with_descriptors(
    schema: RegisteredSchema, name: str, compiled: Mapping[str, str]
) -> RegisteredSchema:
    # A file that is referred to and that nobody imports is not among the compiled ones, and not needed.
    references = {
        referred_name: _with_descriptors(referred, referred_name, compiled)
        for referred_name, referred in schema.references.items()
        if referred_name in compiled
    }
    return RegisteredSchema(schema.kind, compiled[name], references)
