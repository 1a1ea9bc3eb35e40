"""A filled-in form becomes a whole new configuration, or a sentence beside each field that is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swapd.config import Config, OwnerConfig, PressureConfig
from swapd.errors import Code, SwapdError
from swapd.pressure.settings_rules import SETTABLE, SETTABLE_EXCEPTIONS
from swapd.settings.change import MAX_LINES, MAX_TEXT_CHARS, entered, new_settings
from swapd.settings.fields import FIELDS, OWNER, PRESSURE, value_of
from swapd.settings.views import SettingsRefused
from tests.settings.files import GOOD, parsed

SAVED = parsed(GOOD)


def refused(saved: Config = SAVED, /, **values: str) -> dict[str, str]:
    with pytest.raises(SettingsRefused) as caught:
        new_settings(saved, values)
    assert caught.value.code is Code.SETTINGS_INVALID
    return {problem.field: problem.sentence for problem in caught.value.problems}


def test_the_page_changes_what_the_calibration_rules_name_and_owner_policies() -> None:
    """R126: of the pressure settings exactly these; of the owner's the exceptions and more."""
    assert {key for key, field in FIELDS.items() if field.table == PRESSURE} == set(SETTABLE)
    own = {key for key, field in FIELDS.items() if field.table == OWNER}
    assert set(SETTABLE_EXCEPTIONS) <= own <= set(OwnerConfig.__struct_fields__)
    assert not set(OwnerConfig.__struct_fields__) & set(PressureConfig.__struct_fields__)


def test_an_untouched_form_changes_nothing() -> None:
    values = {key: entered(value_of(SAVED.owner, field), key) for key, field in FIELDS.items()}
    made = new_settings(SAVED, values)
    assert made.changes == {}
    # But for the retired key that a save leaves out.
    assert made.config.owner.gpu_pressure.baseline_quantile is None
    assert new_settings(made.config, values).config == made.config


def test_only_what_was_changed_is_a_change() -> None:
    made = new_settings(SAVED, {"cap_pct": " 45.5 ", "floor_pct": "25", "ignore": "beep\r\n\r\nobs\r\n"})
    assert made.changes == {"cap_pct": 45.5}
    assert made.config.owner.gpu_pressure.cap_pct == 45.5


def test_a_list_keeps_its_order_and_gets_what_is_new_at_its_end() -> None:
    made = new_settings(SAVED, {"ignore": "zoom\nbeep\nzoom\nobs"})
    assert made.changes == {"ignore": ("obs", "beep", "zoom")}


@pytest.mark.parametrize(
    ("floor", "cap", "sentence"),
    [
        ("41", "40", "The cap must not be below the floor, 41."),
        ("25", "95", "The cap must be at most 90."),
        ("95", "95", "The cap must be at most 90."),
    ],
)
def test_a_cap_out_of_bounds_is_a_problem_of_its_field(floor: str, cap: str, sentence: str) -> None:
    """R40, D6."""
    assert refused(floor_pct=floor, cap_pct=cap) == {"cap_pct": sentence}


def test_a_fixed_threshold_needs_no_order_of_floor_and_cap() -> None:
    """D7, R40: they do not bind it, so they do not hold its save up."""
    made = new_settings(SAVED, {"mode": "fixed", "threshold_pct": "97", "floor_pct": "95", "cap_pct": "20"})
    assert made.config.owner.gpu_pressure.threshold_pct == 97.0


@pytest.mark.parametrize("threshold", ["", "0", "100.5", "-1"])
def test_a_fixed_threshold_is_above_0_and_at_most_100(threshold: str) -> None:
    """D7, R71."""
    assert list(refused(mode="fixed", threshold_pct=threshold)) == ["threshold_pct"]


def test_a_threshold_without_fixed_mode_is_a_problem_of_its_field() -> None:
    """R75."""
    assert "must be left out" in refused(threshold_pct="30")["threshold_pct"]


def test_a_file_that_was_out_of_bounds_before_is_not_saved_unless_it_is_put_right() -> None:
    """R37, R38, R40: it loads and runs at the bounds; a save is stricter."""
    old = parsed(GOOD.replace("cap_pct = 40", "cap_pct = 95"))
    assert list(refused(old, sustain_s="20")) == ["cap_pct"]
    assert new_settings(old, {"sustain_s": "20", "cap_pct": "90"}).changes == {
        "sustain_s": 20.0,
        "cap_pct": 90.0,
    }


def test_a_retired_mode_is_saved_as_what_it_runs_as() -> None:
    """R78."""
    old = parsed(GOOD.replace("cap_pct = 40", 'mode = "adaptive"'))
    assert new_settings(old, {}).changes == {"mode": "calibrated"}
    assert new_settings(old, {"mode": "calibrated"}).changes == {"mode": "calibrated"}
    assert new_settings(old, {"mode": "fixed", "threshold_pct": "30"}).changes["mode"] == "fixed"
    assert list(refused(old, mode="adaptive")) == ["mode"]


@pytest.mark.parametrize(
    ("key", "text", "part"),
    [
        ("cap_pct", "", "Enter a number"),
        ("cap_pct", "forty", "not a number"),
        ("cap_pct", "nan", "not a number"),
        ("cap_pct", "1_0", "not a number"),
        ("cap_pct", "4" * 5000, "not a number"),
        ("cap_pct", "1e999", "between 0 and 100"),
        ("warmup_samples", "60.5", "whole number"),
        ("warmup_samples", "0", "between 1 and 1000000"),
        ("resume_after_s", "-1", "between 0 and 86400"),
        ("consent", "maybe", "Choose one"),
        ("lend_when", "never", "Choose one"),
        ("quiet_hours", "at night", "no time span"),
        ("ignore", "/usr/bin/obs", "not paths"),
        ("ignore", "a\x07b", "cannot be shown"),
        ("always", "x" * 301, "300 characters"),
        ("always", "\n".join(map(str, range(MAX_LINES + 1))), f"At most {MAX_LINES} lines"),
        ("always", "x" * (MAX_TEXT_CHARS + 1), "too long"),
        ("always", "OBS", "either nobody's or the owner's"),
        ("when_full", "park", "park_bytes"),
    ],
)
def test_what_cannot_be_taken_is_said_beside_its_field(key: str, text: str, part: str) -> None:
    """R40: a form's texts are judged as the file's own values are."""
    problems = refused(**{key: text})
    assert list(problems) == [key]
    assert part in problems[key]
    assert not problems[key].startswith(f"{key}: ")  # it stands beside a label in people's words


def test_every_field_that_is_wrong_is_told_at_once() -> None:
    assert list(refused(cap_pct="x", sustain_s="-1", consent="")) == ["cap_pct", "sustain_s", "consent"]


def test_a_field_that_does_not_exist_is_no_setting() -> None:
    for key in ("poll_ms", "state_file", "port", "x" * 1000):
        with pytest.raises(SwapdError) as caught:
            new_settings(SAVED, {key: "1"})
        assert caught.value.code is Code.INVALID_REQUEST
        assert len(caught.value.detail) < 100


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(FIELDS)), st.text(max_size=40)))
def test_any_form_is_taken_or_refused(values: dict[str, str]) -> None:
    """R40: and what is taken enters again as what it is."""
    try:
        made = new_settings(SAVED, values)
    except SettingsRefused as error:
        wrong = {problem.field for problem in error.problems}
    else:
        wrong = set()
    assert wrong <= set(FIELDS)
    if wrong:
        return
    for key, value in made.changes.items():
        assert value_of(made.config.owner, FIELDS[key]) == value
        again = new_settings(SAVED, {**values, key: entered(value, key)})
        assert again.config == made.config
