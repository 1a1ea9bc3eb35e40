"""Wrong tokens: a few are free, then one waits, longer each time; nobody waits for another's guesses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.signin.attempts import (
    CALM_LEVEL,
    FORGET_S,
    FREE_TRIES,
    MAX_LEVEL,
    MAX_PEERS,
    MAX_WAIT_S,
    Attempts,
    peer_of,
)


def test_the_first_tries_are_free_and_each_further_one_waits_twice_as_long() -> None:
    attempts = Attempts()
    waits = [attempts.failed("a", 1000.0 * n) for n in range(FREE_TRIES + 4)]
    assert waits == [0.0] * (FREE_TRIES - 1) + [1.0, 2.0, 4.0, 8.0, 16.0]


def test_a_wait_ends_and_never_grows_beyond_a_quarter_of_an_hour() -> None:
    attempts = Attempts()
    now = 0.0
    for _ in range(100):
        now += attempts.failed("a", now)
    assert attempts.failed("a", now) == MAX_WAIT_S
    assert attempts.wait_s("a", now + MAX_WAIT_S - 1) == 1.0
    assert attempts.wait_s("a", now + MAX_WAIT_S) == 0.0


def test_an_hour_without_a_wrong_try_is_a_fresh_start() -> None:
    attempts = Attempts()
    for _ in range(20):
        attempts.failed("a", 0.0)
    assert attempts.failed("a", FORGET_S) == 0.0


def test_the_right_token_forgets_the_wrong_ones_before_it() -> None:
    attempts = Attempts()
    for _ in range(20):
        attempts.failed("a", 0.0)
    attempts.succeeded("a")
    assert attempts.wait_s("a", 0.0) == 0.0
    assert attempts.failed("a", 0.0) == 0.0


def test_guessing_from_many_addresses_leaves_each_one_try_and_a_long_wait() -> None:
    attempts = Attempts()
    for n in range(int(MAX_LEVEL)):
        attempts.failed(f"bot{n}", 0.0)
    assert attempts.failed("another", 0.0) == pytest.approx(2 ** ((MAX_LEVEL - CALM_LEVEL) / 10))


def test_after_a_quiet_time_guessing_is_forgotten() -> None:
    attempts = Attempts()
    for n in range(1000):
        attempts.failed(f"bot{n}", 0.0)
    assert attempts.level(420.0) <= CALM_LEVEL
    assert attempts.failed("another", 430.0) == 0.0


failures = st.lists(st.tuples(st.integers(0, 40), st.floats(0, 400)), max_size=200)


@given(failures)
def test_whoever_never_failed_never_waits(given_failures: list[tuple[int, float]]) -> None:
    attempts, now = Attempts(), 0.0
    for peer, after in given_failures:
        now += after
        attempts.failed(f"p{peer}", now)
        assert attempts.wait_s("owner", now) == 0.0


@given(failures)
def test_waits_and_level_stay_within_their_bounds(given_failures: list[tuple[int, float]]) -> None:
    attempts, now = Attempts(), 0.0
    for peer, after in given_failures:
        now += after
        wait = attempts.failed(f"p{peer}", now)
        assert 0.0 <= wait <= MAX_WAIT_S
        assert attempts.wait_s(f"p{peer}", now) == pytest.approx(wait)
        assert 0.0 <= attempts.level(now) <= MAX_LEVEL


@given(st.lists(st.floats(0, 100), min_size=6, max_size=60))
def test_a_peer_that_waits_as_told_has_few_tries(pauses: list[float]) -> None:
    """However it spreads them: `n` tries that were looked at took at least so long together."""
    attempts, now, looked_at = Attempts(), 0.0, 0
    for pause in pauses:
        now += pause
        if attempts.wait_s("a", now) == 0.0:
            attempts.failed("a", now)
            looked_at += 1
    doubled = looked_at - FREE_TRIES
    if doubled > 0 and now < FORGET_S:
        assert now >= min(2.0**doubled - 1, MAX_WAIT_S) - 1e-6


def test_memory_is_bounded_and_who_failed_last_is_remembered() -> None:
    attempts = Attempts()
    for n in range(3 * MAX_PEERS):
        attempts.failed(f"p{n}", float(n))
    assert len(attempts) == MAX_PEERS
    assert attempts.wait_s(f"p{3 * MAX_PEERS - 1}", 3.0 * MAX_PEERS - 1) > 0.0


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
        (None, "unknown"),
        ("<local>", "unknown"),
    ],
)
def test_an_ipv6_network_is_one_peer(address: str | None, peer: str) -> None:
    assert peer_of(address) == peer
