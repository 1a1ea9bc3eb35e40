"""The drill can fail: each way in which a client's stream can be wrong is seen and said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from ops import drill_restart
from ops.restarting.findings import Findings, compare, judge
from swapd.sse import SseEvent
from tests.e2e.deployment import Reading
from tests.e2e.test_sim import prompt, reference

pytestmark = pytest.mark.once

PROMPT = prompt(1, 20)
LENGTH = 6


def event(at: int | None, name: str, **data: int) -> SseEvent:
    return SseEvent(at, name, json.dumps(data), 0.0)


def whole() -> Reading:
    """A stream as it must be."""
    one = Reading("s")
    tokens = reference(PROMPT, LENGTH)
    one.events = [event(0, "created")]
    one.events += [event(n + 1, "token", token_id=token) for n, token in enumerate(tokens)]
    one.events.append(event(LENGTH + 1, "completed"))
    return one


def without_one(one: Reading) -> None:
    del one.events[3]


def twice_one(one: Reading) -> None:
    one.events.insert(3, one.events[3])


def changed(one: Reading) -> None:
    one.events[3] = event(3, "token", token_id=one.tokens[2] + 1)


def short(one: Reading) -> None:
    one.events[4:] = [event(4, "completed")]


def endless(one: Reading) -> None:
    one.events.pop()


@pytest.mark.parametrize(
    ("harm", "lost", "doubled", "different", "unfinished"),
    [
        (lambda one: None, False, False, False, False),
        (without_one, True, False, True, False),
        (twice_one, False, True, True, False),
        (changed, False, False, True, False),
        (short, True, False, False, False),
        (endless, False, False, False, True),
    ],
)
def test_each_fault_of_a_stream_is_seen(
    harm: Callable[[Reading], None], lost: bool, doubled: bool, different: bool, unfinished: bool
) -> None:
    one = whole()
    harm(one)
    told = compare([one], [PROMPT], LENGTH)
    seen = (told.lost > 0, told.doubled > 0, told.different > 0, told.unfinished > 0)
    assert seen == (lost, doubled, different, unfinished)
    found = Findings("part", [], {})
    judge(found, told)
    assert found.holds is not any(seen)


@pytest.mark.parametrize("took_s", [4.9, 5.1])
def test_the_exit_status_says_whether_all_claims_hold(
    took_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last line sums up, the JSON has every claim, and a start that took too long is a failure."""

    class NoDeployment:
        def __init__(self, *args: object, **kwargs: object) -> None:
            pass

        async def start(self) -> None:
            await trio.lowlevel.checkpoint()

        def close(self) -> None:
            pass

    async def restarted(*args: object, **kwargs: object) -> Findings:
        return Findings("coordinator killed", [], {"found_to_ready_s": took_s})

    monkeypatch.setattr(drill_restart, "Deployment", NoDeployment)
    monkeypatch.setattr(drill_restart, "kill_and_restart", restarted)
    report = tmp_path / "drill.json"
    assert drill_restart.main(["--part", "restart", "--json", str(report)]) == (0 if took_s < 5 else 1)
    [part] = json.loads(report.read_text())
    assert part["claims"][-1]["holds"] is (took_s < 5)
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert verdict.startswith("drill_restart: ok" if took_s < 5 else "drill_restart: FAILED")
