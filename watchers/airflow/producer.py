"""Makes an Airflow producer usable as a producer of this runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Sequence
from typing import Any

from triggerer.abc import AdvanceItem, SharedStreamProducer
from watchers.airflow.bridge import Bridge
from watchers.airflow.iterating import pulling
from watchers.airflow.threads import StreamThread


class AirflowProducer(SharedStreamProducer):
    """Passes calls on to an Airflow producer, with outcomes as Airflow's `AdvanceOutcome`.

    Airflow's own producers have no idempotency keys, so a redelivered message creates its asset events again. A
    producer can prevent this with a method `get_idempotency_key`.
    """

    def __init__(self, producer: Any, airflow: Bridge) -> None:
        self._producer = producer
        self._airflow = airflow
        self._thread = StreamThread()
        self._identify = getattr(producer, "get_idempotency_key", None)

    @property
    def identifies(self) -> bool:
        """True if the producer has idempotency keys, so that a redelivered message makes no second event."""
        return self._identify is not None

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        async with pulling(self._producer.open_stream(), self._thread) as pairs:
            async for event, payload in pairs:
                yield event, payload

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        make_item, make_outcome = self._airflow.AdvanceItem, self._airflow.AdvanceOutcome
        items = [
            make_item(
                payload,
                make_outcome(acked=given.acked, failed=given.failed, rejected=given.rejected),
            )
            for payload, given in batch
        ]
        with self._thread.used():
            await self._producer.advance(items)

    def get_advance_lane(self, broker_payload: Any) -> Hashable:
        lane: Hashable = self._producer.get_advance_lane(broker_payload)
        return lane

    def get_idempotency_key(self, broker_payload: Any) -> str | None:
        key: str | None = self._identify(broker_payload) if self._identify is not None else None
        return key

    async def aclose(self) -> None:
        try:
            with self._thread.used():
                await self._producer.aclose()
        finally:
            self._thread.close()
