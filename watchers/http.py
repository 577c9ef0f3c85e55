"""Asset events from the content of a polled URL."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from producers.http import HttpSharedStreamProducer
from producers.http.producer import Polled, check_url
from triggerer.abc import DeliveryFacts, Finding
from triggerer.errors import DagError
from triggerer.pluginkit.arguments import (
    choice_argument,
    describe_source,
    is_secret_key,
    text_argument,
)
from triggerer.pluginkit.matching import compile_path
from triggerer.pluginkit.message_trigger import (
    Attribute,
    MessageTrigger,
    in_position,
    timestamp_ms,
)

if TYPE_CHECKING:
    from producers.http.settings import HttpSettings


class HttpPollTrigger(MessageTrigger):
    """Polls a URL. Fires for each new item of the list at `items`. Without `items`, each change of the answer fires.

    Watchers share one request if all their arguments except `match`, `decode`, `extra` and `partition_key` are equal.
    Each watcher has its own filter.

    Args:
        url: An absolute URL, or one that is joined to the connection's `base_url`. User and password belong in the
            connection.
        connection: The section `[connections.<connection>]` of the configuration. The default section, `http`, need not
            exist.
        poke_interval: Seconds from an answer to the next request.
        items: The path to a list in the answer, which is JSON; `@value` if the answer is the list. Each new item fires.
            None: the whole answer fires whenever it changes.
        item_key: The path in an item to its key. An item with a known key does not fire again, even if its other fields
            change. None: items have no keys, and a changed item fires.
        cursor: `{"path": PATH, "param": NAME}`: a request has the query parameter NAME, with the newest value found at
            PATH in an answer. If an answer has new items and a new cursor, the next request follows at once.
        first: "all": the content at the first start of the stream fires. "skip": that content does not fire.
        match, decode, extra, partition_key: See `MessageTrigger`. They apply to each item, or to the whole answer if
            `items` is None. The default `extra` has `value`, `url`, `item_key` and `timestamp`. The field `item_key` is
            the item's key, or the item's digest if it has no key. The `timestamp` is the time when the item was first
            seen, in milliseconds.
    Raises:
        DagError: An argument is not as described.
    """

    ATTRIBUTES: ClassVar[Mapping[str, Attribute]] = {
        **in_position("url", "item_key"),
        "timestamp": timestamp_ms,
    }

    def __init__(
        self,
        url: str,
        *,
        connection: str = "http",
        poke_interval: float = 30.0,
        items: str | None = None,
        item_key: str | None = None,
        cursor: Mapping[str, str] | None = None,
        first: str = "all",
        match: Mapping[str, Any] | str | None = None,
        decode: str | None = "json",
        extra: Mapping[str, Any] | None = None,
        partition_key: str | None = None,
    ) -> None:
        self.url = _url(url)
        self.poke_interval = _seconds(poke_interval)
        self.items = _path(items, "items")
        self.item_key = _path(item_key, "item_key")
        if item_key is not None and items is None:
            raise DagError("item_key is the path in an item: items is missing")
        self.cursor = _cursor(cursor)
        self.first = choice_argument(first, "first", "all", "skip")
        super().__init__(
            connection=connection,
            match=match,
            decode=decode,
            extra=extra,
            partition_key=partition_key,
        )

    def shared_stream_key(self) -> Hashable:
        cursor = None if self.cursor is None else (self.cursor["path"], self.cursor["param"])
        shape = (self.items, self.item_key, cursor)
        return ("http", self.connection, self.url, self.poke_interval, shape, self.first)

    def describe_stream(self) -> str:
        every = f"every {self.poke_interval:g} s"
        return describe_source("http", self.url, every, connection=self.connection)

    async def check_source(self) -> None:
        await check_url(self._polled(), settings=self._settings())

    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        settings = self._settings()
        settings.url_of(self.url)
        key = "the number and the digest of its version"
        if self.items is not None:
            key = "the item's digest" if self.item_key is None else f"the item's {self.item_key}"
        passing = Finding(
            "content that is gone before it is polled, or before its events are durable, makes no event",
            hint="have the server keep its content for longer than poke_interval, or use a cursor",
        )
        findings = [] if self.cursor is not None else [passing]
        if secret := next(filter(is_secret_key, parse_qs(urlsplit(self.url).query)), None):
            findings.append(
                Finding(
                    f"{secret!r} in the query of the URL may be a secret, and is stored with the watcher",
                    hint=f'put it into the connection: params = {{ {secret} = "env:NAME" }}',
                )
            )
        return DeliveryFacts(
            is_acknowledged=True,
            because="the items and the cursor are stored with the events, or after them",
            key=key,
            findings=tuple(findings),
        )

    def make_producer(self) -> HttpSharedStreamProducer:
        return HttpSharedStreamProducer(
            self._polled(), settings=self._settings(), connection=self.connection
        )

    def _polled(self) -> Polled:
        cursor = self.cursor or {}
        return Polled(
            url=self.url,
            poke_interval=self.poke_interval,
            items=self.items,
            item_key=self.item_key,
            cursor_path=cursor.get("path"),
            cursor_param=cursor.get("param"),
            first="skip" if self.first == "skip" else "all",
        )

    def _settings(self) -> HttpSettings:
        # Imported here: parsing a DAG file needs no settings, and no pydantic.
        from producers.http.settings import HttpSettings

        return HttpSettings.load(self.connection)


def _url(value: Any) -> str:
    url = text_argument(value, "url")
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (raises ValueError for an invalid port)
    except ValueError as error:
        raise DagError(f"url is no URL: {error}") from error
    if parts.scheme not in ("", "http", "https") or (parts.scheme and not parts.hostname):
        raise DagError(f"url must begin with http:// or https://, or be a path, not {url!r}")
    if parts.username is not None or parts.password is not None:
        raise DagError(
            "url has a user or a password in it",
            hint="put a token or an Authorization header into the connection, as env:NAME or file:PATH",
        )
    return url


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise DagError(f"poke_interval must be a number of seconds above 0, not {value!r}")
    return float(value)


def _path(value: Any, what: str) -> str | None:
    if value is None:
        return None
    path = text_argument(value, what)
    compile_path(path, {})
    return path


def _cursor(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or set(value) != {"path", "param"}:
        raise DagError(f'cursor must be {{"path": …, "param": …}}, not {value!r}')
    compile_path(value["path"], {})
    return {"path": value["path"], "param": text_argument(value["param"], "cursor's param")}
