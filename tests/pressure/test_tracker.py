"""A tracker takes measurements in, says what follows, and remembers them for six hours."""

from __future__ import annotations

import json
import logging
import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing

from swapd.config import DeviceConfig, OwnerConfig
from swapd.device_views import SamplePoint
from swapd.lending.device import LentDevice
from swapd.log import AllowlistFormatter
from swapd.messages.sampler import Measurement
from swapd.pressure import tracker as tracker_module
from swapd.pressure.cache import decode_cache, encode_cache
from swapd.pressure.calibration import DevicePressure
from swapd.pressure.debug_window import DebugWindow
from swapd.pressure.reading import Attendance, Decision, Reading
from swapd.pressure.tracker import CalibrationKeeper, PressureTracker, reading_of
from swapd.store.devices import add_samples, samples
from swapd.store.schema import migrate
from swapd.store.writer import Store
from tests.pressure.saved import CARD, FIXTURES, GPU0, OTHER, PCI, SOUND, config, entry, owner, state

CORRUPT = b"null"


def measured(
    result: Any = "ok", at_s: float = 100.0, reading_pct: float | None = 5.0, **more: Any
) -> Measurement:
    return Measurement("gpu0", result, at_s, reading_pct, **more)


class StoreDouble:
    """Keeps what is posted; a test lets it be written."""

    def __init__(self, db: sqlite3.Connection | None = None) -> None:
        self.db = db
        self.posted: list[tuple[Callable[[Any], Any], Callable[[Any], None]]] = []

    def post(self, op: Callable[[Any], Any], done: Callable[[Any], None]) -> None:
        self.posted.append((op, done))

    def write(self) -> None:
        assert self.db is not None
        for op, done in self.posted:
            done(op(self.db))
        self.posted.clear()

    def fail(self) -> None:
        for _, done in self.posted:
            done(RuntimeError("no disk"))
        self.posted.clear()


class Bench:
    """One device with its tracker, on a cache file in a folder."""

    def __init__(
        self,
        folder: Path,
        *,
        device: DeviceConfig = GPU0,
        owned: OwnerConfig | None = None,
        store: Any = None,
        pressure: bool = True,
    ) -> None:
        self.owned = owner("obs") if owned is None else owned
        self.config = config(device, owned=self.owned, folder=str(folder))
        core = DevicePressure(self.owned.gpu_pressure) if pressure else None
        self.device = LentDevice(device, ("a",), core)
        self.keeper = CalibrationKeeper(self.config, folder / "swapd.toml")
        self.store = StoreDouble() if store is None else store
        self.heard: list[tuple[LentDevice, Measurement, Decision]] = []
        self.now = 1_700_000_000.0
        self.tracker = PressureTracker(
            self.device,
            self.config,
            self.keeper,
            cast(Store, self.store),
            on_decision=lambda *heard: self.heard.append(heard),
            wall=lambda: self.now,
        )


def put(folder: Path, text: bytes) -> None:
    (folder / "swapd-pressure.json").write_bytes(text)
    (folder / "swapd-pressure.json").chmod(0o600)


async def bench(folder: Path, text: bytes | None = None, **options: Any) -> Bench:
    if text is not None:
        put(folder, text)
    made = Bench(folder, **options)
    await made.keeper.load()
    return made


async def started(made: Bench) -> None:
    """Run the tracker to its start, and stop it."""
    async with trio.open_nursery() as nursery:
        await nursery.start(made.tracker.run)
        nursery.cancel_scope.cancel()


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """What the log would hold, through the allowlist: message, level and fields."""
    formatter = AllowlistFormatter()
    shown = [json.loads(formatter.format(record)) for record in caplog.records]
    assert formatter.statistics().fields_dropped == 0
    return [{key: value for key, value in line.items() if key not in ("time", "logger")} for line in shown]


# --- what a measurement is --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "value", "reading"),
    [
        ("ok", 0.0, 0.0),
        ("ok", 100.0, 100.0),
        ("ok", 47.5, 47.5),
        ("ok", 100.001, "invalid"),
        ("ok", -0.001, "invalid"),
        ("ok", math.nan, "invalid"),
        ("ok", None, "invalid"),
        ("first", None, "missing"),
        ("first", 5.0, "missing"),
        ("failed", None, "failed"),
        ("failed", 5.0, "failed"),
        ("invalid", 5.0, "invalid"),
        ("unsupported", None, "failed"),
        ("unsupported", 0.0, "failed"),
        ("asleep", 0.0, "failed"),
    ],
)
def test_what_a_measurement_means_to_what_is_learned(
    result: Any, value: float | None, reading: Reading
) -> None:
    """R22, R130: what was not observed is never a reading, 0 % least of all."""
    assert reading_of(measured(result, reading_pct=value)) == reading


async def test_a_reading_reaches_core_device_and_listener_at_its_own_time(tmp_path: Path) -> None:
    """D38, R59."""
    made = await bench(tmp_path)
    first, second = measured(at_s=100.0), measured(at_s=107.25, reading_pct=9.0)
    made.tracker.take(first, "unlocked")
    made.tracker.take(second, "unlocked")
    assert made.device.measurement is second
    assert made.device.valid_at_s == 107.25
    assert made.device.decision is made.heard[-1][2]
    assert [(device, m) for device, m, _ in made.heard] == [(made.device, first), (made.device, second)]
    decision = made.heard[-1][2]
    assert (decision.t_s, decision.credited_s, decision.reading) == (107.25, 7.25, 9.0)
    assert (decision.profile, decision.learned_samples, decision.learned_s) == ("unlocked", 2, 7.25)
    assert msgspec.to_builtins(made.tracker.statistics()) == {
        "measurements": 2,
        "readings": 2,
        "samples_stored": 0,
        "samples_lost": 0,
    }


@pytest.mark.parametrize("result", ["first", "failed", "invalid", "unsupported", "asleep"])
async def test_a_measurement_without_a_reading_is_shown_and_is_not_valid(tmp_path: Path, result: Any) -> None:
    """R59, R22, R130: nothing is learned, and what was valid gets no younger."""
    made = await bench(tmp_path)
    made.tracker.take(measured(at_s=100.0), "unlocked")
    last = measured(result, at_s=105.0, reading_pct=None, reason="why")
    made.tracker.take(last, "unlocked")
    assert made.device.measurement is last
    assert made.device.valid_at_s == 100.0
    assert made.device.decision is not None
    assert made.device.decision.learned_samples == 1
    assert made.tracker.statistics().readings == 1


async def test_every_measurement_is_counted_by_its_result(tmp_path: Path) -> None:
    """H179: a value that cannot be trusted is `invalid`, whatever its sampler called it."""
    made = await bench(tmp_path)
    for at_s, (result, value) in enumerate((("first", None), ("ok", 5.0), ("ok", 140.0), ("failed", None))):
        made.tracker.take(measured(result, float(at_s), value), "locked")
    made.tracker.missed(5.0, "locked")
    assert made.device.readings == {"first": 1, "ok": 1, "invalid": 1, "failed": 1, "missing": 1}


async def test_attendance_decides_which_profile_learns(tmp_path: Path) -> None:
    """R12, R24."""
    made = await bench(tmp_path)
    seen: list[Attendance] = ["locked", "unlocked", "unknown"]
    for at, attendance in enumerate(seen):
        made.tracker.take(measured(at_s=5.0 * at), attendance)
    assert [decision.profile for _, _, decision in made.heard] == ["locked", "unlocked", None]


@pytest.mark.parametrize(
    ("between", "credited_s"), [("missed", 10.0), ("first", 10.0), ("failed", 0.0), ("asleep", 0.0)]
)
async def test_a_tick_that_was_skipped_is_tolerated_and_one_that_failed_is_not(
    tmp_path: Path, between: Any, credited_s: float
) -> None:
    """R20, R21, D4."""
    made = await bench(tmp_path)
    made.tracker.take(measured(at_s=100.0), "unlocked")
    if between == "missed":
        made.tracker.missed(105.0, "unlocked")
        assert made.device.measurement == measured(at_s=100.0)
        assert made.heard[-1][2].reading == "missing"
    else:
        made.tracker.take(measured(between, at_s=105.0, reading_pct=None), "unlocked")
    made.tracker.take(measured(at_s=110.0), "unlocked")
    assert made.heard[-1][2].credited_s == credited_s
    assert made.device.valid_at_s == 110.0


async def test_where_pressure_is_switched_off_measurements_are_only_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = await bench(tmp_path, pressure=False)
    with caplog.at_level(logging.INFO):
        await started(made)
        made.tracker.take(measured(), "unlocked")
        made.tracker.missed(105.0, "unlocked")
    assert made.device.measurement == measured()
    assert (made.heard, made.device.decision, lines(caplog)) == ([], None, [])


# --- the start --------------------------------------------------------------------------------------------


async def test_a_restored_device_is_told_of_once_and_decides_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """R103, R106, R110: at the start, not a poll."""
    made = await bench(tmp_path, encode_cache([entry(unlocked=SOUND)]))
    with caplog.at_level(logging.INFO):
        await started(made)
        made.tracker.take(measured(), "unlocked")
        await started(made)
        made.tracker.take(measured(at_s=105.0), "unlocked")
    assert lines(caplog) == [
        {"level": "info", "message": "restored validated GPU calibration", "device": "gpu0"}
    ]
    assert made.heard[0][2].calibrated
    assert made.heard[0][2].learned_samples == 741
    assert made.heard[0][2].credited_s == 0.0


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        (None, {"device": DeviceConfig("gpu0", selector="0")}, "index selector not cached"),
        (None, {}, "no saved entry"),
        (encode_cache([entry(uuid=OTHER, unlocked=SOUND)]), {}, "GPU identity mismatch"),
        (
            encode_cache([entry(unlocked=SOUND)]),
            {"owned": owner("obs", mode="fixed", threshold_pct=50.0)},
            "fixed mode; saved calibration kept",
        ),
        (encode_cache([entry(unlocked=SOUND)]), {"owned": owner("x")}, "ignore list changed"),
        (encode_cache([entry()]), {}, "no completed calibration saved"),
        (encode_cache([entry(unlocked=CORRUPT)]), {}, "saved calibration invalid"),
    ],
)
async def test_a_device_that_is_not_restored_is_told_of_once_with_the_reason(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    text: bytes | None,
    options: dict[str, Any],
    reason: str,
) -> None:
    """R104, R106, R91, R76."""
    made = await bench(tmp_path, text, **options)
    with caplog.at_level(logging.INFO):
        await started(made)
        made.tracker.take(measured(), "unlocked")
        await started(made)
    assert lines(caplog) == [
        {
            "level": "info",
            "message": "saved GPU calibration not restored",
            "device": "gpu0",
            "reason": reason,
        }
    ]
    assert made.heard[0][2].learned_samples == (0 if "fixed" in reason else 1)


async def test_the_restored_line_names_what_came_from_an_older_cache_and_what_was_unusable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """R105, D28: the other profile warms up."""
    made = await bench(tmp_path, (FIXTURES / "schema3.json").read_bytes().replace(b"4.5", b'"x"'))
    with caplog.at_level(logging.INFO):
        await started(made)
    assert lines(caplog) == [
        {
            "level": "info",
            "message": "restored validated GPU calibration",
            "device": "gpu0",
            "migrated_legacy_baseline": "unlocked",
            "invalid_profile": "locked",
        }
    ]
    made.tracker.take(measured(), "locked")
    made.tracker.take(measured(at_s=105.0), "unlocked")
    assert [decision.calibrated for _, _, decision in made.heard] == [False, True]
    assert [decision.threshold_pct for _, _, decision in made.heard] == [None, 33.0]


async def test_both_profiles_of_an_older_cache_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """R105."""
    made = await bench(tmp_path, (FIXTURES / "schema3.json").read_bytes())
    with caplog.at_level(logging.INFO):
        await started(made)
    (line,) = lines(caplog)
    assert line["migrated_legacy_baseline"] == "locked,unlocked"
    assert "invalid_profile" not in line


TWO_ADDRESSES = (
    '{"schema":3,"gpus":['
    f'{{"uuid":"{CARD}","pci":"{PCI}","ignore":["obs"],"baselines":{{"unlocked":3.0}}}},'
    f'{{"uuid":"{CARD}","pci":"00000000:07:00.0","ignore":["obs"],"baselines":{{"unlocked":13.0}}}}]}}'
).encode()


@pytest.mark.parametrize(
    ("address", "threshold"),
    [(PCI, 25.0), ("00000000:07:00.0", 33.0), ("00000000:09:00.0", 33.0), (None, 33.0)],
)
async def test_a_card_with_two_old_entries_waits_for_its_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, address: str | None, threshold: float
) -> None:
    """D15, R106: the first measurement that can tell it does."""
    made = await bench(tmp_path, TWO_ADDRESSES)
    with caplog.at_level(logging.INFO):
        await started(made)
        made.tracker.take(measured("failed", at_s=90.0, reading_pct=None), "unlocked")
        made.tracker.missed(95.0, "unlocked")
        assert lines(caplog) == []
        made.tracker.take(measured(pci=address), "unlocked")
    assert [line["message"] for line in lines(caplog)] == [
        "several saved calibrations for one GPU",
        "restored validated GPU calibration",
    ]
    assert made.heard[-1][2].threshold_pct == threshold


async def test_an_address_is_enough_to_go_by(tmp_path: Path) -> None:
    """D15: the driver knows where the card is before it has a reading of it."""
    made = await bench(tmp_path, TWO_ADDRESSES)
    await started(made)
    made.tracker.take(measured("first", reading_pct=None, pci=PCI), "unlocked")
    assert made.heard[-1][2].threshold_pct == 25.0


async def test_statistics_are_a_picture_of_one_moment(tmp_path: Path) -> None:
    made = await bench(tmp_path)
    for picture in (made.tracker.statistics(), made.keeper.statistics()):
        with pytest.raises(AttributeError):
            setattr(picture, picture.__struct_fields__[1], 7)


async def test_what_a_tracker_has_learned_is_saved_by_the_keeper(tmp_path: Path) -> None:
    """R82, R80."""
    made = await bench(tmp_path)
    await started(made)
    for tick in range(60):
        made.tracker.take(measured(at_s=5.0 * tick, reading_pct=12.0), "locked")
    await made.keeper.save()
    (kept,) = decode_cache((tmp_path / "swapd-pressure.json").read_bytes(), made.owned.gpu_pressure)
    assert (kept.resource, kept.uuid, list(kept.profiles)) == ("gpu0", CARD, ["locked"])


async def test_a_headless_machine_keeps_the_profile_that_it_does_not_use(tmp_path: Path) -> None:
    """D34, R26."""
    saved = encode_cache([entry(locked=state(threshold_pct=26.0), unlocked=SOUND)])
    made = await bench(tmp_path, saved)
    made.device.pressure = DevicePressure(made.owned.gpu_pressure, headless=True)
    await started(made)
    await made.keeper.save()
    assert (tmp_path / "swapd-pressure.json").read_bytes() == saved


# --- six hours of samples ---------------------------------------------------------------------------------


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection)
        yield connection


async def test_samples_go_to_the_store_in_batches(
    tmp_path: Path, db: sqlite3.Connection, mock_clock: trio.testing.MockClock
) -> None:
    """R128: posted every 10 s and at the end, one batch at a time, never waited for."""
    store = StoreDouble(db)
    made = await bench(tmp_path, encode_cache([entry(unlocked=SOUND)]), store=store)
    begin = made.now
    async with trio.open_nursery() as nursery:
        await nursery.start(made.tracker.run)
        made.tracker.take(measured(at_s=100.0, reading_pct=40.0), "unlocked")
        made.now += 5.0
        made.tracker.take(measured("failed", at_s=105.0, reading_pct=None), "unlocked")
        mock_clock.jump(9.999)
        await trio.testing.wait_all_tasks_blocked()
        assert store.posted == []
        mock_clock.jump(0.001)
        await trio.testing.wait_all_tasks_blocked()
        assert len(store.posted) == 1
        made.now += 5.0
        made.tracker.missed(110.0, "unknown")
        mock_clock.jump(10.0)
        await trio.testing.wait_all_tasks_blocked()
        assert len(store.posted) == 1
        store.write()
        threshold = made.heard[0][2].threshold_pct
        assert samples(db, "gpu0", 0.0) == [
            SamplePoint(begin, "ok", "unlocked", 40.0, threshold, False),
            SamplePoint(begin + 5.0, "failed", "unlocked", None, threshold, False),
        ]
        nursery.cancel_scope.cancel()
    store.write()
    assert samples(db, "gpu0", begin + 6.0) == [
        SamplePoint(begin + 10.0, "first", "unknown", None, None, False)
    ]
    assert made.tracker.statistics().samples_stored == 3
    assert made.tracker.statistics().samples_lost == 0


async def test_samples_older_than_six_hours_are_forgotten_every_ten_minutes(
    tmp_path: Path, db: sqlite3.Connection, mock_clock: trio.testing.MockClock
) -> None:
    """R128: on both sides of both limits."""
    store = StoreDouble(db)
    made = await bench(tmp_path, store=store)
    begin, six_h = made.now, 6 * 3600.0

    def old(age_s: float) -> SamplePoint:
        return SamplePoint(begin - age_s, "ok", "locked", 1.0, None, False)

    add_samples(db, [("gpu0", old(six_h + 0.5)), ("gpu0", old(six_h)), ("gpu1", old(six_h - 300.0))])
    add_samples(db, [("gpu0", old(six_h - 600.0))])

    async def written_at(now: float) -> list[float]:
        """Take a sample then, let it be written, and give the ages at the beginning of what is kept."""
        made.now = now
        made.tracker.take(measured(at_s=now), "unlocked")
        mock_clock.jump(10.0)
        await trio.testing.wait_all_tasks_blocked()
        store.write()
        rows = db.execute("SELECT at FROM samples WHERE result = 'ok' AND attendance = 'locked' ORDER BY at")
        return [begin - at for (at,) in rows]

    async with trio.open_nursery() as nursery:
        await nursery.start(made.tracker.run)
        assert await written_at(begin) == [six_h, six_h - 300.0, six_h - 600.0]
        assert await written_at(begin + 599.5) == [six_h, six_h - 300.0, six_h - 600.0]
        assert await written_at(begin + 600.0) == [six_h - 600.0]
        nursery.cancel_scope.cancel()


async def test_a_store_that_fails_loses_samples_and_nothing_else(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """R128, H160: counted, and bounded while it does not answer."""
    made = await bench(tmp_path)
    store = made.store
    assert isinstance(store, StoreDouble)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.tracker.run)
        made.tracker.take(measured(at_s=0.0), "unlocked")
        mock_clock.jump(10.0)
        await trio.testing.wait_all_tasks_blocked()
        for tick in range(1, tracker_module.SAMPLES_HELD + 3):
            made.tracker.take(measured(at_s=5.0 * tick), "unlocked")
        assert made.tracker.statistics().samples_lost == 2
        store.fail()
        assert made.tracker.statistics().samples_lost == 3
        nursery.cancel_scope.cancel()
    assert len(store.posted) == 1
    assert made.device.decision is not None


async def test_samples_are_in_the_real_store_after_a_clean_stop(tmp_path: Path) -> None:
    """R128."""
    store = Store.open(tmp_path / "data" / "swapd.db")
    made = await bench(tmp_path, store=store)
    async with trio.open_nursery() as store_nursery:
        await store_nursery.start(store.run)
        async with trio.open_nursery() as nursery:
            await nursery.start(made.tracker.run)
            made.tracker.take(measured(), "unlocked")
            nursery.cancel_scope.cancel()
        kept = await store.read(lambda db: samples(db, "gpu0", 0.0))
        while not kept:
            kept = await store.read(lambda db: samples(db, "gpu0", 0.0))
        store_nursery.cancel_scope.cancel()
    assert kept == [SamplePoint(made.now, "ok", "unlocked", 5.0, None, False)]


# --- the debug window -------------------------------------------------------------------------------------


async def test_with_the_debug_window_every_decision_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """R129: with numbers alone, through the allowlist."""
    owned = msgspec.structs.replace(owner("obs"), debug_decisions=True)
    made = await bench(tmp_path, encode_cache([entry(unlocked=SOUND)]), owned=owned)
    await started(made)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        made.tracker.take(measured(at_s=100.0, reading_pct=47.5), "unlocked")
        made.tracker.take(measured("failed", at_s=105.0, reading_pct=None), "unknown")
    first, second = lines(caplog)
    decision = made.heard[0][2]
    assert first == {
        "level": "info",
        "message": "decision",
        "device": "gpu0",
        "attendance": "unlocked",
        "profile": "unlocked",
        "result": "ok",
        "reading_pct": 47.5,
        "credited_s": 0.0,
        "baseline_pct": decision.baseline_pct,
        "target_pct": decision.target_pct,
        "threshold_pct": decision.threshold_pct,
        "calibrated": True,
        "engaged": False,
        "learned_samples": 741,
        "learned_s": 3700.0,
        "hint": None,
        "above_s": 0.0,
        "below_s": 0.0,
        "warmup_have": 60,
    }
    assert (second["result"], second["reading_pct"], second["profile"]) == ("failed", None, None)


async def test_without_it_none_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """R129."""
    made = await bench(tmp_path)
    await started(made)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        made.tracker.take(measured(), "unlocked")
    assert lines(caplog) == []


async def test_the_window_opens_and_ends_while_the_tracker_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """R129: at run time, without a new start."""
    made = await bench(tmp_path)
    window = DebugWindow(lambda: made.now)
    made.tracker = PressureTracker(
        made.device,
        made.config,
        made.keeper,
        cast(Store, made.store),
        on_decision=lambda *heard: None,
        debug=window,
    )
    await started(made)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        made.tracker.take(measured(at_s=100.0), "unlocked")
        assert lines(caplog) == []
        window.open_for(10.0)
        made.tracker.take(measured(at_s=105.0), "unlocked")
        assert [line["message"] for line in lines(caplog)] == ["decision"]
        made.now += 10.0
        made.tracker.take(measured(at_s=110.0), "unlocked")
        assert len(lines(caplog)) == 1
