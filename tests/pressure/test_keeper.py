"""One file keeps what all devices have learned, over restarts and settings, or is let alone."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from swapd.config import Config, DeviceConfig, OwnerConfig
from swapd.pressure import keeper as keeper_module
from swapd.pressure.cache import decode_cache, encode_cache, read_profile
from swapd.pressure.calibration import DevicePressure
from swapd.pressure.keeper import CalibrationKeeper
from swapd.pressure.reading import ProfileState
from swapd.pressure.restoring import NotRestored, Restored
from tests.pressure.saved import CARD, FIXTURES, GPU0, GPU1, OTHER, SOUND, config, entry, owner, state

NAME = "swapd-pressure.json"
CALIBRATED = SOUND


class Keeper(CalibrationKeeper):
    """Tells when it has saved, so that no test sleeps."""

    def __init__(self, settings: Config, path: Path) -> None:
        super().__init__(settings, path)
        self.times: list[float] = []
        self.saved = trio.Event()

    async def save(self) -> None:
        await super().save()
        self.times.append(trio.current_time())
        self.saved.set()
        self.saved = trio.Event()


class Machine:
    """A folder with a configuration: services start and stop there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "swapd.toml"
        self.cache = folder / NAME

    def keeper(self, *devices: DeviceConfig, owned: OwnerConfig | None = None) -> Keeper:
        return Keeper(config(*devices, owned=owned, folder=str(self.folder)), self.path)

    def put(self, text: bytes) -> None:
        self.cache.write_bytes(text)
        self.cache.chmod(0o600)

    def saved(self) -> dict[str, dict[str, ProfileState | None]]:
        """The file's cards and profiles, by UUID."""
        entries = decode_cache(self.cache.read_bytes(), owner().gpu_pressure)
        return {
            each.uuid: {name: read_profile(raw) for name, raw in each.profiles.items()} for each in entries
        }

    async def once(
        self,
        *devices: DeviceConfig,
        owned: OwnerConfig | None = None,
        readings: dict[str, list[float]] | None = None,
        attendance: Any = "unlocked",
    ) -> dict[str, DevicePressure]:
        """Start a service, take readings in at 5 s, stop it cleanly; give the devices' cores."""
        owned = owner("obs") if owned is None else owned
        keeper = self.keeper(*devices, owned=owned)
        cores = {}
        async with trio.open_nursery() as nursery:
            await nursery.start(keeper.run)
            for device in devices:
                core = cores[device.name] = DevicePressure(owned.gpu_pressure)
                found = keeper.restore(device)
                if isinstance(found, Restored):
                    for profile, kept in found.profiles.items():
                        core.restore(profile, kept)
                keeper.watch(device, core)
                for tick, value in enumerate((readings or {}).get(device.name, [])):
                    core.observe(1000.0 + 5.0 * tick, value, attendance)
            nursery.cancel_scope.cancel()
        return cores


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    folder = tmp_path / "etc"
    folder.mkdir(mode=0o755)
    return Machine(folder)


@contextmanager
def calibrated(keeper: CalibrationKeeper, device: DeviceConfig = GPU0) -> Iterator[DevicePressure]:
    core = DevicePressure(owner().gpu_pressure)
    core.restore("unlocked", CALIBRATED)
    keeper.watch(device, core)
    yield core


def told(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, Any]]:
    return [record.__dict__ for record in caplog.records if record.getMessage() == message]


def learned(core: DevicePressure, profile: str = "unlocked") -> ProfileState | None:
    return dict(core.completed()).get(profile)  # type: ignore[call-overload]  # any profile's name


# --- when -------------------------------------------------------------------------------------------------


async def test_it_is_saved_every_300_seconds_and_at_a_clean_stop(
    machine: Machine, mock_clock: trio.testing.MockClock
) -> None:
    """R80, D14."""
    keeper = machine.keeper(GPU0)
    async with trio.open_nursery() as nursery:
        await nursery.start(keeper.run)
        begin = trio.current_time()
        with calibrated(keeper):
            mock_clock.jump(299.999)
            await trio.testing.wait_all_tasks_blocked()
            assert keeper.times == []
            assert not machine.cache.exists()
            for count in (1, 2, 3):
                saved = keeper.saved
                mock_clock.jump(0.001 if count == 1 else 300.0)
                await saved.wait()
                assert keeper.times[-1] - begin == pytest.approx(300.0 * count)
                assert len(keeper.times) == count
                assert machine.saved() == {CARD: {"unlocked": CALIBRATED}}
                machine.cache.unlink()
            mock_clock.jump(7.0)
            nursery.cancel_scope.cancel()
    assert len(keeper.times) == 4
    assert machine.saved() == {CARD: {"unlocked": CALIBRATED}}
    assert keeper.statistics().saves == 4
    assert keeper.statistics().failures == 0


async def test_the_interval_does_not_drift_with_the_time_a_save_takes(
    machine: Machine, mock_clock: trio.testing.MockClock
) -> None:
    """R80."""
    keeper = machine.keeper(GPU0)
    async with trio.open_nursery() as nursery:
        await nursery.start(keeper.run)
        begin = trio.current_time()
        saved = keeper.saved
        mock_clock.jump(450.0)
        await saved.wait()
        saved = keeper.saved
        mock_clock.jump(150.0)
        await saved.wait()
        assert [time - begin for time in keeper.times] == pytest.approx([450.0, 600.0])
        nursery.cancel_scope.cancel()


async def test_nothing_is_written_before_there_is_something_completed(machine: Machine) -> None:
    """R90, R63: an unfinished first calibration leaves no trace and starts again."""
    cores = await machine.once(GPU0, readings={"gpu0": [5.0] * 59})
    assert cores["gpu0"].summaries()[1].warmup_have == 59
    assert not machine.cache.exists()
    cores = await machine.once(GPU0)
    assert cores["gpu0"].summaries()[1].warmup_have == 0


async def test_a_file_that_could_not_be_read_stays_until_something_is_completed(machine: Machine) -> None:
    """R107."""
    machine.put(b"not json")
    await machine.once(GPU0, readings={"gpu0": [5.0] * 59})
    assert machine.cache.read_bytes() == b"not json"
    await machine.once(GPU0, readings={"gpu0": [5.0] * 60})
    assert list(machine.saved()) == [CARD]


# --- over a restart ---------------------------------------------------------------------------------------


async def test_what_was_learned_is_the_same_after_a_restart(machine: Machine) -> None:
    """R26, R82, R25: bins, threshold and counts; the time between the two counts for nothing."""
    before = learned((await machine.once(GPU0, readings={"gpu0": [12.0] * 40 + [31.0] * 40}))["gpu0"])
    cores = await machine.once(GPU0)
    after = learned(cores["gpu0"])
    assert before is not None
    assert after is not None
    assert after._replace(bins=()) == before._replace(bins=())
    assert [index for index, _ in after.bins] == [24, 62]
    assert [weight for _, weight in after.bins] == pytest.approx([weight for _, weight in before.bins], 1e-6)
    assert cores["gpu0"].observe(10**9, 12.0, "unlocked").credited_s == 0.0


async def test_a_completed_profile_survives_an_unfinished_one(machine: Machine) -> None:
    """R64, R90."""
    keeper = machine.keeper(GPU0)
    async with trio.open_nursery() as nursery:
        await nursery.start(keeper.run)
        core = DevicePressure(owner().gpu_pressure)
        keeper.watch(GPU0, core)
        for tick in range(60):
            core.observe(5.0 * tick, 5.0, "unlocked")
        for tick in range(60, 119):
            core.observe(5.0 * tick, 5.0, "locked")
        nursery.cancel_scope.cancel()
    assert list(machine.saved()[CARD]) == ["unlocked"]
    cores = await machine.once(GPU0)
    assert learned(cores["gpu0"], "unlocked") is not None
    assert learned(cores["gpu0"], "locked") is None


@pytest.mark.parametrize(
    ("settings", "threshold"),
    [
        ({}, 33.5),
        ({"floor_pct": 38.0}, 38.0),
        ({"cap_pct": 30.0}, 30.0),
        ({"cap_pct": 20.0}, 25.0),
        ({"cap_pct": 33.5}, 33.5),
        ({"warmup_samples": 100_000}, 33.5),
    ],
)
async def test_a_restored_threshold_is_bound_by_the_settings_of_now(
    machine: Machine, settings: dict[str, Any], threshold: float
) -> None:
    """R88, R87, R89, R33."""
    machine.put(encode_cache([entry(unlocked=SOUND)]))
    cores = await machine.once(GPU0, owned=owner("obs", **settings))
    kept = learned(cores["gpu0"])
    assert kept is not None
    assert kept.threshold_pct == threshold
    assert kept.bins == SOUND.bins
    assert kept.calibrated


async def test_the_cards_of_others_stay_in_the_file(machine: Machine) -> None:
    """R94, D17."""
    machine.put(encode_cache([entry("gpu1", OTHER, unlocked=state(threshold_pct=31.0))]))
    await machine.once(GPU0, readings={"gpu0": [5.0] * 60})
    assert list(machine.saved()) == [CARD, OTHER]
    assert machine.saved()[OTHER] == {"unlocked": state(threshold_pct=31.0)}
    await machine.once(GPU1)
    assert list(machine.saved()) == [OTHER, CARD]


async def test_a_changed_ignore_list_loses_nothing_before_something_new_is_completed(
    machine: Machine,
) -> None:
    """R83, R94."""
    machine.put(encode_cache([entry(unlocked=SOUND)]))
    await machine.once(GPU0, owned=owner("obs", "x"), readings={"gpu0": [5.0] * 59})
    assert machine.saved() == {CARD: {"unlocked": SOUND}}
    await machine.once(GPU0, owned=owner("obs", "x"), readings={"gpu0": [5.0] * 60})
    assert json.loads(machine.cache.read_bytes())["gpus"][0]["ignore"] == ["obs", "x"]
    assert machine.saved()[CARD]["unlocked"] != SOUND


async def test_a_device_by_index_learns_and_is_not_saved(machine: Machine) -> None:
    """R91."""
    by_index = DeviceConfig("gpu0", selector="0")
    cores = await machine.once(by_index, readings={"gpu0": [5.0] * 60})
    assert learned(cores["gpu0"]) is not None
    assert not machine.cache.exists()


# --- fixed mode -------------------------------------------------------------------------------------------


async def test_fixed_mode_leaves_the_file_as_it_is_byte_for_byte(
    machine: Machine, mock_clock: trio.testing.MockClock
) -> None:
    """R76, R77: over two intervals and a clean stop; afterwards it is restored."""
    text = json.dumps(json.loads(encode_cache([entry(unlocked=SOUND)])), indent=1).encode()
    machine.put(text)
    leftover = machine.folder / f".{NAME}.0.staging"
    leftover.touch()
    inode = machine.cache.stat().st_ino
    keeper = machine.keeper(GPU0, owned=owner("obs", mode="fixed", threshold_pct=50.0))
    async with trio.open_nursery() as nursery:
        await nursery.start(keeper.run)
        assert keeper.restore(GPU0) is NotRestored.FIXED
        with calibrated(keeper):
            for _ in range(3):
                mock_clock.jump(300.0)
                await trio.testing.wait_all_tasks_blocked()
            await keeper.save()
            nursery.cancel_scope.cancel()
    assert machine.cache.read_bytes() == text
    assert machine.cache.stat().st_ino == inode
    assert leftover.exists()
    assert keeper.statistics().saves == 0
    cores = await machine.once(GPU0)
    assert learned(cores["gpu0"]) == SOUND


# --- a file that cannot be used ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told_as"),
    [
        (b"{", "invalid"),
        (b'{"schema":5,"gpus":[]}', "invalid"),
        (b" " * 1_048_577, "too large"),
        (None, "unreadable"),
    ],
)
async def test_a_file_that_cannot_be_used_is_told_once_and_every_device_starts_anew(
    machine: Machine, caplog: pytest.LogCaptureFixture, text: bytes | None, told_as: str
) -> None:
    """R107, R120, D27: the service runs, and the next completed calibration replaces it."""
    if text is None:
        machine.cache.symlink_to("elsewhere")
    else:
        machine.put(text)
    with caplog.at_level(logging.INFO):
        keeper = machine.keeper(GPU0, GPU1)
        await keeper.load()
        assert keeper.restore(GPU0) is NotRestored.INVALID
        assert keeper.restore(GPU1) is NotRestored.INVALID
        assert keeper.restore(DeviceConfig("gpu2", selector="0")) is NotRestored.INDEX_SELECTOR
    (line,) = told(caplog, "pressure cache ignored")
    assert (line["levelname"], line["state"], line["path"]) == ("WARNING", told_as, str(machine.cache))
    assert line["reason"]
    with calibrated(keeper):
        await keeper.save()
    assert machine.saved() == {CARD: {"unlocked": CALIBRATED}}


async def test_in_fixed_mode_a_file_that_cannot_be_used_is_kept_as_well(machine: Machine) -> None:
    """R76, R104."""
    machine.put(b"{")
    keeper = machine.keeper(GPU0, owned=owner(mode="fixed", threshold_pct=50.0))
    await keeper.load()
    assert keeper.restore(GPU0) is NotRestored.FIXED


async def test_a_file_of_exactly_one_mebibyte_is_restored(machine: Machine) -> None:
    """D19."""
    machine.put(encode_cache([entry(unlocked=SOUND)]).ljust(1_048_576))
    keeper = machine.keeper(GPU0)
    await keeper.load()
    assert keeper.restore(GPU0) == Restored({"unlocked": SOUND}, ())


async def test_nothing_is_restored_before_the_file_was_loaded(machine: Machine) -> None:
    with pytest.raises(RuntimeError):
        machine.keeper(GPU0).restore(GPU0)


# --- a folder that cannot be used -------------------------------------------------------------------------


async def test_in_a_folder_that_others_can_write_nothing_is_read_or_written(
    tmp_path: Path, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """R97, R95: told once, with the reason; what is learned stays in memory."""
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o777)
    file = folder / "p.json"
    file.write_bytes(encode_cache([entry(unlocked=SOUND)]))
    file.chmod(0o600)
    owned = owner("obs", state_file=str(file))
    with caplog.at_level(logging.INFO):
        keeper = machine.keeper(GPU0, owned=owned)
        await keeper.load()
        assert keeper.restore(GPU0) is NotRestored.NO_ENTRY
        with calibrated(keeper):
            await keeper.save()
            await keeper.save()
    (line,) = told(caplog, "pressure cache not used")
    assert (line["levelname"], line["path"]) == ("WARNING", str(file))
    assert line["reason"] == f"{folder} has mode 0777: its group or other accounts may write there"
    assert keeper.statistics().not_used == line["reason"]
    assert file.read_bytes() == encode_cache([entry(unlocked=SOUND)])
    assert os.listdir(folder) == ["p.json"]
    assert not machine.cache.exists()
    folder.chmod(0o700)
    await keeper.save()
    assert keeper.statistics().saves == 0


async def test_a_folder_that_becomes_unsafe_is_not_written_any_more(
    tmp_path: Path, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """R97."""
    folder = tmp_path / "state"
    keeper = machine.keeper(GPU0, owned=owner("obs", state_file=str(folder / "p.json")))
    await keeper.load()
    assert not folder.exists()
    with calibrated(keeper):
        await keeper.save()
        assert (folder / "p.json").stat().st_mode & 0o7777 == 0o600
        assert folder.stat().st_mode & 0o7777 == 0o700
        folder.chmod(0o770)
        (folder / "p.json").unlink()
        await keeper.save()
        await keeper.save()
    assert len(told(caplog, "pressure cache not used")) == 1
    assert os.listdir(folder) == []


async def test_a_save_that_fails_is_told_and_tried_again(
    machine: Machine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R80, R100."""
    keeper = machine.keeper(GPU0)
    await keeper.load()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with calibrated(keeper):
        with monkeypatch.context() as patched:
            patched.setattr(keeper_module, "write_file", full)
            await keeper.save()
        assert keeper.statistics().failures == 1
        assert keeper.statistics().saves == 0
        (line,) = told(caplog, "pressure cache not saved")
        assert (line["errno"], line["path"]) == (errno.ENOSPC, str(machine.cache))
        await keeper.save()
    assert machine.saved() == {CARD: {"unlocked": CALIBRATED}}


async def test_a_disk_that_hangs_holds_neither_the_service_nor_its_stop(
    machine: Machine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    mock_clock: trio.testing.MockClock,
) -> None:
    """R80, D14: five seconds, and no second thread beside the one that hangs."""
    begun, let_go = threading.Event(), threading.Event()
    calls: list[int] = []

    def hang(*_: Any) -> None:
        calls.append(1)
        begun.set()
        assert let_go.wait(20)

    monkeypatch.setattr(keeper_module, "write_file", hang)
    keeper = machine.keeper(GPU0)
    await keeper.load()
    with calibrated(keeper):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.save)
            await trio.to_thread.run_sync(begun.wait)
            # Cancelled, it still waits for the write, but not for long.
            nursery.cancel_scope.cancel()
            mock_clock.jump(5.0)
        assert keeper.statistics().failures == 1
        assert len(told(caplog, "pressure cache not saved")) == 1
        await keeper.save()
        assert calls == [1]
    let_go.set()


async def test_a_disk_that_does_not_answer_at_the_start_is_not_used(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    """R97, R107: the service starts."""
    begun, let_go = threading.Event(), threading.Event()

    def hang(*_: Any) -> None:
        begun.set()
        assert let_go.wait(20)

    monkeypatch.setattr(keeper_module, "read_file", hang)
    keeper = machine.keeper(GPU0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.load)
        await trio.to_thread.run_sync(begun.wait)
        mock_clock.jump(5.0)
    let_go.set()
    assert keeper.statistics().not_used == "its disk does not answer"
    assert keeper.restore(GPU0) is NotRestored.NO_ENTRY


async def test_a_crash_leaves_a_staging_file_that_the_next_start_removes_unread(machine: Machine) -> None:
    """R101."""
    machine.put(encode_cache([entry(unlocked=SOUND)]))
    leftover = machine.folder / f".{NAME}.0123456789abcdef.staging"
    leftover.write_bytes(encode_cache([entry(unlocked=state(threshold_pct=26.0))]))
    keeper = machine.keeper(GPU0)
    await keeper.load()
    assert keeper.restore(GPU0) == Restored({"unlocked": SOUND}, ())
    assert os.listdir(machine.folder) == [NAME]


# --- upgrade ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["schema2.json", "schema3.json"])
async def test_an_older_file_is_taken_over_and_the_next_save_writes_schema_4(
    machine: Machine, name: str
) -> None:
    """R109-R112, R117, R86."""
    machine.put((FIXTURES / name).read_bytes())
    cores = await machine.once(GPU0)
    (summary,) = [each for each in cores["gpu0"].summaries() if each.profile == "unlocked"]
    assert summary.calibrated
    assert (summary.threshold_pct, summary.maturing_from_pct, summary.baseline_pct) == (33.0, 33.0, None)
    assert (summary.learned_samples, summary.learned_s, summary.bins) == (0, 0.0, ())
    text = machine.cache.read_bytes()
    assert text.startswith(b'{"schema":4,')
    assert b"baseline" not in text
    assert b"00000000:01:00.0" not in text
    assert json.loads(text)["gpus"][0]["resource"] == "gpu0"


async def test_a_profile_still_matures_after_a_restart(machine: Machine) -> None:
    """R113, R114, R116: 10 h and a restart and 14 h less a reading do not lower it; the next reading does."""
    machine.put((FIXTURES / "schema3.json").read_bytes())
    ten_h, fourteen_h = 7200, 10080
    before = learned((await machine.once(GPU0, readings={"gpu0": [1.0] * (ten_h + 1)}))["gpu0"])
    assert before is not None
    assert (before.threshold_pct, before.learned_s, before.maturing_from_pct) == (33.0, 36_000.0, 33.0)
    cores = await machine.once(GPU0, readings={"gpu0": [1.0] * fourteen_h})
    core = cores["gpu0"]
    after = learned(core)
    assert after is not None
    assert (after.threshold_pct, after.learned_s) == (33.0, 86_395.0)
    core.observe(1000.0 + 5.0 * fourteen_h, 1.0, "unlocked")
    last = learned(core)
    assert last is not None
    assert (last.threshold_pct, last.learned_s, last.maturing_from_pct) == (25.0, 86_400.0, None)


async def test_floor_and_cap_of_now_bound_a_profile_that_matures(machine: Machine) -> None:
    """R121."""
    machine.put(encode_cache([entry(unlocked=state(threshold_pct=33.0, maturing_from_pct=33.0, bins=()))]))
    cores = await machine.once(GPU0, owned=owner("obs", cap_pct=30.0))
    kept = learned(cores["gpu0"])
    assert kept is not None
    assert kept.threshold_pct == 30.0


async def test_moving_the_file_aside_starts_from_nothing_and_putting_it_back_restores(
    machine: Machine,
) -> None:
    """R123, R124."""
    machine.put(encode_cache([entry(unlocked=SOUND), entry("gpu1", OTHER, unlocked=SOUND)]))
    aside = machine.folder / "aside.json"
    machine.cache.rename(aside)
    keeper = machine.keeper(GPU0, GPU1)
    await keeper.load()
    assert keeper.restore(GPU0) is NotRestored.NO_ENTRY
    assert keeper.restore(GPU1) is NotRestored.NO_ENTRY
    cores = await machine.once(GPU0, GPU1, readings={"gpu0": [5.0] * 60})
    assert learned(cores["gpu0"]) is not None
    assert learned(cores["gpu1"]) is None
    aside.rename(machine.cache)
    cores = await machine.once(GPU0, GPU1)
    assert learned(cores["gpu0"]) == SOUND
    assert learned(cores["gpu1"]) == SOUND
