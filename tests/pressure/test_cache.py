"""The pressure cache as text says what was learned, in every layout that there was."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.config import PressureConfig
from swapd.pressure.cache import (
    CACHE_LIMIT_BYTES,
    MAX_ENTRIES,
    CacheError,
    decode_cache,
    encode_cache,
    encode_profile,
    read_profile,
    starting_state,
)
from swapd.pressure.reading import ProfileState
from tests.pressure.saved import CARD, FIXTURES, OTHER, PCI, SOUND, entry, state

DEFAULTS = PressureConfig()


def fixture(name: str) -> bytes:
    return (FIXTURES / name).read_bytes()


def profile_json(**changes: Any) -> bytes:
    """A sound profile as somebody else would write it, with some keys changed; None removes one."""
    written: dict[str, Any] = {
        "calibrated": True,
        "threshold_pct": 33.5,
        "learned_samples": 740,
        "learned_s": 3700.0,
        "maturing_from_pct": None,
        "bins": [[26, 12.5], [27, 3.1]],
    }
    return json.dumps(written | changes).encode()


def without(key: str) -> bytes:
    written = json.loads(profile_json())
    del written[key]
    return json.dumps(written).encode()


def weighed(values: list[float]) -> tuple[tuple[int, float], ...]:
    return tuple(enumerate(values))


# --- schema 4 ---------------------------------------------------------------------------------------------


def test_the_layout_of_schema_4_is_read_and_written_as_it_stands() -> None:
    """D39, R82, R93: byte for byte."""
    (found,) = decode_cache(fixture("schema4.json"), DEFAULTS)
    assert (found.resource, found.uuid, found.ignore, found.pci) == ("gpu0", CARD, ("obs",), None)
    assert read_profile(found.profiles["unlocked"]) == SOUND
    assert read_profile(found.profiles["locked"]) == ProfileState(True, 25.0, 61, 300.0, 25.0, ((0, 60.5),))
    assert encode_cache([found]) == fixture("schema4.json")


def test_what_is_written_is_schema_4_and_compact() -> None:
    """R92, R93."""
    text = encode_cache([entry(unlocked=SOUND)])
    assert text.startswith(b'{"schema":4,"gpus":[{"resource":"gpu0",')
    assert b" " not in text
    assert b"\n" not in text


def test_two_full_profiles_take_less_than_8_kib() -> None:
    """R92: whatever the weights, with every bin filled."""
    rng = random.Random(4)
    for magnitude in (1e-7, 1e-3, 1.0, 1e4, 1e-100):
        bins = weighed([magnitude * (1 + rng.random()) for _ in range(200)])
        full = state(bins=bins, threshold_pct=33.333333333333336, learned_s=12345678.912345678)
        assert len(encode_cache([entry(locked=full, unlocked=full)])) < 8 * 1024


def test_as_many_full_cards_as_one_file_holds_stay_under_its_limit() -> None:
    """D17."""
    full = state(bins=weighed([1.2345678e-5] * 200))
    text = encode_cache([entry(uuid=f"{CARD}-{n}", locked=full, unlocked=full) for n in range(MAX_ENTRIES)])
    assert len(text) < CACHE_LIMIT_BYTES / 2


def test_an_indented_file_is_read_and_written_back_compact() -> None:
    """R92: what a person has laid out by hand."""
    indented = json.dumps(json.loads(fixture("schema4.json")), indent=4).encode()
    assert encode_cache(decode_cache(indented, DEFAULTS)) == fixture("schema4.json")


@pytest.mark.parametrize("schema", [1, 5, 0, -4, 40, 4.0, "4", None, True, [4]])
def test_a_file_of_another_schema_is_invalid(schema: object) -> None:
    """R120."""
    with pytest.raises(CacheError) as caught:
        decode_cache(json.dumps({"schema": schema, "gpus": []}).encode(), DEFAULTS)
    assert caught.value.state == "invalid"


def test_an_unknown_schema_is_named() -> None:
    """R120."""
    with pytest.raises(CacheError, match=r"^schema 5 is not one that this version reads$"):
        decode_cache(b'{"schema":5,"gpus":[],"more":1}', DEFAULTS)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"gpus":[]}',
        b'{"schema":4}',
        b'{"schema":4,"gpus":[]',
        b'{"schema":4,"gpus":[]} more',
        b'{"schema":4,"gpus":{}}',
        b'{"schema":4,"gpus":[],"extra":1}',
        b'{"schema":4,"gpus":[{}]}',
        b'{"schema":4,"gpus":[{"resource":"a","uuid":7,"ignore":[],"profiles":{}}]}',
        b'{"schema":4,"gpus":[{"resource":"a","uuid":"b","ignore":"obs","profiles":{}}]}',
        b'{"schema":4,"gpus":[{"resource":"a","uuid":"b","ignore":[],"profiles":{"away":{}}}]}',
        b'{"schema":4,"gpus":[{"resource":"a","uuid":"b","ignore":[],"profiles":{},"pci":"x"}]}',
        b'{"schema":4,"gpus":[{"resource":"\xff","uuid":"b","ignore":[],"profiles":{}}]}',
        b'{"schema":3,"gpus":[{"uuid":"a","ignore":[],"baselines":{}}]}',
        b'{"schema":3,"gpus":{}}',
        b'{"schema":3,"gpus":[],"extra":1}',
        b'{"schema":3,"gpus":[{"uuid":"a","pci":"b","ignore":[],"baselines":{},"extra":1}]}',
        b'{"schema":2,"gpus":{},"extra":1}',
        b'{"schema":2,"gpus":[]}',
        b'{"schema":2,"gpus":{"a@b":{"ignore":[],"away":1.0}}}',
        b'{"schema":2,"gpus":{"a@b":{"unlocked":1.0}}}',
        b"\xff\xfe\x00",
        b'{"schema":4,"x":' + b"[" * 100_000,
    ],
)
def test_a_file_that_is_not_laid_out_as_its_schema_says_is_invalid(text: bytes) -> None:
    """R107, R120."""
    with pytest.raises(CacheError) as caught:
        decode_cache(text, DEFAULTS)
    assert caught.value.state == "invalid"
    assert caught.value.reason


@pytest.mark.parametrize(("size", "accepted"), [(CACHE_LIMIT_BYTES, True), (CACHE_LIMIT_BYTES + 1, False)])
def test_a_file_of_exactly_one_mebibyte_is_the_largest(size: int, accepted: bool) -> None:
    """D19, R107."""
    assert CACHE_LIMIT_BYTES == 1_048_576
    text = fixture("schema4.json").ljust(size)
    assert len(text) == size
    if accepted:
        assert len(decode_cache(text, DEFAULTS)) == 1
        return
    with pytest.raises(CacheError) as caught:
        decode_cache(text, DEFAULTS)
    assert caught.value.state == "too large"
    assert caught.value.reason == "it has over 1048576 bytes"


def test_the_page_says_what_going_back_to_an_earlier_version_costs() -> None:
    """R119."""
    page = (Path(__file__).parents[2] / "docs" / "pressure-cache.md").read_text(encoding="utf-8")
    assert "an earlier version ignores a schema 4 file and calibrates again" in page


def test_the_reason_names_the_place_and_never_a_value() -> None:
    """R107."""
    reasons = {
        b'{"schema":4,"gpus":[{"resource":7}]}': "Expected `str`, got `int` - at `$.gpus[0].resource`",
        b'{"schema":4,"x":' + b"[" * 100_000: "it is nested too deeply",
        b'{"schema":': "Input data was truncated",
    }
    for text, reason in reasons.items():
        with pytest.raises(CacheError) as caught:
            decode_cache(text, DEFAULTS)
        assert (caught.value.reason, str(caught.value)) == (reason, reason)


# --- one profile ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        profile_json(),
        profile_json(bins=[[0, 1.0]]),
        profile_json(bins=[[199, 1.0]]),
        profile_json(bins=[[0, 0.0], [1, 0.5]]),
        profile_json(threshold_pct=0.0),
        profile_json(threshold_pct=100.0),
        profile_json(learned_samples=0, learned_s=0.0),
        profile_json(learned_s=0),
        profile_json(maturing_from_pct=0.0),
        profile_json(maturing_from_pct=100.0),
        profile_json(maturing_from_pct=33.0, bins=[]),
        profile_json(calibrated=False, bins=[]),
    ],
)
def test_a_sound_profile_is_taken(raw: bytes) -> None:
    """R108, at the limits."""
    assert read_profile(raw) is not None


@pytest.mark.parametrize(
    "raw",
    [
        profile_json(bins=[[26, -0.1]]),
        profile_json(bins=[[26, 3.0], [27, -0.001]]),
        profile_json(bins=[[-1, 1.0]]),
        profile_json(bins=[[200, 1.0]]),
        profile_json(bins=[[26, 1.0], [200, 1.0]]),
        profile_json(bins=[[10**30, 1.0]]),
        profile_json(bins=[[27, 1.0], [26, 1.0]]),
        profile_json(bins=[[26, 1.0], [26, 1.0]]),
        profile_json(bins=[[26, 1.0, 2.0]]),
        profile_json(bins=[[26]]),
        profile_json(bins=[["26", 1.0]]),
        profile_json(bins=[[26.0, 1.0]]),
        profile_json(bins={"26": 1.0}),
        profile_json(bins=[]),
        profile_json(bins=[[26, 0.0]]),
        profile_json(bins=[[26, 1e308], [27, 1e308]]),
        profile_json(bins=[[26, math.nan]]),
        profile_json(bins=[[26, math.inf]]),
        profile_json(bins=[[26, -math.inf]]),
        profile_json(threshold_pct=math.nan),
        profile_json(threshold_pct=math.inf),
        profile_json(threshold_pct=-0.001),
        profile_json(threshold_pct=100.001),
        profile_json(threshold_pct=None),
        profile_json(threshold_pct="33"),
        profile_json(maturing_from_pct=-0.001),
        profile_json(maturing_from_pct=100.001),
        profile_json(maturing_from_pct=math.nan),
        profile_json(learned_samples=-1),
        profile_json(learned_samples=1.5),
        profile_json(learned_s=-0.001),
        profile_json(learned_s=math.nan),
        profile_json(calibrated=None),
        profile_json(extra=1),
        *(without(key) for key in ("calibrated", "threshold_pct", "learned_samples", "learned_s")),
        *(without(key) for key in ("maturing_from_pct", "bins")),
        profile_json().replace(b"12.5", b"1e999"),
        b"null",
        b"13.0",
        b"{",
        b"",
        b'{"x":' + b"[" * 100_000,
    ],
)
def test_a_profile_that_cannot_be_true_is_not_taken(raw: bytes) -> None:
    """R108."""
    assert read_profile(raw) is None


def test_all_but_the_weights_is_kept_exactly_and_the_weights_to_seven_digits() -> None:
    """R26, R82, P6: a second time nothing changes any more."""
    exact = state(
        threshold_pct=33.333333333333336,
        learned_s=1234.0000000000002,
        maturing_from_pct=30.000000000000004,
        bins=((0, 1 / 3), (7, 74789.81234567), (199, 45.0)),
    )
    read = read_profile(encode_profile(exact))
    assert read == exact._replace(bins=((0, 0.3333333), (7, 74789.81), (199, 45.0)))
    assert read is not None
    assert encode_profile(read) == encode_profile(exact)


def quantile(bins: tuple[tuple[int, float], ...], share: float) -> float:
    """From scratch: the upper edge of the first bin that reaches the share."""
    total = math.fsum(weight for _, weight in bins)
    reached = 0.0
    for index, weight in bins:
        reached += weight
        if reached >= share * total:
            return (index + 1) / 2
    return (bins[-1][0] + 1) / 2


def test_every_quantile_is_the_same_after_saving_and_loading() -> None:
    """O9, R26: on a grid of a thousandth."""
    rng = random.Random(9)
    bins: dict[int, float] = {}
    for age in range(5000):
        index = min(199, int(rng.expovariate(0.05)))
        bins[index] = bins.get(index, 0.0) + 2.0 ** (-age / 700)
    before = state(bins=tuple(sorted(bins.items())))
    after = read_profile(encode_profile(before))
    assert after is not None
    for step in range(1001):
        assert quantile(after.bins, step / 1000) == quantile(before.bins, step / 1000)


@given(
    st.dictionaries(st.integers(0, 199), st.floats(1e-9, 1e6), min_size=1, max_size=40),
    st.floats(0, 100),
    st.integers(0, 10**9),
    st.floats(0, 1e9),
)
def test_saving_what_was_loaded_changes_nothing(
    bins: dict[int, float], threshold: float, samples: int, seconds: float
) -> None:
    """P6."""
    first = encode_profile(ProfileState(True, threshold, samples, seconds, None, tuple(sorted(bins.items()))))
    read = read_profile(first)
    assert read is not None
    assert (read.threshold_pct, read.learned_samples, read.learned_s) == (threshold, samples, seconds)
    assert encode_profile(read) == first


# --- schemas 2 and 3 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("baseline", "start"),
    [
        *((13.0, 33.0), (3.0, 25.0), (30.0, 40.0), (0.0, 25.0), (5.0, 25.0), (5.5, 25.5), (20.0, 40.0)),
        *((19.5, 39.5), (100.0, 40.0)),
    ],
)
def test_an_old_baseline_becomes_a_threshold_from_which_the_profile_matures(
    baseline: float, start: float
) -> None:
    """R109, R110, R111: calibrated at once, and nothing learned is made up."""
    assert starting_state(baseline, DEFAULTS) == ProfileState(True, start, 0, 0.0, start, ())


@pytest.mark.parametrize(
    ("settings", "start"),
    [
        ({"margin_pct": 5.0}, 25.0),
        ({"margin_pct": 15.0}, 28.0),
        ({"floor_pct": 36.0}, 36.0),
        ({"cap_pct": 30.0}, 30.0),
        ({"cap_pct": 20.0}, 25.0),
        ({"cap_pct": 95.0, "margin_pct": 80.0}, 90.0),
        ({"floor_pct": 95.0, "cap_pct": 99.0}, 95.0),
    ],
)
def test_the_settings_in_force_decide_where_an_old_profile_starts(
    settings: dict[str, float], start: float
) -> None:
    """R109, R35, R36."""
    made = starting_state(13.0, PressureConfig(**settings))  # type: ignore[arg-type]  # all are floats
    assert (made.threshold_pct, made.maturing_from_pct) == (start, start)


def test_schema_3_is_read_and_written_as_schema_4() -> None:
    """D39, R109, R117: the next save has nothing of the old content."""
    (found,) = decode_cache(fixture("schema3.json"), DEFAULTS)
    assert (found.resource, found.uuid, found.ignore, found.pci) == ("", CARD, ("obs",), PCI)
    assert read_profile(found.profiles["unlocked"]) == ProfileState(True, 33.0, 0, 0.0, 33.0, ())
    assert read_profile(found.profiles["locked"]) == ProfileState(True, 25.0, 0, 0.0, 25.0, ())
    written = encode_cache([found])
    assert json.loads(written)["schema"] == 4
    assert b"baseline" not in written
    assert PCI.encode() not in written


def test_schema_2_is_read_by_its_keys() -> None:
    """D39, R86, R109, R118: a profile that it does not have is not made up."""
    (found,) = decode_cache(fixture("schema2.json"), DEFAULTS)
    assert (found.resource, found.uuid, found.ignore, found.pci) == ("", CARD, ("obs",), PCI)
    assert list(found.profiles) == ["unlocked"]
    assert read_profile(found.profiles["unlocked"]) == ProfileState(True, 33.0, 0, 0.0, 33.0, ())


def test_schema_2_may_know_both_profiles_and_no_address() -> None:
    text = f'{{"schema":2,"gpus":{{"{OTHER}":{{"ignore":[],"locked":3,"unlocked":30}}}}}}'.encode()
    (found,) = decode_cache(text, DEFAULTS)
    assert (found.uuid, found.pci) == (OTHER, None)
    thresholds = {name: read_profile(raw) for name, raw in found.profiles.items()}
    assert {name: made and made.threshold_pct for name, made in thresholds.items()} == {
        "locked": 25.0,
        "unlocked": 40.0,
    }


def test_a_profile_that_schema_3_does_not_have_is_not_made_up() -> None:
    """R118."""
    text = fixture("schema3.json").replace(b',"locked":4.5', b"")
    (found,) = decode_cache(text, DEFAULTS)
    assert list(found.profiles) == ["unlocked"]


@pytest.mark.parametrize(("baseline", "start"), [(b"0", 25.0), (b"0.4", 25.0), (b"100", 40.0)])
def test_an_old_baseline_may_be_anything_that_a_reading_can_be(baseline: bytes, start: float) -> None:
    """R108, R109: at the limits."""
    (found,) = decode_cache(fixture("schema3.json").replace(b"13.0", baseline), DEFAULTS)
    made = read_profile(found.profiles["unlocked"])
    assert made is not None
    assert made.threshold_pct == start


@pytest.mark.parametrize("wrong", [b"-0.001", b"100.001", b'"13"', b"null", b"1e999", b"{ }", b"[13.0]"])
def test_an_old_baseline_that_cannot_be_one_makes_its_profile_invalid(wrong: bytes) -> None:
    """R108, R105: the other profile is not touched."""
    text = fixture("schema3.json").replace(b"13.0", wrong)
    (found,) = decode_cache(text, DEFAULTS)
    assert read_profile(found.profiles["unlocked"]) is None
    assert read_profile(found.profiles["locked"]) is not None
    # It can still be written: a card that is not here keeps what it has.
    assert decode_cache(encode_cache([found]), DEFAULTS)[0].profiles == found.profiles
