"""What owners and operators see of a lent device (R43, R50, R60-R70)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from swapd.config import Config, CredentialConfig, DeviceConfig, ModelConfig, OwnerConfig, PressureConfig
from swapd.device_views import GiveBackView, TakenBack
from swapd.lending.device import LentDevice, Verdict
from swapd.lending.reasons import Why
from swapd.lending.view import device_view
from swapd.messages.sampler import Measurement
from swapd.pressure.calibration import DevicePressure
from swapd.pressure.reading import HINT_ABOVE_CAP, Profile, ProfileState, ProfileSummary

LENT = Verdict(True, True, (), "owner load 3 % < 34 %")
WALL, BOOT = 1_000_000.0, 5_000.0


class Learned(DevicePressure):
    """The learning of one device, as told."""

    def __init__(self, *known: ProfileSummary, engaged: bool = False) -> None:
        self._known = known
        self._engaged = engaged

    def completed(self) -> Mapping[Profile, ProfileState]:
        raise NotImplementedError

    def summaries(self) -> Sequence[ProfileSummary]:
        return self._known

    @property
    def engaged(self) -> bool:
        return self._engaged


def summary(profile: Profile = "locked", **changes: Any) -> ProfileSummary:
    known = ProfileSummary(
        profile=profile,
        calibrated=True,
        warmup_have=60,
        learned_samples=740,
        learned_s=187_200.0,
        total_weight=700.0,
        baseline_pct=20.0,
        target_pct=40.0,
        threshold_pct=33.6,
        maturing_from_pct=None,
        bins=((26, 12.5),),
        hint=None,
    )
    return known._replace(**changes)


def unfinished(profile: Profile = "locked", have: int = 12) -> ProfileSummary:
    nothing = {"baseline_pct": None, "target_pct": None, "threshold_pct": None}
    return summary(profile, calibrated=False, warmup_have=have, learned_samples=have, **nothing)


def config(pressure: PressureConfig | None = None, **owner: Any) -> Config:
    return Config(
        database_path="swapd.db",
        socket_dir="run",
        workers=(),
        models=(ModelConfig(alias="m", path="m"),),
        credentials=(CredentialConfig(namespace="me", token="t"),),
        devices=(DeviceConfig(name="gpu0"),),
        owner=OwnerConfig(consent=True, gpu_pressure=pressure or PressureConfig(), **owner),
    )


def measured(result: Any = "ok", at_s: float = BOOT - 1, **fields: Any) -> Measurement:
    return Measurement("gpu0", result, at_s, **({"reading_pct": 3.0} | fields))


def device(*known: ProfileSummary, **changes: Any) -> LentDevice:
    fields: dict[str, Any] = {
        "config": DeviceConfig(name="gpu0"),
        "workers": ("a",),
        "pressure": Learned(*(known or (summary(),))),
        "state": "lent",
        "verdict": LENT,
        "measurement": measured(),
        "valid_at_s": BOOT - 1,
        "attendance": "locked",
    }
    return LentDevice(**(fields | changes))


def shown(each: LentDevice, settings: Config | None = None) -> dict[str, Any]:
    """The JSON of the view."""
    view = device_view(each, settings or config(), WALL, BOOT)
    built = msgspec.json.decode(msgspec.json.encode(view))
    assert isinstance(built, dict)
    return built


def test_a_lent_device_shows_threshold_target_baseline_and_what_was_learned() -> None:
    """R65, R67, R68"""
    view = shown(device())
    assert (view["threshold_pct"], view["target_pct"], view["baseline_pct"]) == (33.6, 40.0, 20.0)
    assert (view["learned_samples"], view["learned_s"]) == (740, 187_200.0)
    assert (view["state"], view["admitting"], view["why"], view["calibrated"]) == ("lent", True, None, True)
    assert (view["reading_pct"], view["reading_age_s"], view["readings"]) == (3.0, 1.0, "ok")


def test_a_key_that_is_not_known_yet_is_absent() -> None:
    """R66: not null, not 0: absent, above and in the profile."""
    view = shown(device(unfinished()))
    for place in (view, view["profiles"]["locked"]):
        assert not {"baseline_pct", "target_pct", "threshold_pct", "hint", "maturing_from_pct"} & set(place)
    assert view["threshold_text"] is None


def test_a_migrated_profile_has_a_threshold_and_no_baseline() -> None:
    """R66: its histogram is empty while it matures."""
    migrated = summary(baseline_pct=None, target_pct=33.0, threshold_pct=33.0, maturing_from_pct=33.0)
    view = shown(device(migrated))
    assert "baseline_pct" not in view
    assert (view["threshold_pct"], view["target_pct"]) == (33.0, 33.0)
    assert view["profiles"]["locked"]["maturing_from_pct"] == 33.0


def test_each_profile_tells_its_own_progress_and_whether_it_is_calibrated() -> None:
    """R62, R69"""
    view = shown(device(summary("locked"), unfinished("unlocked", 23)))
    assert view["profiles"]["locked"]["calibrated"]
    assert not view["profiles"]["unlocked"]["calibrated"]
    assert view["profiles"]["unlocked"]["warmup_have"] == 23
    assert view["profiles"]["unlocked"]["warmup_samples"] == 60
    away = shown(device(summary("locked"), unfinished("unlocked", 23), attendance="unlocked"))
    assert (away["profile"], away["calibrated"]) == ("unlocked", False)


def test_learned_load_above_the_cap_has_its_hint_and_otherwise_there_is_no_key() -> None:
    """R43, R69"""
    assert shown(device(summary(hint=HINT_ABOVE_CAP)))["hint"] == (
        "learned load is above the calibration cap; target held at cap"
    )
    assert "hint" not in shown(device())


@pytest.mark.parametrize(
    ("threshold", "target", "text"),
    [
        (33.6, 40.0, "Threshold 34%, rising toward 40% (learned from 52 h)"),
        (40.0, 40.0, "Threshold 40% (learned from 52 h)"),
        (39.96, 40.0, "Threshold 40% (learned from 52 h)"),
        (25.0, None, "Threshold 25% (learned from 52 h)"),
    ],
)
def test_a_rising_threshold_says_where_to(threshold: float, target: float | None, text: str) -> None:
    """R50, D9"""
    view = shown(device(summary(threshold_pct=threshold, target_pct=target)))
    assert view["threshold_text"] == text


@pytest.mark.parametrize(("threshold", "calibrated"), [(30.0, True), (0.0, False), (101.0, False)])
def test_a_fixed_threshold_is_calibrated_when_it_is_usable_and_shows_nothing_learned(
    threshold: float, calibrated: bool
) -> None:
    """R70"""
    settings = config(PressureConfig(mode="fixed", threshold_pct=threshold))
    view = shown(device(), settings)
    assert (view["mode"], view["calibrated"], view["threshold_pct"]) == ("fixed", calibrated, threshold)
    assert view["profiles"] == {}
    assert "learned_samples" not in view


def test_the_retired_mode_is_shown_as_what_it_runs_as() -> None:
    assert shown(device(), config(PressureConfig(mode="adaptive")))["mode"] == "calibrated"


def test_a_headless_machine_has_one_profile_in_force_whatever_attendance_is() -> None:
    """D34"""
    view = shown(device(summary("unlocked"), attendance="unknown"), config(presence="headless"))
    assert (view["profile"], view["calibrated"]) == ("unlocked", True)


def test_while_attendance_is_unknown_no_profile_is_in_force() -> None:
    verdict = Verdict(False, True, (Why.ATTENDANCE_UNKNOWN,), "nobody can tell")
    each = device(attendance="unknown", attendance_detail="the bus is gone", verdict=verdict, state="refused")
    view = shown(each)
    assert (view["profile"], view["calibrated"], view["why"]) == (None, False, "attendance_unknown")
    assert view["attendance_detail"] == "the bus is gone"
    assert "threshold_pct" not in view
    assert view["profiles"]["locked"]["calibrated"]


@pytest.mark.parametrize(
    ("measurement", "valid_age_s", "readings", "detail"),
    [
        (None, None, "missing", "nothing was measured yet"),
        (measured("first"), None, "missing", "measuring has just begun"),
        (measured("ok", BOOT - 40), 40.0, "missing", "no reading for 40 s"),
        (measured("ok", BOOT - 20), 20.0, "ok", None),
        (measured("failed", reason="the driver did not answer"), 5.0, "failed", "the driver did not answer"),
        (
            measured("failed", reason="the driver did not answer"),
            40.0,
            "failed",
            "the driver did not answer; no reading for 40 s",
        ),
        (measured("unsupported", reason="MIG is on"), None, "unsupported", "MIG is on"),
        (measured("asleep"), None, "asleep", None),
        (measured("invalid", reading_pct=140.0), None, "invalid", None),
    ],
)
def test_readings_say_whether_they_come_and_if_not_why(
    measurement: Measurement | None, valid_age_s: float | None, readings: str, detail: str | None
) -> None:
    """R59: a reading at the gap limit is fresh, an older one is none."""
    valid_at_s = None if valid_age_s is None else BOOT - valid_age_s
    view = shown(device(measurement=measurement, valid_at_s=valid_at_s))
    assert (view["readings"], view["readings_detail"]) == (readings, detail)
    assert (view["reading_pct"] is not None) == (readings == "ok")


def test_the_gap_limit_grows_with_the_pace() -> None:
    """R59, R19"""
    each = device(measurement=measured(at_s=BOOT - 25), valid_at_s=BOOT - 25)
    assert shown(each, config(PressureConfig(poll_ms=5000)))["readings"] == "missing"
    assert shown(each, config(PressureConfig(poll_ms=10_000)))["readings"] == "ok"


def test_where_nothing_is_measured_that_is_said() -> None:
    view = shown(device(pressure=None), config(PressureConfig(enabled=False)))
    assert (view["mode"], view["readings"]) == ("off", "off")
    assert view["profiles"] == {}


def test_before_the_first_judgement_nothing_is_admitted() -> None:
    view = shown(device(verdict=None, state="refused", measurement=None, valid_at_s=None))
    assert (view["admitting"], view["why"]) == (False, "no_readings")


def test_a_device_whose_workers_are_starting_again_says_so_and_admits_nothing() -> None:
    view = shown(device(state="returning"))
    assert (view["admitting"], view["sentence"]) == (False, "its workers are starting again")


def test_why_a_device_is_given_back_how_long_it_took_and_until_when() -> None:
    given = GiveBackView("taken_back", WALL - 10, 2.1, ("drn_1",))
    taken = TakenBack(WALL - 10, "time", WALL + 60)
    reasons = (Why.TAKEN_BACK, Why.CALIBRATING)
    verdict = Verdict(False, False, reasons, "taken back by its owner", 60.0, WALL + 60)
    view = shown(device(state="free", verdict=verdict, taken_back=taken, give_back=given))
    assert view["reasons"] == ["taken_back", "calibrating"]
    assert view["last_give_back"]["free_in_s"] == 2.1
    assert view["taken_back"] == {"since": WALL - 10, "until": "time", "ends_at": WALL + 60}
    assert view["resume_at"] == WALL + 60


def test_a_take_back_whose_time_is_over_is_not_shown() -> None:
    assert shown(device(taken_back=TakenBack(WALL - 10, "time", WALL)))["taken_back"] is None
