"""When a worker that ended is started again."""

from __future__ import annotations

from swapd.worker.restarts import BACKOFF_MAX_S, Restarts


def test_a_worker_is_given_up_after_so_many_short_lives_in_a_row() -> None:
    """B32"""
    restarts = Restarts(2)
    given_up = []
    for _ in range(3):
        restarts.lived(1.0)
        given_up.append(restarts.given_up)
    assert given_up == [False, False, True]
    restarts.lived(BACKOFF_MAX_S + 1.0)
    assert (restarts.in_a_row, restarts.given_up) == (0, False)


def test_the_pause_doubles_until_a_life_was_long_or_it_was_stopped() -> None:
    """B32"""
    restarts = Restarts(100)
    assert [restarts.next_pause_s() for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    restarts.lived(1.0)
    assert restarts.next_pause_s() == 30.0
    restarts.lived(BACKOFF_MAX_S + 1.0)
    assert [restarts.next_pause_s(), restarts.next_pause_s()] == [0.5, 1.0]
    restarts.forget()
    assert restarts.next_pause_s() == 0.5
