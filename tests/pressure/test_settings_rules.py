"""What the settings page may change, and what it refuses to save."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.app import create_app
from swapd.config import LimitConfig, OwnerConfig, PressureConfig
from swapd.config_rules import RANGES
from swapd.pressure.settings_rules import (
    RETIRED_KEYS,
    SETTABLE,
    SETTABLE_EXCEPTIONS,
    FieldProblem,
    console_problems,
    fixed_problem,
    without_retired,
)

percent = st.floats(0.0, 100.0)


@pytest.mark.parametrize(
    ("floor", "cap", "fields"),
    [
        (25.0, 40.0, []),
        (40.0, 40.0, []),
        (25.0, 90.0, []),
        (90.0, 90.0, []),
        (40.1, 40.0, ["cap_pct"]),
        (25.0, 90.5, ["cap_pct"]),
        (95.0, 92.0, ["cap_pct", "cap_pct"]),
        # D6: the file may say so, the page does not save it.
        (95.0, 95.0, ["cap_pct"]),
    ],
)
def test_a_cap_out_of_bounds_is_not_saved_in_calibrated_mode(
    floor: float, cap: float, fields: list[str]
) -> None:
    """R40, D6."""
    found = console_problems(PressureConfig(floor_pct=floor, cap_pct=cap))
    assert [problem.field for problem in found] == fields


@given(percent, percent)
def test_floor_cap_and_ninety_decide_alone(floor: float, cap: float) -> None:
    """R40."""
    refused = bool(console_problems(PressureConfig(floor_pct=floor, cap_pct=cap)))
    assert refused == (not floor <= cap <= 90.0)


@pytest.mark.parametrize("threshold", [0.1, 50.0, 100.0])
def test_a_fixed_threshold_is_not_bound_by_floor_and_cap(threshold: float) -> None:
    """R40, D7."""
    config = PressureConfig(mode="fixed", threshold_pct=threshold, floor_pct=95.0, cap_pct=10.0)
    assert console_problems(config) == []


@pytest.mark.parametrize("threshold", [0.0, -1.0, 100.1, float("nan"), float("inf")])
def test_a_fixed_threshold_that_is_none_is_not_saved(threshold: float) -> None:
    """D7, R71."""
    (problem,) = console_problems(PressureConfig(mode="fixed", threshold_pct=threshold))
    assert problem.field == "threshold_pct"


def test_a_fixed_mode_without_a_threshold_is_said_to_need_one() -> None:
    """R71."""
    needs = 'mode = "fixed" needs threshold_pct, above 0 and at most 100'
    assert fixed_problem(PressureConfig(mode="fixed")) == needs
    assert console_problems(PressureConfig(mode="fixed")) == [FieldProblem("threshold_pct", needs)]
    for usable in (0.5, 1.0, 100.0):
        assert fixed_problem(PressureConfig(mode="fixed", threshold_pct=usable)) is None


def test_a_threshold_left_over_in_calibrated_mode_is_not_saved() -> None:
    """R75."""
    assert console_problems(PressureConfig(threshold_pct=30.0)) == [
        FieldProblem(
            "threshold_pct",
            'threshold_pct is for mode = "fixed"; in mode = "calibrated" it must be left out',
        )
    ]


def test_a_save_leaves_the_retired_keys_out() -> None:
    """R122."""
    table = {"mode": "calibrated", "baseline_quantile": 0.25, "cap_pct": 50, "baseline_window_s": 1}
    assert without_retired(table) == {"mode": "calibrated", "cap_pct": 50}


def test_what_the_page_may_change_are_settings_of_the_next_start() -> None:
    """R126: running values cannot change under a tracker: the settings it was given are frozen."""
    assert set(SETTABLE) <= set(PressureConfig.__struct_fields__) - set(RETIRED_KEYS)
    assert set(SETTABLE_EXCEPTIONS) <= set(OwnerConfig.__struct_fields__)
    for kind in (PressureConfig, OwnerConfig):
        with pytest.raises(AttributeError):
            setattr(kind(), kind.__struct_fields__[0], None)
    for name in SETTABLE:
        assert name == "mode" or name in RANGES[PressureConfig]


def test_nobody_is_offered_a_recalibration() -> None:
    """R127: neither an address nor a setting starts one."""
    app = create_app(None, LimitConfig())  # type: ignore[arg-type]  # no route is called
    assert not [rule.rule for rule in app.url_map.iter_rules() if "calibrat" in rule.rule]
    names = {field.name for kind in (PressureConfig, OwnerConfig) for field in msgspec.structs.fields(kind)}
    assert not {name for name in names if "recalibrat" in name or "reset" in name}
