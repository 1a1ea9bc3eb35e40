"""A device gets back what was saved of it, and of nothing else."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from swapd.config import DeviceConfig
from swapd.pressure.cache import MAX_ENTRIES, Entry, decode_cache, encode_cache
from swapd.pressure.restoring import (
    NotRestored,
    Restored,
    entry_for,
    entry_of,
    identity,
    merged,
    restore,
    same_ignore_list,
)
from tests.pressure.saved import CARD, FIXTURES, GPU0, GPU1, OTHER, PCI, SOUND, entry, owner, state

OWNER = owner("obs")
CORRUPT = b'{"calibrated":true}'
UNFINISHED = state(calibrated=False)


def test_a_saved_card_is_restored() -> None:
    """R83, R26: as it was."""
    found = restore(GPU0, OWNER, [entry(unlocked=SOUND, locked=state(threshold_pct=25.0))])
    assert found == Restored({"locked": state(threshold_pct=25.0), "unlocked": SOUND}, ())


@pytest.mark.parametrize(
    ("device", "entries", "settings", "reason"),
    [
        (DeviceConfig("gpu0", selector="0"), [entry(unlocked=SOUND)], {}, "index selector not cached"),
        (DeviceConfig("gpu0"), [entry(unlocked=SOUND)], {}, "index selector not cached"),
        (GPU0, [], {}, "no saved entry"),
        (GPU0, [entry("gpu1", OTHER, unlocked=SOUND)], {}, "no saved entry"),
        (GPU0, [entry("gpu0", OTHER, unlocked=SOUND)], {}, "GPU identity mismatch"),
        (GPU0, [entry(unlocked=SOUND)], {"mode": "fixed"}, "fixed mode; saved calibration kept"),
        (GPU0, [entry(ignore=("obs", "x"), unlocked=SOUND)], {}, "ignore list changed"),
        (GPU0, [entry(ignore=(), unlocked=SOUND)], {}, "ignore list changed"),
        (GPU0, [entry()], {}, "no completed calibration saved"),
        (GPU0, [entry(unlocked=UNFINISHED)], {}, "no completed calibration saved"),
        (GPU0, [entry(unlocked=CORRUPT)], {}, "saved calibration invalid"),
        (GPU0, [entry(unlocked=CORRUPT, locked=b"null")], {}, "saved calibration invalid"),
        (GPU0, [entry(unlocked=CORRUPT, locked=UNFINISHED)], {}, "saved calibration invalid"),
    ],
)
def test_why_nothing_was_restored(
    device: DeviceConfig, entries: list[Entry], settings: dict[str, Any], reason: str
) -> None:
    """R104, R91, D28, D29: the exact words."""
    found = restore(device, owner("obs", **settings), entries)
    assert isinstance(found, NotRestored)
    assert str(found) == reason


def test_of_several_reasons_the_first_in_order_is_told() -> None:
    """R104, D18: the list's order; each line below takes away what the line before was told for."""
    fixed = owner("other", mode="fixed", threshold_pct=50.0)
    by_index = DeviceConfig("gpu0", selector="0")
    foreign, own = entry("gpu0", OTHER, unlocked=CORRUPT), entry(unlocked=UNFINISHED)
    told = [
        restore(by_index, fixed, [foreign]),
        restore(GPU0, fixed, []),
        restore(GPU0, fixed, [foreign]),
        restore(GPU0, fixed, [own]),
        restore(GPU0, owner("other"), [own]),
        restore(GPU0, OWNER, [own]),
        restore(GPU0, OWNER, [entry(unlocked=CORRUPT)]),
    ]
    assert told == list(NotRestored)
    assert [str(reason) for reason in NotRestored] == [
        "index selector not cached",
        "no saved entry",
        "GPU identity mismatch",
        "fixed mode; saved calibration kept",
        "ignore list changed",
        "no completed calibration saved",
        "saved calibration invalid",
    ]


def test_an_entry_under_the_devices_name_is_no_mismatch_where_its_card_has_one_too() -> None:
    """D18: the card counts, not the name."""
    entries = [entry("gpu0", OTHER, unlocked=CORRUPT), entry("old name", CARD, unlocked=SOUND)]
    assert isinstance(restore(GPU0, OWNER, entries), Restored)


def test_one_usable_profile_is_restored_and_the_other_named() -> None:
    """D28, R105."""
    assert restore(GPU0, OWNER, [entry(unlocked=SOUND, locked=CORRUPT)]) == Restored(
        {"unlocked": SOUND}, ("locked",)
    )
    assert restore(GPU0, OWNER, [entry(unlocked=CORRUPT, locked=SOUND)]) == Restored(
        {"locked": SOUND}, ("unlocked",)
    )
    assert restore(GPU0, OWNER, [entry(unlocked=UNFINISHED, locked=SOUND)]) == Restored({"locked": SOUND}, ())


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (["A.exe", "b"], ["B", "a.EXE", "b"], True),
        ([], [], True),
        (["ß"], ["SS"], True),
        (["a"], [], False),
        (["a"], ["a", "c"], False),
        (["a.exe"], ["a"], False),
        (["a "], ["a"], False),
    ],
)
def test_ignore_lists_are_compared_without_case_order_or_repeats(
    one: list[str], other: list[str], same: bool
) -> None:
    """R84."""
    assert same_ignore_list(one, other) is same
    assert same_ignore_list(other, one) is same
    found = restore(GPU0, owner(*one), [entry(ignore=tuple(other), unlocked=SOUND)])
    assert isinstance(found, Restored) is same


def test_a_uuid_is_the_same_in_any_case_and_no_other_is() -> None:
    """D22, R83."""
    assert isinstance(restore(GPU0, OWNER, [entry(uuid=CARD.upper(), unlocked=SOUND)]), Restored)
    assert restore(GPU0, OWNER, [entry("x", CARD[:-1], unlocked=SOUND)]) is NotRestored.NO_ENTRY


@pytest.mark.parametrize("name", ["schema2.json", "schema3.json"])
@pytest.mark.parametrize("address", [PCI, "00000000:07:00.0", None])
def test_a_card_that_has_moved_to_another_bus_is_restored(name: str, address: str | None) -> None:
    """R85, R86, R109, R110."""
    settings = OWNER.gpu_pressure
    entries = decode_cache((FIXTURES / name).read_bytes(), settings)
    found = restore(GPU0, OWNER, entries, address)
    assert isinstance(found, Restored)
    assert found.profiles["unlocked"] == state(
        threshold_pct=33.0, learned_samples=0, learned_s=0.0, maturing_from_pct=33.0, bins=()
    )


def test_what_came_from_an_older_cache_is_named_while_it_matures() -> None:
    """R105, R116."""
    maturing = state(maturing_from_pct=33.0)
    found = restore(GPU0, OWNER, [entry(locked=SOUND, unlocked=maturing)])
    assert isinstance(found, Restored)
    assert found.migrated == ("unlocked",)
    assert Restored({"locked": maturing, "unlocked": maturing}, ()).migrated == ("locked", "unlocked")


@pytest.mark.parametrize(
    ("address", "threshold"),
    [("0000:07:00.0", 30.0), ("0000:0A:00.0", 36.0), ("0000:09:00.0", 36.0), (None, 36.0)],
)
def test_of_two_entries_of_one_card_the_one_at_its_address_is_taken(
    address: str | None, threshold: float
) -> None:
    """D15: else the one with more learning."""
    here = entry(pci="0000:07:00.0", unlocked=state(threshold_pct=30.0, learned_s=10.0))
    more = entry(pci="0000:0a:00.0", unlocked=state(threshold_pct=36.0, learned_s=20.0))
    for entries in itertools.permutations([here, more]):
        found = restore(GPU0, OWNER, entries, address)
        assert isinstance(found, Restored)
        assert found.profiles["unlocked"].threshold_pct == threshold


def test_of_two_that_learned_as_long_the_fuller_and_then_the_later_is_taken() -> None:
    """D15."""
    one, two = entry("one", unlocked=SOUND), entry("two", unlocked=SOUND)
    assert entry_of(CARD, [one, two]) is two
    assert entry_of(CARD, [two, one]) is one
    fuller = entry("full", unlocked=SOUND, locked=state(learned_s=0.0))
    assert entry_of(CARD, [fuller, one]) is fuller
    assert entry_of(CARD, [one, entry("bad", unlocked=CORRUPT)]) is one
    assert entry_of(OTHER, [one]) is None


@pytest.mark.parametrize(
    ("device", "known_as"),
    [
        (GPU0, CARD),
        (DeviceConfig("g", selector="0"), None),
        (DeviceConfig("g", selector="12"), None),
        (DeviceConfig("g"), None),
        (DeviceConfig("c", kind="cpu", cores=(3, 1, 2)), "cpu:1,2,3"),
        (DeviceConfig("c", kind="cpu", cores=(10, 9, 9)), "cpu:9,10"),
        (DeviceConfig("c", kind="cpu"), "cpu:all"),
    ],
)
def test_what_a_device_is_known_by(device: DeviceConfig, known_as: str | None) -> None:
    """R91, R85: never by an index, nor by an address."""
    assert identity(device) == known_as


@pytest.mark.parametrize(
    "setting",
    [
        {"learn_quantile": 0.5},
        {"learn_half_life_h": 1.0},
        {"raise_pct_per_h": 9.0},
        {"margin_pct": 5.0},
        {"floor_pct": 38.0},
        {"cap_pct": 30.0},
        {"warmup_samples": 100_000},
        {"poll_ms": 1000, "sustain_s": 99.0, "release_s": 1.0},
        {"mode": "adaptive"},
    ],
)
def test_no_setting_but_card_and_ignore_list_decides_whether_learning_is_kept(
    setting: dict[str, Any],
) -> None:
    """R87, R33, R78."""
    found = restore(GPU0, owner("obs", **setting), [entry(unlocked=SOUND)])
    assert found == Restored({"unlocked": SOUND}, ())


def test_borrower_ports_do_not_decide_either() -> None:
    """R87."""
    import msgspec

    changed = msgspec.structs.replace(OWNER, borrower_ports=(8001,), always=("game",))
    assert isinstance(restore(GPU0, changed, [entry(unlocked=SOUND)]), Restored)


# --- what is written --------------------------------------------------------------------------------------


def test_a_device_is_saved_under_its_uuid_alone_with_the_ignore_list_of_now() -> None:
    """R82, R86, R90."""
    made = entry_for(GPU0, owner("Obs", "b"), {"unlocked": SOUND})
    assert made == entry("gpu0", CARD, ("Obs", "b"), unlocked=SOUND)
    assert made is not None
    assert b"pci" not in encode_cache([made])


def test_unfinished_profiles_leave_no_trace() -> None:
    """R90."""
    made = entry_for(GPU0, OWNER, {"locked": UNFINISHED, "unlocked": SOUND})
    assert made is not None
    assert list(made.profiles) == ["unlocked"]
    assert entry_for(GPU0, OWNER, {"locked": UNFINISHED}) is None
    assert entry_for(GPU0, OWNER, {}) is None


def test_a_device_by_index_is_not_saved() -> None:
    """R91."""
    assert entry_for(DeviceConfig("gpu0", selector="0"), OWNER, {"unlocked": SOUND}) is None


def test_cards_that_are_not_here_keep_their_entries() -> None:
    """R94, D17: as they were, even what cannot be read; ours come first."""
    own = entry(unlocked=SOUND)
    away = [entry("gpu1", OTHER, unlocked=CORRUPT), entry("gpu2", "GPU-x", ("y",), locked=SOUND)]
    assert merged([own], [away[0], entry("old", CARD.upper(), locked=SOUND), away[1]]) == (own, *away)
    assert merged([], away) == tuple(away)


def test_what_an_old_file_kept_twice_of_one_card_is_kept_once() -> None:
    """R86, D15."""
    twice = [
        entry(uuid=OTHER, pci="1", unlocked=SOUND),
        entry(uuid=OTHER.upper(), pci="2", unlocked=SOUND),
    ]
    assert merged([], twice) == (entry(uuid=OTHER.upper(), unlocked=SOUND),)


def test_the_cards_that_have_been_away_longest_are_forgotten() -> None:
    """D17: 32 entries, but all of our own."""
    assert MAX_ENTRIES == 32
    away = [entry(f"g{n}", f"GPU-{n}", unlocked=SOUND) for n in range(40)]
    own = entry_for(GPU1, OWNER, {"unlocked": SOUND})
    assert own is not None
    assert merged([own], away) == (own, *away[:31])
    assert merged([], away) == tuple(away[:32])
    assert merged(away, [own]) == tuple(away)
