"""What a new session may ask for."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.config import LimitConfig
from swapd.errors import Code, SwapdError
from swapd.sessions.requests import check_new_session
from swapd.views import NewSession

GOOD = NewSession(prompt="hello", max_new_tokens=8)
LIMITS = LimitConfig()


def code_of(limits: LimitConfig = LIMITS, **changes: object) -> Code | None:
    try:
        check_new_session(msgspec.structs.replace(GOOD, **changes), limits)
    except SwapdError as error:
        return error.code
    return None


@pytest.mark.parametrize(
    ("field", "edge", "beyond"),
    [
        ("temperature", 0.0, -0.1),
        ("temperature", 5.0, 5.1),
        ("top_p", 1.0, 1.1),
        ("top_p", 1e-9, 0.0),
        ("top_k", 0, -1),
        ("min_p", 0.0, -0.1),
        ("min_p", 1.0, 1.1),
        ("presence_penalty", -2.0, -2.1),
        ("presence_penalty", 2.0, 2.1),
        ("frequency_penalty", -2.0, -2.1),
        ("frequency_penalty", 2.0, 2.1),
        ("repetition_penalty", 10.0, 10.1),
        ("repetition_penalty", 0.1, 0.0),
        ("min_tokens", 8, 9),
        ("min_tokens", 0, -1),
        ("seed", 0, -1),
        ("seed", (1 << 63) - 1, 1 << 63),
        ("max_new_tokens", 1, 0),
        ("max_lifetime_s", 3600.0, 3600.1),
        ("max_lifetime_s", 0.1, 0.0),
        ("stop", ["s" * 256] * 8, ["s"] * 9),
        ("stop", ["s"], [""]),
        ("stop", ["s"], ["s" * 257]),
        ("stop_token_ids", [0] * 64, [0] * 65),
        ("stop_token_ids", [0], [-1]),
        ("prompt", [0, 1], [0, -1]),
        ("prompt", [(1 << 31) - 1], [1 << 31]),
        ("model", "m", ""),
    ],
)
def test_the_edge_passes_and_one_step_beyond_is_refused(field, edge, beyond):
    """H5, H165"""
    assert code_of(**{field: edge}) is None
    assert code_of(**{field: beyond}) is Code.INVALID_REQUEST


def test_the_configured_ceiling_is_the_edge_for_the_budget():
    """H5, H165"""
    limits = LimitConfig(max_new_tokens=512)
    assert code_of(limits, max_new_tokens=512) is None
    assert code_of(limits, max_new_tokens=513) is Code.INVALID_REQUEST


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_has_its_own_code(prompt):
    assert code_of(prompt=prompt) is Code.PROMPT_EMPTY


@pytest.mark.parametrize(
    "field",
    ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
     "max_lifetime_s"],
)  # fmt: skip
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_refused(field, value):
    assert code_of(**{field: value}) is Code.INVALID_REQUEST


@given(
    value=st.integers(min_value=1 << 70) | st.integers(max_value=-(1 << 70)),
    field=st.sampled_from(["temperature", "top_p", "seed", "top_k", "max_new_tokens", "min_tokens"]),
)
def test_a_refusal_never_repeats_the_value(value, field):
    with pytest.raises(SwapdError) as refused:
        check_new_session(msgspec.structs.replace(GOOD, **{field: value}), LIMITS)
    assert str(value) not in refused.value.sentence
