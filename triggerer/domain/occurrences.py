"""How `domain`, which may not import `triggerer.abc`, knows what may drive a watcher."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any


class ReportsOccurrences(ABC):
    """What an `AssetWatcher` takes; plugin authors inherit it with `triggerer.BaseEventTrigger`."""

    @abstractmethod
    def serialize(self) -> tuple[str, dict[str, Any]]: ...

    @abstractmethod
    def shared_stream_key(self) -> Hashable | None: ...
