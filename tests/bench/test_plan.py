"""The bench moves what it says, as often as it says, at positions spread over a block."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ops.handoff_bench.plan import BREAK_PROMPTS, CellPlan, budget, plan_cell, positions
from ops.handoff_bench.prompts import HEAD, prompt, text


def encode(words: str) -> Sequence[int]:
    """A word, a token."""
    return [sum(word.encode()) for word in words.split()]


def cell(context: int = 300, sessions: int = 1, repeat: int = 20, broken: bool = False) -> CellPlan:
    return plan_cell(context, sessions, repeat, 1, 32, encode, broken)


@pytest.mark.parametrize("moves", [1, 4, 20, 32, 40])
def test_moves_are_spread_evenly_over_a_block(moves: int) -> None:
    chosen = sorted(positions(moves, 32))
    assert len(chosen) == moves
    steps = [after - before for before, after in zip(chosen, [*chosen[1:], chosen[0] + 32], strict=True)]
    assert max(steps) - min(steps) <= 1


@pytest.mark.parametrize(("sessions", "repeat"), [(1, 20), (1, 5), (1, 1), (2, 4), (4, 20)])
def test_a_cell_makes_exactly_the_moves_asked_for(sessions: int, repeat: int) -> None:
    planned = cell(sessions=sessions, repeat=repeat)
    assert sum(each.moves for each in planned.rounds) == repeat
    assert all(len(each.positions) == each.moves for each in planned.rounds)
    spread = [position for each in planned.rounds for position in each.positions]
    assert sorted(spread) == sorted(positions(repeat, 32))


@pytest.mark.parametrize("sessions", [1, 2, 4])
def test_half_of_the_sessions_are_greedy_and_half_sample(sessions: int) -> None:
    planned = cell(sessions=sessions)
    modes = [each.sampling.temperature > 0 for one in planned.rounds for each in one.sessions]
    assert sum(modes) * 2 == len(modes)


def test_every_prompt_has_its_length_and_a_beginning_of_its_own() -> None:
    planned = [cell(sessions=4), cell(), cell(context=301)]
    prompts = [each.prompt for one in planned for run in one.rounds for each in run.sessions]
    assert {len(one) for one in prompts} == {300, 301}
    head = len(encode(HEAD))
    # Within the first block, so that nothing is found in a prefix cache.
    assert len({one[head : head + 32] for one in prompts}) == len(prompts)


def test_equal_seeds_give_equal_plans() -> None:
    assert cell() == cell()
    assert text(3, 9) == text(3, 9) != text(4, 9)


def test_a_prompt_that_is_too_short_for_its_request_is_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        prompt(1, 10, encode)


@pytest.mark.parametrize("sessions", [1, 3, 4])
def test_a_broken_run_has_enough_prompts_and_no_replay(sessions: int) -> None:
    planned = cell(sessions=sessions, repeat=2, broken=True)
    assert len(planned.rounds) * sessions >= BREAK_PROMPTS
    assert all(each.moves == 2 and not each.replays for each in planned.rounds)
    # Plain greedy output loops, and a loop hides damage.
    assert all(
        each.sampling.temperature > 0 or each.sampling.repetition_penalty > 1
        for one in planned.rounds
        for each in one.sessions
    )


def test_a_budget_grows_with_what_happens_beside_a_session() -> None:
    assert budget(512, 1, 4) < budget(512, 1, 20) < budget(4096, 1, 20) < budget(4096, 4, 20)
    assert cell().tokens == 300 + cell().rounds[0].budget
