"""Finds the descriptors of a Protobuf schema, even if the registry cannot return descriptors.

Messages can be decoded only with descriptors. Confluent's registry returns descriptors on request. Apicurio's registry
(3.3) may return an error or invalid base64. In this case, this module requests the schema as a client registered it:
as a descriptor (Python, .NET), or as the text of the `.proto` file, which this module compiles.
"""

from __future__ import annotations

import base64
import errno
import importlib.util
import os
import re
import sys
import tempfile
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import anyio
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
    """Return the schema of an id, as descriptors if it is a Protobuf schema.

    Raises:
        ValueError: The schema is text that does not compile, or refers to an invalid file name.
        BrokerRefused: The registry has no schema with that id, or refuses the login, or its answer cannot be read.
        BrokerUnavailable: The registry does not answer.
        ConfigurationError: The schema is text, and the compiler is not installed.
        OSError: The compiler was stopped, for instance because it ran for half a minute. A later attempt can succeed.
    """
    try:
        schema = await registry.get(schema_id, serialized=True)
    except BrokerError as error:
        # Apicurio answers some requests for descriptors with status 500. So request the schema as it was registered.
        if getattr(error.__cause__, "http_status_code", None) != 500:
            raise
    else:
        if schema.kind != "PROTOBUF" or _are_descriptors(schema):
            return schema
    schema = await registry.get(schema_id)
    if schema.kind != "PROTOBUF" or _are_descriptors(schema):
        return schema
    return await _compile(schema, f"schema-{schema_id}.proto")


def _are_descriptors(schema: RegisteredSchema) -> bool:
    return _descriptor(schema.text) is not None and all(
        _are_descriptors(referred) for referred in schema.references.values()
    )


def _descriptor(text: str) -> FileDescriptorProto | None:
    """Return the file of a schema that is a serialized descriptor in base64; None for any other text."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (DecodeError, NotBase64, ValueError):
        return None


async def _compile(schema: RegisteredSchema, name: str) -> RegisteredSchema:
    """Compile a schema to descriptors with Google's compiler.

    The compiler runs in its own process, because strangers may have written the schema.

    Cancellation: The compiler is killed.
    """
    if importlib.util.find_spec("grpc_tools") is None:
        raise ConfigurationError(
            "the schema registry returns a Protobuf schema as text only, and its compiler is not installed",
            hint="pip install 'triggerer[schema-registry]'",
        )
    with tempfile.TemporaryDirectory(prefix="triggerer-protobuf-") as folder:
        given, output = Path(folder, ".given"), Path(folder, ".made")
        await to_thread.run_sync(_write_files, Path(folder), given, schema, name)
        command = [
            sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={folder}", "--include_imports",
            f"--descriptor_set_in={given}", f"--descriptor_set_out={output}", name,
        ]  # fmt: skip
        with anyio.fail_after(_COMPILE_S):
            done = await anyio.run_process(command, check=False)
        if done.returncode != 0:
            shown = done.stderr.decode(errors="replace").replace(f"{folder}/", "").strip()
            if done.returncode < 0 or _NO_SPACE in shown:
                # Not the schema's fault: the compiler was killed, or the disk is full.
                raise ChildProcessError(
                    f"the Protobuf compiler ended with {done.returncode}: {shown}"
                )
            raise ValueError(f"its Protobuf schema does not compile: {shown}")
        compiled = await to_thread.run_sync(_read_descriptors, output)
    return _with_descriptors(schema, name, compiled)


def _write_files(folder: Path, given: Path, schema: RegisteredSchema, name: str) -> None:
    """Write the compiler's input: text files to `folder`, and descriptors of all other files to `given`."""
    from google.protobuf import descriptor_pb2

    files = dict(_files(schema, name))
    known = descriptor_pb2.FileDescriptorSet()
    for file, text in files.items():
        if (descriptor := _descriptor(text)) is not None:
            descriptor.name = file
            known.file.append(descriptor)
            continue
        for imported in _IMPORT.findall(text):
            _add_known(known, imported, files)
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    given.write_bytes(known.SerializeToString())


def _add_known(known: FileDescriptorSet, name: str, files: Mapping[str, str]) -> None:
    """Add a well-known file after its imports, except for Protobuf's own files, which the compiler has."""
    if name in files or name.startswith("google/protobuf/"):
        return
    if any(file.name == name for file in known.file):
        return
    if (file := find_known_file(name)) is not None:
        for imported in file.dependency:
            _add_known(known, imported, files)
        known.file.append(file)


def _files(schema: RegisteredSchema, name: str) -> Iterator[tuple[str, str]]:
    """Yield the registered text of each file, with the name under which it is imported."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"its Protobuf schema refers to {name!r}, which is not a valid file name")
    yield name, schema.text
    for referred_name, referred in schema.references.items():
        yield from _files(referred, referred_name)


def _read_descriptors(output: Path) -> Mapping[str, str]:
    from google.protobuf import descriptor_pb2

    files = descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file
    return {file.name: base64.b64encode(file.SerializeToString()).decode() for file in files}


def _with_descriptors(
    schema: RegisteredSchema, name: str, compiled: Mapping[str, str]
) -> RegisteredSchema:
    # A referenced file that no file imports is not compiled, and not needed.
    references = {
        referred_name: _with_descriptors(referred, referred_name, compiled)
        for referred_name, referred in schema.references.items()
        if referred_name in compiled
    }
    return RegisteredSchema(schema.kind, compiled[name], references)
