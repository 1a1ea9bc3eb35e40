"""Which saved entry belongs to a device, whether it may be used, and what is written back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from swapd.config import DeviceConfig, OwnerConfig
from swapd.pressure.cache import MAX_ENTRIES, Entry, encode_profile, read_profile
from swapd.pressure.reading import PROFILES, Profile, ProfileState


class NotRestored(StrEnum):
    """Why nothing was restored, in the order in which they are told (R104, D18)."""

    INDEX_SELECTOR = "index selector not cached"
    NO_ENTRY = "no saved entry"
    IDENTITY = "GPU identity mismatch"
    FIXED = "fixed mode; saved calibration kept"
    IGNORE_LIST = "ignore list changed"
    NOT_COMPLETED = "no completed calibration saved"
    INVALID = "saved calibration invalid"


class Restored(NamedTuple):
    """What a device gets back: at least one profile."""

    profiles: Mapping[Profile, ProfileState]
    invalid: tuple[Profile, ...]

    @property
    def migrated(self) -> tuple[Profile, ...]:
        """Profiles that came from an older cache and still mature (R105)."""
        return tuple(name for name, state in self.profiles.items() if state.maturing_from_pct is not None)


def identity(device: DeviceConfig) -> str | None:
    """Under what a device's learning is kept; None: it is not (R91), for an index names no card.

    A GPU's UUID alone, whatever bus it sits on (R85); for `cpu` its cores, which are what was observed.
    """
    if device.kind == "cpu":
        return "cpu:" + (",".join(map(str, sorted(set(device.cores)))) or "all")
    if device.selector is None or device.selector.isdecimal():
        return None
    return device.selector


def same_uuid(one: str, other: str) -> bool:
    """D22."""
    return one.casefold() == other.casefold()


def same_ignore_list(one: Iterable[str], other: Iterable[str]) -> bool:
    """R84: without case, order or repeats."""
    return {name.casefold() for name in one} == {name.casefold() for name in other}


def entries_of(uuid: str, entries: Iterable[Entry]) -> list[Entry]:
    """All entries of one card: more than one only where old files told two addresses of it apart."""
    return [entry for entry in entries if same_uuid(entry.uuid, uuid)]


def entry_of(uuid: str, entries: Iterable[Entry], pci: str | None = None) -> Entry | None:
    """Choose between the entries of one card (D15).

    The one at the card's address; else the one with more learning; else the last: the layouts carry no
    date, and older versions appended.
    """
    found = entries_of(uuid, entries)
    here = [entry for entry in found if pci is not None and _same_address(entry.pci, pci)]
    best: Entry | None = None
    for entry in here or found:
        if best is None or _learned(entry) >= _learned(best):
            best = entry
    return best


def _same_address(one: str | None, other: str) -> bool:
    return one is not None and one.casefold() == other.casefold()


def _learned(entry: Entry) -> tuple[float, int]:
    states = [state for raw in entry.profiles.values() if (state := read_profile(raw)) is not None]
    return sum(state.learned_s for state in states), len(states)


def restore(
    device: DeviceConfig, owner: OwnerConfig, entries: Sequence[Entry], pci: str | None = None
) -> Restored | NotRestored:
    """Say what of the saved entries a device gets back under the settings in force (R83-R86)."""
    uuid = identity(device)
    if uuid is None:
        return NotRestored.INDEX_SELECTOR
    entry = entry_of(uuid, entries, pci)
    if entry is None:
        named = any(each.resource == device.name for each in entries)
        return NotRestored.IDENTITY if named else NotRestored.NO_ENTRY
    if owner.gpu_pressure.mode == "fixed":
        return NotRestored.FIXED
    if not same_ignore_list(entry.ignore, owner.ignore):
        return NotRestored.IGNORE_LIST
    read = {name: read_profile(entry.profiles[name]) for name in PROFILES if name in entry.profiles}
    usable = {name: state for name, state in read.items() if state is not None and state.calibrated}
    invalid = tuple(name for name, state in read.items() if state is None)
    if usable:
        return Restored(usable, invalid)
    return NotRestored.INVALID if invalid else NotRestored.NOT_COMPLETED


def entry_for(
    device: DeviceConfig, owner: OwnerConfig, completed: Mapping[Profile, ProfileState]
) -> Entry | None:
    """What to save of a device: completed profiles only (R90); None where there is nothing to save."""
    uuid = identity(device)
    profiles = {
        name: encode_profile(completed[name])
        for name in PROFILES
        if name in completed and completed[name].calibrated
    }
    if uuid is None or not profiles:
        return None
    return Entry(device.name, uuid, owner.ignore, profiles)


def merged(own: Sequence[Entry], before: Sequence[Entry]) -> tuple[Entry, ...]:
    """What the next file holds: our devices first, then what others left there (R94, R117).

    Whoever was written last stands first, so that where there are over `MAX_ENTRIES` the cards that have
    been away longest are forgotten (D17). A card has one entry, under its UUID alone (R86).
    """
    kept = list(own)
    for entry in before:
        if not entries_of(entry.uuid, kept):
            chosen = entry_of(entry.uuid, before)
            assert chosen is not None
            kept.append(chosen._replace(pci=None))
    return tuple(kept[: max(len(own), MAX_ENTRIES)])
