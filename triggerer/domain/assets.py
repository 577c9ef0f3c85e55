"""Assets, aliases and watchers as DAG authors write them, and their identity."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from triggerer.domain.authoring.occurrences import ReportsOccurrences
from triggerer.domain.authoring.source_locations import SourceLocation, calling_location
from triggerer.domain.uris import check_identifier, normalize_uri
from triggerer.domain.watchers.guarantees import DECLARABLE
from triggerer.errors import DagError

if TYPE_CHECKING:
    from triggerer.domain.conditions import AssetAll, AssetAny


class Combinable:
    """The base of everything that `&` and `|` combine to an asset expression."""

    __slots__ = ()

    # Imported late: `conditions` imports this module.
    def __and__(self, other: object) -> AssetAll:
        from triggerer.domain.conditions import AssetAll

        return AssetAll(self, other) if isinstance(other, Combinable) else NotImplemented

    def __or__(self, other: object) -> AssetAny:
        from triggerer.domain.conditions import AssetAny

        return AssetAny(self, other) if isinstance(other, Combinable) else NotImplemented


@dataclass(frozen=True, slots=True)
class AssetWatcher:
    """A trigger whose events become events of the watcher's asset.

    The asset and `name` identify a watcher. The trigger's arguments may change.

    Args:
        guarantee: The weakest guarantee to accept: "at_least_once" or "effectively_once". If the trigger's guarantee is
            weaker, `triggerer check` reports an error, and the service does not start the trigger. None: accept any
            guarantee.
    Raises:
        DagError: `name` or `guarantee` is invalid, or `trigger` is no `BaseEventTrigger`. A trigger of another kind may
            report a condition. Such a trigger would fire again and again while the condition is true.
    """

    name: str
    trigger: ReportsOccurrences
    _: KW_ONLY
    guarantee: str | None = None

    def __post_init__(self) -> None:
        check_identifier(self.name, "the watcher's name")
        if self.guarantee is not None and self.guarantee not in DECLARABLE:
            known = " or ".join(f'"{one}"' for one in DECLARABLE)
            raise DagError(
                f"watcher {self.name!r}: guarantee must be {known}, not {self.guarantee!r}",
                hint="leave it out to accept any guarantee",
            )
        trigger: object = self.trigger
        if not isinstance(trigger, ReportsOccurrences):
            kind = trigger if isinstance(trigger, type) else type(trigger)
            raise DagError(
                f"watcher {self.name!r}: {kind.__qualname__} is not a BaseEventTrigger",
                hint="pass an instance of a class that inherits triggerer.BaseEventTrigger",
            )


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Asset(Combinable):
    """Data that DAGs wait for or produce. Two assets are equal if both their names and their URIs are equal.

    Args:
        first: The URI, or the name if `uri=` is given as well. If only one of the two is given, it serves as both.
        group: A label for people.
        extra: JSON that describes the asset; not part of its identity.
        watchers: Turn external occurrences into events of this asset. Their names are unique within the asset.
    Raises:
        DagError: The URI (see `triggerer.domain.uris`) or another argument is invalid.
    """

    name: str
    uri: str
    group: str = field(compare=False)
    extra: Mapping[str, Any] = field(compare=False, repr=False)
    watchers: tuple[AssetWatcher, ...] = field(compare=False, repr=False)
    defined_at: SourceLocation | None = field(compare=False, repr=False)

    # The `__eq__` of a dataclass compares the classes too. But an `AssetFunction`, which is a subclass, must equal a
    # plain asset with its name and URI.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Asset):
            return NotImplemented
        return (self.name, self.uri) == (other.name, other.uri)

    def __hash__(self) -> int:
        return hash((self.name, self.uri))

    def __init__(
        self,
        first: str | None = None,
        /,
        *,
        uri: str | None = None,
        name: str | None = None,
        group: str = "asset",
        extra: Mapping[str, Any] | None = None,
        watchers: Iterable[AssetWatcher] = (),
    ) -> None:
        if first is not None:
            if uri is None:
                uri = first
            elif name is None:
                name = first
            else:
                raise DagError(f"Asset({first!r}, uri=…, name=…): one argument too many")
        if uri is None and name is None:
            raise DagError("an asset needs a URI or a name")
        if name is not None:
            check_identifier(name, "the asset's name")
        location = calling_location()
        uri = normalize_uri(name if uri is None else uri, stacklevel=2)
        # Without a name, use the normalized URI and not the given one, which may contain a password.
        self._set(uri if name is None else name, uri, location)
        object.__setattr__(self, "group", check_identifier(group, "the asset's group"))
        object.__setattr__(self, "extra", checked_json(extra or {}, self, "extra"))
        object.__setattr__(self, "watchers", _checked_watchers(watchers, self))

    def _set(self, name: str, uri: str, location: SourceLocation | None) -> None:
        for key, value in (
            ("name", name),
            ("uri", uri),
            ("group", "asset"),
            ("extra", {}),
            ("watchers", ()),
            ("defined_at", location),
        ):
            object.__setattr__(self, key, value)

    @classmethod
    def identified(cls, name: str, uri: str) -> Asset:
        """Return an asset without checking its name and URI, which were checked when the asset was defined."""
        asset = cls.__new__(cls)
        asset._set(name, uri, None)  # noqa: SLF001  (its own class)
        return asset


@dataclass(frozen=True, slots=True)
class AssetAlias(Combinable):
    """A placeholder for assets that are known only at run time, when a task emits events for them through the alias."""

    name: str

    def __post_init__(self) -> None:
        check_identifier(self.name, "the alias's name")


@dataclass(frozen=True, slots=True)
class AssetRef:
    """An asset that a DAG file knows only by name. The run looks up its URI."""

    name: str


@dataclass(frozen=True, slots=True)
class Metadata:
    """An event that a task emits by `yield Metadata(asset, extra)`. With `alias`, the event goes through that alias."""

    asset: Asset
    extra: Mapping[str, Any] | None = None
    alias: AssetAlias | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.asset, Asset):
            raise DagError(f"Metadata needs an Asset, not {self.asset!r}")
        object.__setattr__(self, "extra", {} if self.extra is None else self.extra)


def checked_json(value: object, owner: object, what: str) -> dict[str, Any]:
    """Return a deep copy of a mapping. The copy has only types that JSON has.

    Raises:
        DagError: The value is not a mapping with strings as keys, or JSON cannot represent it. The message names
            `owner` and `what`.
    """
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise DagError(f"{owner!r}: {what} must be a mapping with strings as keys, not {value!r}")
    try:
        copy = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise DagError(f"{owner!r}: {what} cannot be written as JSON: {error}") from error
    assert isinstance(copy, dict)
    return copy


def _checked_watchers(watchers: Iterable[AssetWatcher], asset: Asset) -> tuple[AssetWatcher, ...]:
    taken = tuple(watchers)
    names = set[str]()
    for watcher in taken:
        if not isinstance(watcher, AssetWatcher):
            raise DagError(f"{asset!r}: a watcher must be an AssetWatcher, not {watcher!r}")
        if watcher.name in names:
            raise DagError(f"{asset!r} has two watchers named {watcher.name!r}")
        names.add(watcher.name)
    return taken
