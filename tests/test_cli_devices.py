"""`swapd devices`, `take-back`, `lend`, and the devices of `swapd status`, against a service on sockets."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from swapd.device_views import ProfileView, TakeBack
from tests.lent_devices import GIVEN_BACK, lent_device
from tests.test_cli import WAIT_S, Running, until

UNFINISHED = ProfileView(False, 23, 60, 23, 110.0)


@pytest.fixture
def running() -> Iterator[Running]:
    with tempfile.TemporaryDirectory(prefix="cli-", dir="/tmp") as folder, Running(Path(folder)) as started:
        started.service.lent = {"gpu0": lent_device("gpu0")}
        yield started


@pytest.fixture
def two(running: Running) -> Running:
    running.service.lent = {name: lent_device(name) for name in ("gpu0", "gpu1")}
    return running


def test_status_shows_the_devices_first_each_with_its_sentence(running: Running) -> None:
    """R50, R62: why, load and threshold, attendance, and how long giving back took."""
    running.service.lent["gpu0"] = lent_device(
        "gpu0", last_give_back=GIVEN_BACK, attendance_detail="headless"
    )
    shown = running.swapd("status").stdout
    assert shown.index("gpu0 is lent: owner load 3 % is below 34 %") < shown.index("WORKER")
    assert "load 3 %; Threshold 34%, rising toward 40% (learned from 52 h)" in shown
    assert "attendance locked (headless)" in shown
    assert "last given back: free in 2.1 s (taken_back)" in shown
    assert "calibrating" not in shown


def test_status_shows_how_far_calibration_is_and_what_is_wrong_with_readings(running: Running) -> None:
    """R62"""
    running.service.lent["gpu0"] = lent_device(
        "gpu0",
        state="refused",
        sentence="it is still learning",
        profiles={"locked": UNFINISHED},
        threshold_text=None,
        reading_pct=None,
        readings="failed",
        readings_detail="the driver did not answer",
    )
    shown = running.swapd("status").stdout
    assert "gpu0 is refused: it is still learning" in shown
    assert "calibrating while locked: 23 of 60 readings" in shown
    assert "readings failed (the driver did not answer)" in shown


def test_status_as_json_has_the_fields_of_the_http_api_beside_the_old_ones(running: Running) -> None:
    """R62, R65-R69"""
    running.service.lent["gpu0"] = lent_device("gpu0", profiles={"locked": UNFINISHED})
    shown = json.loads(running.swapd("status", "--json").stdout)
    assert {"pid", "readiness", "stopping", "ops"} < set(shown)
    assert {"version", "ready", "reasons", "consent", "workers", "sessions", "drains"} < set(shown)
    (device,) = shown["devices"]
    assert (device["threshold_pct"], device["target_pct"], device["learned_samples"]) == (33.6, 40.0, 740)
    assert device["profiles"]["locked"] == {
        "calibrated": False,
        "warmup_have": 23,
        "warmup_samples": 60,
        "learned_samples": 23,
        "learned_s": 110.0,
    }


def test_devices_are_listed_with_why(two: Running) -> None:
    result = two.swapd("devices")
    assert result.exit_code == 0
    assert "owner load 3 % is below 34 %" in result.stdout
    assert result.stdout.count("\n") == 3
    assert [each["name"] for each in json.loads(two.swapd("devices", "--json").stdout)["devices"]] == [
        "gpu0",
        "gpu1",
    ]
    two.service.lent = {}
    assert "no [[devices]] are configured" in two.swapd("devices").stdout


def test_the_only_device_needs_no_name(running: Running) -> None:
    result = running.swapd("take-back")
    assert (result.exit_code, result.stdout) == (0, "gpu0: vacating: taken back by its owner\n")
    assert running.service.taken == [("gpu0", TakeBack(until="told"))]
    assert running.swapd("lend").stdout == "gpu0: lent: owner load 3 % is below 34 %\n"


@pytest.mark.parametrize(
    ("args", "request_"),
    [
        (["--for", "1h"], TakeBack(3600.0, "time")),
        (["--for", "90m"], TakeBack(5400.0, "time")),
        (["--for", "2d"], TakeBack(172_800.0, "time")),
        (["--for", "1h30m"], TakeBack(5400.0, "time")),
        (["--for", "0.5s"], TakeBack(0.5, "time")),
        (["--until", "unlock"], TakeBack(until="unlock")),
        (["--until", "told"], TakeBack(until="told")),
    ],
)
def test_a_take_back_is_for_a_time_or_until_something(
    running: Running, args: list[str], request_: TakeBack
) -> None:
    assert running.swapd("take-back", *args).exit_code == 0
    assert running.service.taken == [("gpu0", request_)]


@pytest.mark.parametrize("text", ["", "1", "h", "1h 30m", "1w", "-1h", "1e3s", "soon"])
def test_what_is_no_length_of_time_is_refused(running: Running, text: str) -> None:
    result = running.swapd("take-back", f"--for={text}")
    assert result.exit_code == 2
    assert "is no length of time" in result.stderr
    assert running.service.taken == []


@pytest.mark.parametrize("command", ["take-back", "lend"])
@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "name devices or say --all; there are gpu0, gpu1 [invalid_request]"),
        (["gpu0", "gpu9"], "gpu9; there are gpu0, gpu1"),
        (["--all", "gpu0"], "--all goes alone"),
    ],
)
def test_of_several_devices_none_is_touched_before_all_are_clear(
    two: Running, command: str, args: list[str], says: str
) -> None:
    result = two.swapd(command, *args)
    assert result.exit_code == 2
    assert says in result.stderr.replace(")", "")
    assert two.service.taken == []


def test_several_devices_are_taken_back_by_name_or_all(two: Running) -> None:
    assert two.swapd("take-back", "gpu1").exit_code == 0
    assert [name for name, _ in two.service.taken] == ["gpu1"]
    assert two.swapd("take-back", "--all", "--json").exit_code == 0
    assert [name for name, _ in two.service.taken] == ["gpu1", "gpu0", "gpu1"]
    shown = json.loads(two.swapd("lend", "--all", "--json").stdout)
    assert [each["state"] for each in shown["devices"]] == ["lent", "lent"]


def test_a_span_that_the_service_refuses_is_one_sentence(running: Running) -> None:
    for args in (["--for", "31d"], ["--for", "1h", "--until", "unlock"]):
        result = running.swapd("take-back", *args)
        assert result.exit_code == 2
        assert result.stderr.strip().endswith("[invalid_request]")
    shown = running.swapd("take-back", "--for", "31d", "--json")
    assert json.loads(shown.stdout)["error"]["code"] == "invalid_request"


def test_waiting_shows_progress_and_how_long_it_took(running: Running) -> None:
    running.swapd("drain", "a", "--no-wait")
    running.service.looks_until_free = 3
    result = running.swapd("take-back", "--wait")
    assert (result.exit_code, result.stdout) == (0, "gpu0: free in 2.1 s\n")
    assert "gpu0: vacating, 0 of 0 sessions settled" in result.stderr
    running.service.looks_until_free = 1
    result = running.swapd("take-back", "--wait", "--json")
    assert json.loads(result.stdout)["devices"][0]["last_give_back"]["free_in_s"] == 2.1
    assert result.stderr == ""


def test_a_device_that_is_lent_again_while_one_waits_exits_with_1(running: Running) -> None:
    running.swapd("drain", "a", "--no-wait")
    with running.process("take-back", "--wait") as process:
        until(lambda: running.service.taken)

        def lend_again() -> None:
            running.service.lent["gpu0"] = lent_device("gpu0")

        running.do(lend_again)
        shown, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert shown == "gpu0: lent: owner load 3 % is below 34 %\n"


def test_interrupting_the_wait_takes_nothing_back(running: Running) -> None:
    running.swapd("drain", "a", "--no-wait")
    with running.process("take-back", "--wait") as process:
        until(lambda: running.service.taken)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert "go on being given back" in said
    assert running.service.lent["gpu0"].state == "vacating"


def test_a_device_that_is_free_already_needs_no_number(running: Running) -> None:
    free = msgspec.structs.replace(lent_device("gpu0"), state="free", last_give_back=None)
    running.service.lent["gpu0"] = free
    from swapd.cli.output import given_back_text

    assert given_back_text(free) == "free"
