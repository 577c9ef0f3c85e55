"""The type of trigger that an `AssetWatcher` accepts. `domain` must not import `triggerer.abc`, so the type is here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any


class ReportsOccurrences(ABC):
    """The base of `triggerer.BaseEventTrigger`, which plugin authors inherit."""

    @abstractmethod
    def serialize(self) -> tuple[str, dict[str, Any]]: ...

    @abstractmethod
    def shared_stream_key(self) -> Hashable | None: ...
