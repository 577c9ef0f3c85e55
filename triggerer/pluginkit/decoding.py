"""Defines the ways to read a message's value. The argument `decode` of all brokers' triggers names one of them."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from triggerer.abc import BrokerMessage
from triggerer.errors import DagError
from triggerer.pluginkit.buckets import FIELDS, read_eventgrid, read_gcs, read_s3
from triggerer.pluginkit.cloudevents import read_cloudevents
from triggerer.pluginkit.texts import strict_text_of, text_of

__all__ = ["Decoding", "find_decoding", "text_of"]


@dataclass(frozen=True, slots=True)
class Decoding:
    """One way to read a message.

    Args:
        name: The value of a trigger's argument `decode`, such as `json`.
        read: Returns the value of a message. Called on the event loop, once for each subscriber. An expensive result
            should be stored in the message (`BrokerMessage.decoded`). A `ValueError` means that the message can never
            be read, so it is rejected.
        several: Whether `read` returns a list. Each element that meets `match` then makes its own event.
        fields: The default `extra` has these fields of the element. None: the broker's trigger makes the default.
        prepare: Awaited before `read`, for example to look up a schema. A `ValueError` rejects the message. Any other
            error fails the message, which is read again later.
        aclose: Releases the resources of `prepare`.
    """

    name: str | None
    read: Callable[[BrokerMessage], Any]
    several: bool = False
    fields: tuple[str, ...] | None = None
    prepare: Callable[[BrokerMessage], Awaitable[None]] | None = None
    aclose: Callable[[], Awaitable[None]] | None = None


def _read_text(message: BrokerMessage) -> str | None:
    return None if message.value is None else strict_text_of(message.value)


def _read_base64(message: BrokerMessage) -> str | None:
    return None if message.value is None else base64.b64encode(message.value).decode()


def _shared(name: str, read: Callable[[BrokerMessage], Any]) -> Callable[[BrokerMessage], Any]:
    """Return a function that reads each message once for all subscribers of the stream."""
    return lambda message: message.decoded(name, read)


_DECODINGS: Final[Mapping[str | None, Decoding]] = {
    decoding.name: decoding
    for decoding in (
        # Not `operator.methodcaller`: it is written in C, and a call from C into Python costs more than this lambda.
        Decoding("json", lambda message: message.json()),
        Decoding("text", _read_text),
        Decoding("bytes", _read_base64),
        Decoding(None, lambda message: None),
        Decoding("cloudevents", _shared("cloudevents", read_cloudevents), several=True),
        Decoding("s3", _shared("s3", read_s3), several=True, fields=FIELDS),
        Decoding("gcs", _shared("gcs", read_gcs), several=True, fields=FIELDS),
        Decoding("eventgrid", _shared("eventgrid", read_eventgrid), several=True, fields=FIELDS),
    )
}


_IN_REGISTRY: Final = ("avro", "jsonschema", "protobuf")


def find_decoding(name: Any, *, registry_of: str | None = None) -> Decoding:
    """Return the decoding with this name.

    Args:
        registry_of: The connection that may name a schema registry. None: the broker supports no registry.
    Raises:
        DagError: The name is unknown, or not supported for this broker.
    """
    if name in _IN_REGISTRY and registry_of is not None:
        # Imported here, because few triggers need it.
        from triggerer.pluginkit.schemas.decoding import RegistryDecoder

        decoder = RegistryDecoder(name, registry_of)
        return Decoding(name, decoder.read, prepare=decoder.prepare, aclose=decoder.aclose)
    found = _DECODINGS.get(name) if name is None or isinstance(name, str) else None
    if found is None:
        known = [known for known in _DECODINGS if known is not None]
        *names, last = known if registry_of is None else [*known, *_IN_REGISTRY]
        listed = ", ".join(f'"{known}"' for known in names)
        raise DagError(f'decode must be {listed}, "{last}" or None, not {name!r}')
    return found
