"""The pressure cache as text: layouts of schemas 2, 3 and 4, and what a saved profile must be. Pure.

    schema 4   {"schema":4,"gpus":[{"resource":…,"uuid":…,"ignore":[…],"profiles":{"unlocked":{…}}}]}
    schema 3   {"schema":3,"gpus":[{"uuid":…,"pci":…,"ignore":[…],"baselines":{"unlocked":13.0}}]}
    schema 2   {"schema":2,"gpus":{"<uuid>@<pci>":{"ignore":[…],"unlocked":13.0}}}

Rules of this file:

- Only schema 4 is written; an older file is turned into it while it is read, with the settings then in
  force, so that whatever comes after knows one form (R109, R117).
- A mistake in the layout makes the file invalid (R107). A mistake inside one profile concerns that profile
  alone: profiles stay text until somebody asks for theirs, and a card that is not here keeps its own as
  they were (R94).
- Totals are never stored: they follow from the bins (O9).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from swapd.config import PressureConfig
from swapd.pressure.bounds import target_pct
from swapd.pressure.histogram import BINS
from swapd.pressure.reading import Profile, ProfileState

SCHEMA: Final = 4
CACHE_LIMIT_BYTES: Final = 1 << 20
"""A file of exactly this size is still read (D19)."""
MAX_ENTRIES: Final = 32
"""Cards in one file, so that it stays far below the limit (D17)."""
WEIGHT_DIGITS: Final = 7
"""Significant digits of a saved weight: two profiles with every bin filled stay under 8 KiB (R92)."""

CacheState = Literal["unreadable", "too large", "invalid"]
T = TypeVar("T")


class CacheError(Exception):
    """The cache file as a whole cannot be used (R107); `state` is how it is named, `reason` says why."""

    def __init__(self, state: CacheState, reason: str) -> None:
        self.state: Final = state
        self.reason: Final = reason
        super().__init__(reason)


class Entry(NamedTuple):
    """One saved card. `profiles` are JSON texts, checked when they are used (`read_profile`)."""

    resource: str
    """The device's name in the configuration; empty in what came from schemas 2 and 3."""
    uuid: str
    ignore: tuple[str, ...]
    profiles: Mapping[Profile, bytes]
    pci: str | None = None
    """Where the card was; only schemas 2 and 3 tell, and only to choose between two entries (D15)."""


class _Exact(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a file: what a schema does not know makes it another schema."""


class _Saved(_Exact):
    calibrated: bool
    threshold_pct: float
    learned_samples: int
    learned_s: float
    maturing_from_pct: float | None
    bins: tuple[tuple[int, float], ...]


class _Card(_Exact):
    resource: str
    uuid: str
    ignore: tuple[str, ...]
    profiles: dict[Profile, msgspec.Raw]


class _File4(_Exact):
    schema: int
    gpus: tuple[_Card, ...]


class _Card3(_Exact):
    uuid: str
    pci: str
    ignore: tuple[str, ...]
    baselines: dict[Profile, msgspec.Raw]


class _File3(_Exact):
    schema: int
    gpus: tuple[_Card3, ...]


class _Card2(_Exact):
    ignore: tuple[str, ...]
    locked: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    unlocked: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _File2(_Exact):
    schema: int
    gpus: dict[str, _Card2]


class _Head(msgspec.Struct):
    """All that every schema has in common."""

    schema: int


def decode_cache(data: bytes, pressure: PressureConfig) -> tuple[Entry, ...]:
    """Read a cache file of any known schema. Raises `CacheError`, too large or invalid (R107)."""
    if len(data) > CACHE_LIMIT_BYTES:
        raise CacheError("too large", f"it has over {CACHE_LIMIT_BYTES} bytes")
    match schema := _decode(data, _Head).schema:
        case 4:
            return tuple(_entry(card) for card in _decode(data, _File4).gpus)
        case 3:
            return tuple(_entry3(card, pressure) for card in _decode(data, _File3).gpus)
        case 2:
            cards = _decode(data, _File2).gpus
            return tuple(_entry2(key, card, pressure) for key, card in cards.items())
        case _:
            # R120
            raise CacheError("invalid", f"schema {schema} is not one that this version reads")


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # The texts of these errors name keys and types of the layout, never a value.
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise CacheError("invalid", reason) from None


def _compact(raw: msgspec.Raw) -> bytes:
    # A file that a person has indented comes back compact (R92).
    return msgspec.json.format(bytes(raw), indent=-1)


def _entry(card: _Card) -> Entry:
    profiles = {profile: _compact(raw) for profile, raw in card.profiles.items()}
    return Entry(card.resource, card.uuid, card.ignore, profiles)


def _entry3(card: _Card3, pressure: PressureConfig) -> Entry:
    return Entry("", card.uuid, card.ignore, _upgraded(card.baselines, pressure), card.pci)


def _entry2(key: str, card: _Card2, pressure: PressureConfig) -> Entry:
    uuid, _, pci = key.partition("@")
    found: dict[Profile, msgspec.Raw] = {}
    if isinstance(card.locked, msgspec.Raw):
        found["locked"] = card.locked
    if isinstance(card.unlocked, msgspec.Raw):
        found["unlocked"] = card.unlocked
    return Entry("", uuid, card.ignore, _upgraded(found, pressure), pci or None)


# --- upgrade ----------------------------------------------------------------------------------------------


def _upgraded(baselines: Mapping[Profile, msgspec.Raw], pressure: PressureConfig) -> dict[Profile, bytes]:
    """R118: a profile that the old file does not have stays absent."""
    return {profile: _upgraded_profile(raw, pressure) for profile, raw in baselines.items()}


def _upgraded_profile(raw: msgspec.Raw, pressure: PressureConfig) -> bytes:
    try:
        baseline = msgspec.json.decode(raw, type=float)
    except msgspec.DecodeError:
        baseline = math.nan
    if not 0.0 <= baseline <= 100.0:
        # No number, or none that could be one: as it is, it is no profile, and is told of as invalid (R105).
        return _compact(raw)
    return encode_profile(starting_state(baseline, pressure))


def starting_state(baseline_pct: float, pressure: PressureConfig) -> ProfileState:
    """Make of an old frozen baseline a calibrated profile that has yet to mature (R109-R111).

    Nothing is invented: it has learned nothing, and what it starts from is not to be lowered before it has.
    """
    start = target_pct(pressure, baseline_pct)
    return ProfileState(True, start, 0, 0.0, start, ())


# --- one profile ------------------------------------------------------------------------------------------


def read_profile(raw: bytes) -> ProfileState | None:
    """Take a saved profile, or None where it cannot be trusted (R108)."""
    try:
        saved = msgspec.json.decode(raw, type=_Saved)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    state = ProfileState(
        saved.calibrated,
        saved.threshold_pct,
        saved.learned_samples,
        saved.learned_s,
        saved.maturing_from_pct,
        saved.bins,
    )
    return state if _is_sound(state) else None


def _is_sound(state: ProfileState) -> bool:
    """R108. What is not finite has no place in JSON; the sum of what is may still not be."""
    indexes = [index for index, _ in state.bins]
    total = sum(weight for _, weight in state.bins)
    return (
        all(0 <= index < BINS for index in indexes)
        and all(before < after for before, after in pairwise(indexes))
        and all(weight >= 0.0 for _, weight in state.bins)
        and math.isfinite(total)
        and (total > 0.0 or not state.calibrated or state.maturing_from_pct is not None)
        and _is_share(state.threshold_pct)
        and (state.maturing_from_pct is None or _is_share(state.maturing_from_pct))
        and state.learned_samples >= 0
        and state.learned_s >= 0.0
    )


def _is_share(value: float) -> bool:
    return 0.0 <= value <= 100.0


def encode_profile(state: ProfileState) -> bytes:
    """Write a profile; weights are rounded to `WEIGHT_DIGITS`, all else is exact."""
    bins = tuple((index, float(f"{weight:.{WEIGHT_DIGITS}g}")) for index, weight in state.bins)
    return msgspec.json.encode(_Saved(*state._replace(bins=bins)))


def encode_cache(entries: Iterable[Entry]) -> bytes:
    """Write schema 4, compact (R92, R93)."""
    cards = tuple(
        _Card(
            entry.resource,
            entry.uuid,
            entry.ignore,
            {profile: msgspec.Raw(raw) for profile, raw in entry.profiles.items()},
        )
        for entry in entries
    )
    return msgspec.json.encode(_File4(SCHEMA, cards))
