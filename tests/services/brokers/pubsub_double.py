"""A Pub/Sub server in this process that follows the rules of Google's service, with faults that a test asks for.

It has features that pstest lacks:

- Ack ids expire with their delivery.
- An exactly-once subscription can refuse single ids.
- Several messages of one ordering key can be outstanding. A redelivery starts at the message that was nacked, and
  continues with the later messages of the key.
- Each stream has its own flow control.

The server follows Google's documentation of subscriptions, exactly-once delivery and ordering. Where the documentation
says nothing, the server behaves in the way that is hardest for a client.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from tests.services.brokers.pubsub_admin import PubSubAdmin, subscription_path, topic_path

PERMANENT = "PERMANENT_FAILURE_INVALID_ACK_ID"
TRANSIENT = "TRANSIENT_FAILURE_UNORDERED_ACK_ID"
_TICK_S = 0.01
_BATCH = 100
_THREADS = 64


@dataclass(eq=False)
class Entry:
    """One message of a subscription."""

    message: Any
    attempts: int = 0
    """How often the message was sent."""
    failures: int = 0
    """How often the message was given back, or its lease expired, as a dead-letter policy counts."""
    ack_id: str = ""
    expires_at: float = 0.0
    stream: _Stream | None = None
    is_acked: bool = False
    is_leased: bool = False
    acks: int = 0

    @property
    def value(self) -> str:
        value: str = self.message.data.decode()
        return value

    @property
    def size(self) -> int:
        return len(self.message.data)


@dataclass(eq=False)
class _Stream:
    deadline_s: int
    max_messages: int
    max_bytes: int
    outstanding: int = 0
    outstanding_bytes: int = 0
    is_closing: bool = False
    broken_with: grpc.StatusCode | None = None


@dataclass(eq=False)
class Subscription:
    """A subscription with the settings of its protobuf, and its entries in the order of publication."""

    proto: Any
    entries: list[Entry] = field(default_factory=list)
    by_ack_id: dict[str, Entry] = field(default_factory=dict)
    streams: list[_Stream] = field(default_factory=list)

    @property
    def acked(self) -> int:
        return sum(entry.is_acked for entry in self.entries)


@dataclass(frozen=True)
class Request:
    """A request that came. Only requests that modify a deadline have `deadline_s`."""

    method: str
    ack_ids: tuple[str, ...]
    deadline_s: int | None
    at: float


class PubSubDouble(PubSubAdmin):
    """The server that `open_pubsub_double` starts. Its methods may be called from any thread."""

    def __init__(self, tls: tuple[Path, Path] | None = None) -> None:
        self._changed = threading.Condition()
        self._numbers = 0
        self.topics: dict[str, list[Subscription]] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.requests: list[Request] = []
        self.counts: Counter[str] = Counter()
        self._refusals: dict[str, deque[grpc.StatusCode]] = {}
        self._always: dict[str, grpc.StatusCode] = {}
        self._id_failures: Callable[[str, Entry], str | None] = lambda _method, _entry: None
        self._stalls: dict[str, threading.Event] = {}
        self.redelivers_acked = True
        """Whether a redelivery of an ordering key includes later messages that were acknowledged, as in the service."""
        self._server = grpc.server(ThreadPoolExecutor(_THREADS))
        self._server.add_generic_rpc_handlers(
            (self._handlers("Subscriber"), self._handlers("Publisher"))
        )
        self.tokens: set[str] | None = None
        """The tokens that are accepted from TLS clients; None: clients need no token."""
        self.seen_tokens: set[str] = set()
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        if tls is not None:
            certificate, key = tls
            pair = (key.read_bytes(), certificate.read_bytes())
            credentials = grpc.ssl_server_credentials([pair])
            self.tls_port = self._server.add_secure_port("127.0.0.1:0", credentials)
        self._server.start()
        super().__init__(f"127.0.0.1:{self.port}")

    def _handlers(self, service: str) -> Any:
        unary: dict[str, Any] = {
            "Subscriber": {
                "Acknowledge": types.AcknowledgeRequest,
                "ModifyAckDeadline": types.ModifyAckDeadlineRequest,
                "CreateSubscription": types.Subscription,
                "GetSubscription": types.GetSubscriptionRequest,
                "DeleteSubscription": types.DeleteSubscriptionRequest,
                "Pull": types.PullRequest,
            },
            "Publisher": {
                "CreateTopic": types.Topic,
                "DeleteTopic": types.DeleteTopicRequest,
                "Publish": types.PublishRequest,
            },
        }[service]
        handlers: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(
                self._handler(name),
                request_deserializer=kind.pb().FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )
            for name, kind in unary.items()
        }
        if service == "Subscriber":
            handlers["StreamingPull"] = grpc.stream_stream_rpc_method_handler(
                self._streaming_pull,
                request_deserializer=types.StreamingPullRequest.pb().FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )
        return grpc.method_handlers_generic_handler(f"google.pubsub.v1.{service}", handlers)

    def _handler(self, name: str) -> Callable[[Any, Any], Any]:
        act = getattr(self, "_on" + re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name))

        def handle(request: Any, context: Any) -> Any:
            self._note(name, request)
            stall = self._stalls.get(name)
            if stall is not None:
                stall.wait(60)
            self._refuse_if_asked(name, context)
            with self._changed:
                answer = act(request, context)
                self._changed.notify_all()
            return answer

        return handle

    def _note(self, method: str, request: Any) -> None:
        with self._changed:
            self.counts[method] += 1
            self.requests.append(
                Request(
                    method,
                    tuple(getattr(request, "ack_ids", ())),
                    getattr(request, "ack_deadline_seconds", None),
                    time.monotonic(),
                )
            )
            self._changed.notify_all()

    def _refuse_if_asked(self, method: str, context: Any) -> None:
        self._check_token(context)
        with self._changed:
            refusals = self._refusals.get(method)
            code = refusals.popleft() if refusals else self._always.get(method)
        if code is not None:
            context.abort(code, "the test wants it so")

    def _check_token(self, context: Any) -> None:
        is_tls = context.auth_context().get("transport_security_type") == [b"ssl"]
        if self.tokens is None or not is_tls:
            return
        given = dict(context.invocation_metadata()).get("authorization", "")
        token = given.removeprefix("Bearer ")
        if token not in self.tokens:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "Request had invalid credentials.")
        self.seen_tokens.add(token)

    # Calls of tests

    def refuse(self, method: str, code: grpc.StatusCode, times: int | None = None) -> None:
        """Answer the next `times` requests of this method with this status; None: all requests, until `accept`."""
        with self._changed:
            if times is None:
                self._always[method] = code
            else:
                self._refusals.setdefault(method, deque()).extend([code] * times)

    def accept(self, method: str) -> None:
        with self._changed:
            self._always.pop(method, None)
            self._refusals.pop(method, None)

    def fail_ids(self, decide: Callable[[str, Entry], str | None]) -> None:
        """Let `decide(method, message)` return why an exactly-once id is refused; None accepts the id."""
        self._id_failures = decide

    @contextmanager
    def stalled(self, method: str) -> Iterator[None]:
        """Answer requests of this method only when the block ends."""
        self._stalls[method] = event = threading.Event()
        try:
            yield
        finally:
            del self._stalls[method]
            event.set()

    def break_streams(self, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> int:
        """End all streams with this status; return their number."""
        with self._changed:
            streams = [one for sub in self.subscriptions.values() for one in sub.streams]
            for stream in streams:
                stream.broken_with = code
            self._changed.notify_all()
        return len(streams)

    def expire(self, name: str) -> None:
        """Let all leases of a subscription end now."""
        with self._changed:
            for entry in self.find(name).entries:
                if entry.is_leased:
                    entry.expires_at = 0.0
            self._changed.notify_all()

    def seek(self, name: str, position: int, key: str = "") -> None:
        """Deliver the messages of an ordering key again, from the message at this index on."""
        with self._changed:
            own = [one for one in self.find(name).entries if one.message.ordering_key == key]
            for number, entry in enumerate(own):
                entry.is_acked = number < position
            self._changed.notify_all()

    def entries(self, name: str, key: str | None = None) -> list[Entry]:
        with self._changed:
            return [
                one
                for one in self.find(name).entries
                if key is None or one.message.ordering_key == key
            ]

    def leased(self, name: str) -> list[str]:
        """Return the values of messages that are delivered and neither acknowledged nor given back."""
        with self._changed:
            self._expire(self.find(name))
            return [one.value for one in self.find(name).entries if one.is_leased]

    def restart_numbers(self) -> None:
        """Give the next message the id 1, as if its topic belonged to another project."""
        self._numbers = 0

    def find(self, name: str) -> Subscription:
        return self.subscriptions[subscription_path(name)]

    def stop(self) -> None:
        self.close()
        for event in self._stalls.values():
            event.set()
        self._server.stop(0).wait(10)

    # Requests

    def _find(self, path: str, context: Any) -> Subscription:
        sub = self.subscriptions.get(path)
        if sub is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Resource not found (resource={path}).")
        assert sub is not None
        return sub

    def _on_create_topic(self, request: Any, context: Any) -> Any:
        self.topics.setdefault(request.name, [])
        return request

    def _on_delete_topic(self, request: Any, context: Any) -> Any:
        for sub in self.topics.pop(request.topic, []):
            sub.proto.topic = "_deleted-topic_"
        return Empty()

    def _on_create_subscription(self, request: Any, context: Any) -> Any:
        self.subscriptions[request.name] = sub = Subscription(request)
        self.topics[request.topic].append(sub)
        return request

    def _on_get_subscription(self, request: Any, context: Any) -> Any:
        return self._find(request.subscription, context).proto

    def _on_delete_subscription(self, request: Any, context: Any) -> Any:
        sub = self._find(request.subscription, context)
        for stream in sub.streams:
            stream.broken_with = grpc.StatusCode.NOT_FOUND
        del self.subscriptions[request.subscription]
        for subs in self.topics.values():
            if sub in subs:
                subs.remove(sub)
        return Empty()

    def _on_publish(self, request: Any, context: Any) -> Any:
        if request.topic not in self.topics:
            context.abort(
                grpc.StatusCode.NOT_FOUND, f"Resource not found (resource={request.topic})."
            )
        answer = types.PublishResponse.pb()()
        for message in request.messages:
            self._numbers += 1
            message.message_id = str(self._numbers)
            message.publish_time.FromNanoseconds(time.time_ns())
            answer.message_ids.append(message.message_id)
            for sub in self.topics[request.topic]:
                copy = type(message)()
                copy.CopyFrom(message)
                sub.entries.append(Entry(copy))
        return answer

    def _on_pull(self, request: Any, context: Any) -> Any:
        sub = self._find(request.subscription, context)
        answer = types.PullResponse.pb()()
        stream = _Stream(sub.proto.ack_deadline_seconds or 10, request.max_messages, 1 << 40)
        answer.received_messages.extend(self._deliver(sub, stream))
        return answer

    def _on_acknowledge(self, request: Any, context: Any) -> Any:
        sub = self._find(request.subscription, context)
        self._check_size(request, context)
        self._expire(sub)
        failures: dict[str, str] = {}
        for ack_id in request.ack_ids:
            entry = self._named(sub, ack_id, "Acknowledge", failures)
            if entry is not None:
                self._release(sub, entry)
                entry.is_acked = True
                entry.acks += 1
        self._report(sub, failures, context)
        return Empty()

    def _on_modify_ack_deadline(self, request: Any, context: Any) -> Any:
        sub = self._find(request.subscription, context)
        self._check_size(request, context)
        self._expire(sub)
        failures: dict[str, str] = {}
        for ack_id in request.ack_ids:
            entry = self._named(sub, ack_id, "ModifyAckDeadline", failures)
            if entry is None:
                continue
            if request.ack_deadline_seconds:
                entry.expires_at = time.monotonic() + request.ack_deadline_seconds
            else:
                self._give_back(sub, entry)
        self._report(sub, failures, context)
        return Empty()

    def _check_size(self, request: Any, context: Any) -> None:
        if len(request.ack_ids) > 2_500 or request.ByteSize() > 524_288:
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "The request is too large: at most 524288 bytes."
            )

    def _named(
        self, sub: Subscription, ack_id: str, method: str, failures: dict[str, str]
    ) -> Entry | None:
        entry = sub.by_ack_id.get(ack_id)
        if entry is not None and sub.proto.enable_exactly_once_delivery:
            failure = self._id_failures(method, entry)
            if failure is not None:
                failures[ack_id] = failure
                return None
        if entry is None:
            failures[ack_id] = PERMANENT
        return entry

    def _report(self, sub: Subscription, failures: dict[str, str], context: Any) -> None:
        """Answer with the failures of single ids. Only exactly-once subscriptions report them."""
        if not failures or not sub.proto.enable_exactly_once_delivery:
            return
        info = ErrorInfo(
            reason="EXACTLY_ONCE_ACKID_FAILURE", domain="pubsub.googleapis.com", metadata=failures
        )
        status = Status(
            code=grpc.StatusCode.FAILED_PRECONDITION.value[0],
            message="Some acknowledgement ids failed.",
        )
        status.details.add().Pack(info)
        self._changed.notify_all()
        context.abort_with_status(rpc_status.to_status(status))

    # Delivering

    def _streaming_pull(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        first = next(requests)
        self._note("StreamingPull", first)
        self._refuse_if_asked("StreamingPull", context)
        stream = _Stream(
            first.stream_ack_deadline_seconds,
            first.max_outstanding_messages or 1 << 30,
            first.max_outstanding_bytes or 1 << 60,
        )
        with self._changed:
            sub = self._find(first.subscription, context)
            sub.streams.append(stream)

        def read() -> None:
            try:
                for _ in requests:
                    pass
            except grpc.RpcError:
                # Cancelled by the client.
                pass
            with self._changed:
                stream.is_closing = True
                self._changed.notify_all()

        reader = threading.Thread(target=read, name="pubsub-double-reader", daemon=True)
        reader.start()
        try:
            while context.is_active():
                with self._changed:
                    if stream.broken_with is not None:
                        context.abort(stream.broken_with, "The stream was broken by the test.")
                    if stream.is_closing:
                        return
                    received = self._deliver(sub, stream)
                    if not received:
                        self._changed.wait(_TICK_S)
                        continue
                answer = types.StreamingPullResponse.pb()()
                answer.received_messages.extend(received)
                properties = answer.subscription_properties
                properties.exactly_once_delivery_enabled = sub.proto.enable_exactly_once_delivery
                properties.message_ordering_enabled = sub.proto.enable_message_ordering
                yield answer
        finally:
            with self._changed:
                if stream in sub.streams:
                    sub.streams.remove(stream)

    def _deliver(self, sub: Subscription, stream: _Stream) -> list[Any]:
        self._expire(sub)
        received: list[Any] = []
        waiting: set[str] = set()
        for entry in sub.entries:
            key = entry.message.ordering_key if sub.proto.enable_message_ordering else ""
            if entry.is_acked or key in waiting:
                continue
            if entry.is_leased:
                if key and entry.stream is not stream:
                    # A key is delivered to one stream at a time.
                    waiting.add(key)
                continue
            if (
                len(received) >= _BATCH
                or stream.outstanding >= stream.max_messages
                or (stream.outstanding and stream.outstanding_bytes >= stream.max_bytes)
            ):
                break
            if self._is_dead(sub, entry):
                continue
            received.append(self._lease(sub, entry, stream))
        return received

    def _is_dead(self, sub: Subscription, entry: Entry) -> bool:
        policy = sub.proto.dead_letter_policy
        if not policy.dead_letter_topic or entry.failures < policy.max_delivery_attempts:
            return False
        entry.is_acked = True
        for other in self.topics[policy.dead_letter_topic]:
            other.entries.append(Entry(entry.message))
        return True

    def _lease(self, sub: Subscription, entry: Entry, stream: _Stream) -> Any:
        entry.attempts += 1
        # The service's ack ids have this length, too.
        entry.ack_id = f"{entry.message.message_id}:{entry.attempts}:".ljust(176, "x")
        entry.expires_at = time.monotonic() + stream.deadline_s
        entry.is_leased = True
        entry.stream = stream
        stream.outstanding += 1
        stream.outstanding_bytes += entry.size
        sub.by_ack_id[entry.ack_id] = entry
        received = types.ReceivedMessage.pb()(ack_id=entry.ack_id, message=entry.message)
        if sub.proto.dead_letter_policy.dead_letter_topic:
            received.delivery_attempt = entry.failures + 1
        return received

    def _release(self, sub: Subscription, entry: Entry) -> None:
        sub.by_ack_id.pop(entry.ack_id, None)
        if entry.is_leased and entry.stream is not None:
            entry.stream.outstanding -= 1
            entry.stream.outstanding_bytes -= entry.size
        entry.is_leased = False

    def _expire(self, sub: Subscription) -> None:
        now = time.monotonic()
        for entry in sub.entries:
            if entry.is_leased and entry.expires_at <= now:
                self._give_back(sub, entry)

    def _give_back(self, sub: Subscription, entry: Entry) -> None:
        """Make an entry available again. In an ordered subscription, this includes the later entries of its key.

        Acknowledged entries stay as they are unless `redelivers_acked` is set.
        """
        self._release(sub, entry)
        entry.failures += 1
        key = entry.message.ordering_key
        if not (key and sub.proto.enable_message_ordering):
            return
        is_behind = False
        for other in sub.entries:
            if other.message.ordering_key != key:
                continue
            if is_behind and (other.is_leased or (other.is_acked and self.redelivers_acked)):
                self._release(sub, other)
                other.is_acked = False
            is_behind = is_behind or other is entry


@contextmanager
def open_pubsub_double(tls: tuple[Path, Path] | None = None) -> Iterator[PubSubDouble]:
    """Run a server without topics until the block ends.

    Args:
        tls: A certificate for localhost and its key. With them, the server also listens with TLS, on `tls_port`.
    """
    server = PubSubDouble(tls)
    try:
        yield server
    finally:
        server.stop()


def values_of(entries: Sequence[Entry]) -> list[str]:
    return [entry.value for entry in entries]


__all__ = [
    "PERMANENT",
    "TRANSIENT",
    "Entry",
    "PubSubDouble",
    "open_pubsub_double",
    "topic_path",
    "values_of",
]
