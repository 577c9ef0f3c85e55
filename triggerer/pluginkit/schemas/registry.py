"""Asks a schema registry by Confluent's protocol, which Apicurio, Karapace and Redpanda support too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable, ConfigurationError
from triggerer.http_libraries import http_errors
from triggerer.pluginkit.guarding import guarded

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import AsyncSchemaRegistryClient

_INVALID_ANSWER_ERRORS: Final = (ValueError, TypeError, KeyError, AttributeError)
"""The errors that the client raises if the answer does not come from a registry. They are always translated, because
an untranslated ValueError would reject the message as one that can never be read."""
_CONFLUENT: Final = (
    "does schema_registry_url name a registry with Confluent's protocol? Apicurio's URL ends with"
    " /apis/ccompat/v7"
)

Reader = Callable[[bytes], Any]
"""Converts a message's value to a JSON value, given the bytes after the head of Confluent's wire format.

Raises ValueError for bytes that do not fit the schema.
"""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with its references.

    Attributes:
        kind: "AVRO", "JSON" or "PROTOBUF".
        text: The schema. For Protobuf this is the text of the `.proto` file, or its serialized descriptor in base64.
        references: The schemas to which this schema refers, by the names that it uses for them.
    """

    kind: str
    text: str
    references: Mapping[str, RegisteredSchema]


class SchemaRegistry:
    """Looks up schemas, which the client library caches.

    Args:
        connection: The section of the configuration that names the registry.
        settings: The keys of that section. This class reads `schema_registry_url`, `schema_registry_username`,
            `schema_registry_password` and `ssl_cafile`.
    Raises:
        ConfigurationError: `schema_registry_url` is missing or invalid, or the package is not installed.
    """

    def __init__(self, connection: str, settings: Mapping[str, Any]) -> None:
        url = settings.get("schema_registry_url")
        if not url:
            raise ConfigurationError(
                f"schema_registry_url is missing in [connections.{connection}]",
                hint="for example: http://localhost:8081",
            )
        self._url = url
        try:
            self._client = _connect(url, settings)
        except _INVALID_ANSWER_ERRORS as error:
            # The client raises these errors for an invalid URL too.
            raise ConfigurationError(
                f"the schema registry of [connections.{connection}] cannot be asked: {error}",
                hint="schema_registry_url has the form http://host:port; the login has keys of its own"
                " (schema_registry_username, schema_registry_password)",
            ) from error

    async def get(self, schema_id: int, *, serialized: bool = False) -> RegisteredSchema:
        """Return the schema of an id.

        Args:
            serialized: True: request a descriptor instead of text. Registries support this only for Protobuf.
        Raises:
            BrokerRefused: The registry has no schema with that id, or refuses the login, or its answer cannot be read.
            BrokerUnavailable: The registry does not answer.
        """
        form: dict[str, Any] = {"fmt": "serialized"} if serialized else {}
        call = self._client.get_schema(schema_id, **form)
        return await self._registered(await self._ask(call, f"schema {schema_id}"), form)

    async def _registered(self, schema: Any, form: Mapping[str, Any]) -> RegisteredSchema:
        if not isinstance(schema.schema_str, str):
            raise BrokerRefused(
                f"the schema registry {self._url} answers without a schema", hint=_CONFLUENT
            )
        references = {}
        for reference in schema.references or ():
            call = self._client.get_version(reference.subject, reference.version, **form)
            found = await self._ask(
                call, f"version {reference.version} of subject {reference.subject}"
            )
            references[reference.name] = await self._registered(found.schema, form)
        return RegisteredSchema(schema.schema_type, schema.schema_str, references)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _ask(self, call: Any, what: str) -> Any:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        def translate(error: BaseException, what: str) -> BrokerError:
            status = getattr(error, "http_status_code", 0)
            if 400 <= status < 500 and status not in (408, 429):
                hint = "check schema_registry_username and schema_registry_password"
                return BrokerRefused(
                    f"{what}: {error}", hint=hint if status in (401, 403) else None
                )
            if isinstance(error, _INVALID_ANSWER_ERRORS):
                return BrokerRefused(
                    f"{what}: the answer cannot be read: {error!r}", hint=_CONFLUENT
                )
            return BrokerUnavailable(f"{what}: {str(error) or type(error).__name__}")

        return await guarded(
            call,
            f"look-up of {what} in the schema registry {self._url}",
            translate=translate,
            catch=(
                SchemaRegistryError,
                *http_errors(),
                OSError,
                TimeoutError,
                *_INVALID_ANSWER_ERRORS,
            ),
        )


def _connect(url: str, settings: Mapping[str, Any]) -> AsyncSchemaRegistryClient:
    try:
        from confluent_kafka.schema_registry import AsyncSchemaRegistryClient
    except ImportError as error:
        raise ConfigurationError(
            f"a schema registry needs a package that is not installed: {error}",
            hint="pip install 'triggerer[schema-registry]'",
        ) from error
    # Raise an error for an invalid port now, and not at the first request.
    urlsplit(url).port  # noqa: B018
    configuration: dict[str, Any] = {"url": url, "timeout": 10, "max.retries": 2}
    if settings.get("schema_registry_username"):
        login = (settings["schema_registry_username"], settings.get("schema_registry_password", ""))
        configuration["basic.auth.user.info"] = ":".join(login)
    if url.startswith("https:") and settings.get("ssl_cafile"):
        configuration["ssl.ca.location"] = settings["ssl_cafile"]
    return AsyncSchemaRegistryClient(configuration)
