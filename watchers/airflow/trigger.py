"""Makes an Airflow event trigger usable as a trigger of a watcher."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, ClassVar, Final, Self

from triggerer.abc import AckTimeout, BaseEventTrigger, DeliveryFacts, TriggerEvent
from triggerer.errors import DagError
from watchers.airflow.bridge import Bridge, bridge, check_class, load_class
from watchers.airflow.iterating import pulling
from watchers.airflow.producer import AirflowProducer
from watchers.airflow.threads import StreamThread

_CLASSPATH: Final = "watchers.airflow.AirflowEventTrigger"


class AirflowEventTrigger(BaseEventTrigger):
    """Runs a `BaseEventTrigger` of an Airflow provider package, unchanged, with its producer.

    - Airflow's trigger provides the stream key, the filter and the producer. This runtime does all else: it shares,
      acknowledges, orders and restarts the stream.
    - Hooks find their connections in `[connections.<id>]`.
    - A trigger class of your own, such as a subclass of a provider's trigger, needs a wrapper in the DAGs folder, a
      subclass of `AirflowEventTrigger`::

        class Orders(AirflowEventTrigger):
            wraps = OrdersTrigger  # an Airflow trigger

        AssetWatcher("orders", Orders(OrdersTrigger(topics=["orders"])))

    Args:
        trigger: Airflow's trigger. The service creates the trigger again from the result of its `serialize()`.
    Raises:
        DagError: `trigger` is no event trigger. Or its `serialize()` names a base class, which the service would run
            instead. Or its class is not exactly `wraps`. Or a subclass of `AirflowEventTrigger` does not set `wraps`.
        PluginError: Airflow or the provider package is missing.
    """

    wraps: ClassVar[type[Any] | None] = None
    """The Airflow class that a subclass wraps. Every subclass must set it.

    None, in `AirflowEventTrigger` itself: the trigger can be of any class of a provider package.
    """

    def __new__(
        cls,
        trigger: Any = None,
        *,
        classpath: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Self:
        if cls is not AirflowEventTrigger:
            return super().__new__(cls)
        kind = load_class(_described(trigger)[0] if trigger is not None else classpath or "")
        made: Any = super().__new__(_Acknowledged if bridge().is_acknowledged(kind) else cls)
        return made  # type: ignore[no-any-return]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.wraps is not None and bridge().is_acknowledged(check_class(bridge(), cls.wraps)):
            # Override `create_shared_stream_producer`, because the runtime acknowledges a stream only if the trigger's
            # class overrides this method.
            cls.create_shared_stream_producer = classmethod(_make_producer)  # type: ignore[assignment]

    def __init__(
        self,
        trigger: Any = None,
        *,
        classpath: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        _check_wraps(type(self))
        if trigger is not None:
            classpath, given = _described(trigger)
            arguments = _as_json(given)
        self.classpath = classpath or ""
        self.arguments = dict(arguments or {})
        kind = self.airflow_class({"classpath": self.classpath})
        if trigger is not None:
            _check_same(trigger, kind, wraps=self.wraps)
        self.inner = kind(**_from_json(self.arguments))

    @classmethod
    def airflow_class(cls, kwargs: Mapping[str, Any]) -> type[Any]:
        """Return the class that a trigger with these arguments wraps."""
        return cls.wraps or load_class(kwargs["classpath"])

    def serialize(self) -> tuple[str, dict[str, Any]]:
        if self.wraps is not None:
            cls = type(self)
            return f"{cls.__module__}.{cls.__qualname__}", {"arguments": self.arguments}
        return _CLASSPATH, {"classpath": self.classpath, "arguments": self.arguments}

    def shared_stream_key(self) -> Hashable | None:
        key = self.inner.shared_stream_key()
        return None if key is None else ("airflow", key)

    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        facts = await super().describe_delivery(ask=ask)
        if facts.key is None:
            return facts
        # `AirflowProducer` always has `get_idempotency_key`, so find out whether Airflow's own producer has it.
        producer = _make_producer(type(self), self.serialize()[1])
        try:
            return facts if producer.identifies else replace(facts, key=None)
        finally:
            await producer.aclose()

    async def run(self) -> AsyncIterator[TriggerEvent]:
        thread = StreamThread()
        try:
            async with pulling(self.inner.run(), thread) as events:
                async for event in events:
                    yield TriggerEvent(event.payload)
        finally:
            thread.close()

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        thread = StreamThread()
        opened = cls.airflow_class(kwargs).open_shared_stream(_from_json(kwargs["arguments"]))
        try:
            async with pulling(opened, thread) as events:
                async for event in events:
                    yield event
        finally:
            thread.close()

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        airflow = bridge()
        airflow.open_rejections()
        thread = StreamThread()
        try:
            async with (
                aclosing(_translated(shared_stream, airflow)) as raw,
                pulling(self.inner.filter_shared_stream(raw), thread) as events,
            ):
                async for event in events:
                    yield TriggerEvent(event.payload)
        finally:
            thread.close()

    async def cleanup(self) -> None:
        await self.inner.cleanup()


def _make_producer(cls: type[AirflowEventTrigger], kwargs: dict[str, Any]) -> AirflowProducer:
    kind = cls.airflow_class(kwargs)
    made = kind.create_shared_stream_producer(_from_json(kwargs["arguments"]))
    return AirflowProducer(made, bridge())


class _Acknowledged(AirflowEventTrigger):
    """An `AirflowEventTrigger` whose stream is acknowledged."""

    create_shared_stream_producer = classmethod(_make_producer)


async def _translated(
    shared_stream: AsyncIterator[Any], airflow: Bridge
) -> AsyncGenerator[Any, None]:
    """Yield the stream's events. Raise our ack timeout as Airflow's error, which the filter knows."""
    try:
        async for event in shared_stream:
            yield event
    except AckTimeout as error:
        raise airflow.AckTimeout(str(error)) from error


def _described(trigger: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(trigger, bridge().BaseEventTrigger):
        raise DagError(
            f"{type(trigger).__qualname__} is not a BaseEventTrigger of Airflow",
            hint="a trigger of another kind waits for a condition, and would fire for ever while the condition is true",
        )
    classpath, kwargs = trigger.serialize()
    return classpath, kwargs


def _check_wraps(cls: type[AirflowEventTrigger]) -> None:
    if cls.wraps is None and cls not in (AirflowEventTrigger, _Acknowledged):
        # Without `wraps`, `serialize` names `AirflowEventTrigger`, and the methods of the subclass would silently not
        # run.
        raise DagError(
            f"{cls.__qualname__} would run as {AirflowEventTrigger.__qualname__}",
            hint=f"set `wraps` in {cls.__qualname__} to the class of the Airflow trigger",
        )


def _check_same(trigger: Any, kind: type[Any], *, wraps: type[Any] | None) -> None:
    given = type(trigger)
    if given is not kind and (wraps is not None or issubclass(given, kind)):
        # The service creates the trigger again from its class path. If a subclass inherits `serialize`, this path
        # names the base class. The filter of the base class would then silently run, not the subclass's filter.
        raise DagError(
            f"{given.__qualname__} would run as {kind.__qualname__}",
            hint=f"subclass AirflowEventTrigger with `wraps = {given.__qualname__}`",
        )


def _as_json(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Encode values that JSON does not have (dates, durations, sets) as Airflow does. A tuple becomes a list."""
    return {name: _encoded(value) for name, value in arguments.items()}


def _encoded(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        from airflow.serialization.serialized_objects import BaseSerialization

        return BaseSerialization.serialize(value)


def _from_json(arguments: Mapping[str, Any]) -> dict[str, Any]:
    from airflow.serialization.decoders import smart_decode_trigger_kwargs

    return {name: smart_decode_trigger_kwargs(value) for name, value in arguments.items()}
