"""The settings of a running service: shown, tried out and saved to the file that it was started with."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec
import pytest
import trio

from swapd.errors import Code, SwapdError
from swapd.settings import keeper as keeper_module
from swapd.settings.fields import FIELDS
from swapd.settings.views import FieldView, SettingsChange, SettingsRefused, SettingsView
from tests.settings.files import GOOD, TOKEN
from tests.settings.rooms import fill, room


def field(view: SettingsView, key: str) -> FieldView:
    (found,) = [each for group in view.groups for each in group.fields if each.key == key]
    return found


async def test_every_setting_is_shown_as_the_file_has_it_beside_what_is_in_force(tmp_path: Path) -> None:
    """R126."""
    async with room(tmp_path) as at:
        at.path.write_text(GOOD.replace("cap_pct = 40", "cap_pct = 55"))
        view = await at.keeper.view()
        assert {each.key for group in view.groups for each in group.fields} == set(FIELDS)
        cap = field(view, "cap_pct")
        assert (cap.value, cap.running, cap.written, cap.pending) == ("55", "40 %", True, True)
        floor = field(view, "floor_pct")
        assert (floor.value, floor.default, floor.written, floor.pending) == ("25", "25 %", False, False)
        assert field(view, "ignore").value == "obs\nbeep"
        assert field(view, "consent").running == "yes"
        assert view.pending == (cap.label,)
        assert (view.problem, view.retired) == (None, ("baseline_quantile",))
        assert any("baseline_quantile is retired" in warning for warning in view.warnings)
        assert not view.others_changed


async def test_a_change_elsewhere_in_the_file_is_told_too(tmp_path: Path) -> None:
    async with room(tmp_path) as at:
        at.path.write_text("port = 9090\n" + GOOD)
        assert (await at.keeper.view()).others_changed


async def test_a_cap_that_is_held_lower_says_what_is_in_force(tmp_path: Path) -> None:
    """R37, R38."""
    async with room(tmp_path, GOOD.replace("cap_pct = 40", "cap_pct = 95")) as at:
        view = await at.keeper.view()
        assert field(view, "cap_pct").note == "In force it is held at 90 %."
        assert any("cap_pct = 95 is over 90" in warning for warning in view.warnings)


async def test_a_file_that_is_broken_by_now_is_told_and_not_saved_over(tmp_path: Path) -> None:
    async with room(tmp_path) as at:
        change = await at.change(cap_pct="50")
        at.path.write_text("port = [\n")
        view = await at.keeper.view()
        assert view.problem is not None
        assert "not valid TOML" in view.problem
        assert field(view, "cap_pct").running == "40 %"
        for call in (at.keeper.preview, at.keeper.save):
            with pytest.raises(SwapdError) as caught:
                await call(change)
            assert caught.value.code in (Code.SETTINGS_CHANGED, Code.CONFIG_INVALID)
        assert at.path.read_text() == "port = [\n"


async def test_a_save_writes_the_file_and_changes_nothing_that_runs(tmp_path: Path) -> None:
    """R126, R122: running values stay until the next start; the retired key goes, comments stay."""
    async with room(tmp_path) as at:
        running = msgspec.json.encode(at.config)
        view = await at.keeper.save(await at.change(cap_pct="45", lend_when="locked", always="game"))
        text = at.path.read_text()
        assert "cap_pct = 45  # was 50" in text
        assert "baseline_quantile" not in text
        assert text.startswith(GOOD[: GOOD.index("[owner]")])
        saved = at.parsed().owner
        assert (saved.gpu_pressure.cap_pct, saved.lend_when, saved.always) == (45.0, "locked", ("game",))
        assert msgspec.json.encode(at.config) == running
        assert [field(view, key).pending for key in ("cap_pct", "lend_when", "always", "ignore")] == [
            True,
            True,
            True,
            False,
        ]
        assert (field(view, "cap_pct").value, field(view, "cap_pct").running) == ("45", "40 %")


@pytest.mark.parametrize(
    ("floor", "cap", "mode"),
    [("41", "40", "calibrated"), ("25", "91", "calibrated"), ("95", "95", "calibrated")],
)
async def test_a_save_out_of_bounds_writes_nothing(tmp_path: Path, floor: str, cap: str, mode: str) -> None:
    """R40, D6: not even what was right in the same form."""
    async with room(tmp_path) as at:
        change = await at.change(floor_pct=floor, cap_pct=cap, mode=mode, sustain_s="20", consent="no")
        with pytest.raises(SettingsRefused) as caught:
            await at.keeper.save(change)
        assert [problem.field for problem in caught.value.problems] == ["cap_pct"]
        assert at.path.read_text() == GOOD
        assert sorted(os.listdir(tmp_path)) == ["data", "swapd.toml"]


async def test_in_fixed_mode_only_the_threshold_is_judged(tmp_path: Path) -> None:
    """D7, R40: floor and cap as they stand are no reason to refuse; a threshold over 100 is."""
    async with room(tmp_path) as at:
        form = {"mode": "fixed", "floor_pct": "95", "cap_pct": "20"}
        with pytest.raises(SettingsRefused) as caught:
            await at.keeper.save(await at.change(**form, threshold_pct="100.5"))
        assert [problem.field for problem in caught.value.problems] == ["threshold_pct"]
        assert at.path.read_text() == GOOD
        await at.keeper.save(await at.change(**form, threshold_pct="97.5"))
        assert at.parsed().owner.gpu_pressure.threshold_pct == 97.5
        # And back: a threshold that is not used is left out of the file (R75).
        await at.keeper.save(
            await at.change(mode="calibrated", threshold_pct="", floor_pct="20", cap_pct="30")
        )
        assert "threshold_pct" not in at.path.read_text()


async def test_a_form_for_an_older_file_is_refused(tmp_path: Path) -> None:
    async with room(tmp_path) as at:
        first, second = await at.change(cap_pct="45"), await at.change(cap_pct="50")
        await at.keeper.save(first)
        with pytest.raises(SwapdError) as caught:
            await at.keeper.save(second)
        assert caught.value.code is Code.SETTINGS_CHANGED
        assert at.parsed().owner.gpu_pressure.cap_pct == 45.0


async def test_of_two_saves_at_once_one_wins_and_the_other_is_told(tmp_path: Path) -> None:
    async with room(tmp_path) as at:
        change = await at.change(cap_pct="45")
        other = SettingsChange({"cap_pct": "50"}, change.digest)
        codes = []

        async def save(each: SettingsChange) -> None:
            try:
                await at.keeper.save(each)
                codes.append("saved")
            except SwapdError as error:
                codes.append(error.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(save, change)
            nursery.start_soon(save, other)
        assert sorted(codes) == ["saved", Code.SETTINGS_CHANGED]


async def test_a_save_without_a_change_leaves_the_file_untouched(tmp_path: Path) -> None:
    text = GOOD.replace("baseline_quantile = 0.2  # old\n", "")
    async with room(tmp_path, text) as at:
        before = at.path.stat().st_ino
        await at.keeper.save(await at.change(cap_pct="40", mode="calibrated", ignore="beep\nobs"))
        assert at.path.stat().st_ino == before
        assert at.path.read_text() == text


async def test_a_visitor_who_leaves_while_it_is_saved_leaves_a_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has begun is finished, and the next save comes after it."""
    reached, go_on = threading.Event(), threading.Event()
    honest = keeper_module.replace

    def slow(path: Path, text: str, digest: str) -> None:
        reached.set()
        assert go_on.wait(30)
        honest(path, text, digest)

    monkeypatch.setattr(keeper_module, "replace", slow)
    async with room(tmp_path) as at:
        change = await at.change(cap_pct="45")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.keeper.save, change)
            await trio.to_thread.run_sync(reached.wait)
            nursery.cancel_scope.cancel()
            go_on.set()
        assert at.parsed().owner.gpu_pressure.cap_pct == 45.0


async def test_a_disk_that_hangs_is_said_and_no_second_save_joins_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, ended = threading.Event(), threading.Event()

    def hangs(path: Path, text: str, digest: str) -> None:
        assert go_on.wait(30)
        ended.set()

    monkeypatch.setattr(keeper_module, "replace", hangs)
    async with room(tmp_path) as at:
        change = await at.change(cap_pct="45")
        monkeypatch.setattr(keeper_module, "FILE_DEADLINE_S", 0.05)
        with pytest.raises(SwapdError) as caught:
            await at.keeper._write("", "")
        assert caught.value.code is Code.TIMEOUT
        monkeypatch.setattr(keeper_module, "FILE_DEADLINE_S", 5.0)
        with pytest.raises(SwapdError) as again:
            await at.keeper.save(change)
        assert "earlier save" in again.value.sentence
        go_on.set()
        assert await trio.to_thread.run_sync(ended.wait, 30)


async def test_a_preview_shows_the_difference_and_the_last_six_hours(tmp_path: Path) -> None:
    """R126: nothing is written, nothing that runs is changed, and no token is shown."""
    async with room(tmp_path) as at:
        device = at.device.pressure
        assert device is not None
        for number in range(100):
            device.observe(5.0 * number, 2.0, "unlocked")
        await fill(at, *((2.0,) * 20 + (30.0,) * 6 + (2.0,) * 20) * 3, *(30.0,) * 60)
        learned = device.completed()
        found = await at.keeper.preview(await at.change(sustain_s="120", consent="yes"))
        assert [device.sentence for device in found.devices] == ["4 pressure events, would be 1"]
        assert [(change.label, change.before, change.after) for change in found.changes] == [
            ("For how long", "10 seconds", "120 seconds")
        ]
        assert "+sustain_s = 120" in found.diff
        assert "-baseline_quantile = 0.2  # old" in found.diff
        assert found.removed == ("baseline_quantile",)
        assert TOKEN not in msgspec.json.encode(found).decode()
        assert found.replay == "done"
        assert at.path.read_text() == GOOD
        assert device.completed() == learned


async def test_a_preview_of_what_is_wrong_is_refused_as_a_save_is(tmp_path: Path) -> None:
    """R40."""
    async with room(tmp_path) as at:
        with pytest.raises(SettingsRefused):
            await at.keeper.preview(await at.change(cap_pct="91"))


async def test_a_replay_that_takes_too_long_is_given_up_and_the_difference_is_shown(tmp_path: Path) -> None:
    async with room(tmp_path, replay_deadline_s=0.0) as at:
        await fill(at, *(2.0,) * 100)
        found = await at.keeper.preview(await at.change(cap_pct="45"))
        assert (found.replay, found.devices) == ("too_long", ())
        assert "+cap_pct = 45  # was 50" in found.diff
        # The next one is not held up by it.
        at.keeper._replay_deadline_s = 30.0
        assert (await at.keeper.preview(await at.change(cap_pct="45"))).replay == "done"


async def test_where_nothing_is_measured_nothing_is_replayed(tmp_path: Path) -> None:
    text = GOOD.replace("cap_pct = 40", "enabled = false\ncap_pct = 40")
    async with room(tmp_path, text) as at:
        assert (await at.keeper.preview(await at.change(cap_pct="45"))).replay == "not_measured"


async def test_another_list_of_programs_begins_with_nothing_learned(tmp_path: Path) -> None:
    """R83: a start with it would not restore what was learned."""
    async with room(tmp_path) as at:
        assert at.device.pressure is not None
        for number in range(100):
            at.device.pressure.observe(5.0 * number, 2.0, "unlocked")
        await fill(at, *(2.0,) * 80)
        (device,) = (await at.keeper.preview(await at.change(ignore="zoom"))).devices
        assert device.running is not None
        assert device.new is not None
        assert (device.running.refused_readings, device.new.refused_readings) == (0, 59)


async def test_from_fixed_to_learned_begins_with_what_was_saved(tmp_path: Path) -> None:
    """R77."""
    text = GOOD.replace("cap_pct = 40", 'mode = "fixed"\nthreshold_pct = 50\ncap_pct = 40')
    async with room(tmp_path, text) as at:
        entry = {
            "resource": "cpu0",
            "uuid": "cpu:0",
            "ignore": ["obs", "beep"],
            "profiles": {
                "unlocked": {
                    "calibrated": True,
                    "threshold_pct": 25.0,
                    "learned_samples": 5000,
                    "learned_s": 25000.0,
                    "maturing_from_pct": None,
                    "bins": [[4, 5000.0]],
                }
            },
        }
        cache = tmp_path / "swapd-pressure.json"
        cache.write_bytes(msgspec.json.encode({"schema": 4, "gpus": [entry]}))
        cache.chmod(0o600)
        await fill(at, *(2.0,) * 20, *(30.0,) * 10)
        (device,) = (await at.keeper.preview(await at.change(mode="calibrated", threshold_pct=""))).devices
        assert device.sentence == "No pressure events, would be 1"
        cache.write_bytes(b"broken")
        (device,) = (await at.keeper.preview(await at.change(mode="calibrated", threshold_pct=""))).devices
        assert device.sentence == "No pressure events, would be the same"
