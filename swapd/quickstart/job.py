"""The main job, once: a generation is read over SSE while its worker is drained under it."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, Final

import trio

from swapd.client import HttpClient
from swapd.errors import Code, SwapdError
from swapd.quickstart.measure import SeenToken, judge
from swapd.views import DrainView, SessionView

MAX_NEW_TOKENS: Final = 128
DRAIN_AFTER_TOKENS: Final = 24
JOB_TIMEOUT_S: Final = 420.0
"""On a busy machine a token can take a second; the job is a few seconds on an idle one."""
DRAIN_DEADLINE_S: Final = 240.0
POLL_S: Final = 0.1

PROMPT: Final = (
    "A lighthouse keeper writes down everything that passes in front of his window. He notes the ships by "
    "their lights, the birds by their calls, and the weather by the colour of the water in the morning. On "
    "quiet days he reads what he wrote a year before and compares. The grey herring gulls come back in the "
    "second week of March. The mail boat is late whenever the wind turns to the north before noon. The "
    "fishermen from the eastern village sail in pairs, and since the storm that took the old pier they "
    "sail in threes. He has counted four hundred and eleven ships, two of them twice, and once a whale that "
    "he first took for a rock that had not been there the day before. When visitors ask him what it is good "
    "for, he shows them the page of the day on which they were born, if he was already here, and tells them "
    "who was at sea that night. Most of them become silent then. A few ask for a copy. One woman asked "
    "whether he had ever missed a ship, and he thought about it for a long time. He said that a ship which "
    "nobody saw leaves no gap in the book, and that this was the only thing about his work that he feared. "
    "This is the page that he wrote on the day after she left:\n\n"
)
"""About 270 tokens; its continuation does not fall into a loop at once."""

Report = Callable[[str], None]


async def run_job(client: HttpClient, operator: HttpClient, report: Report) -> dict[str, Any]:
    """Run it and return what came of it, ready for JSON. Raises the service's refusals and `timeout`."""
    with trio.move_on_after(JOB_TIMEOUT_S):
        return await _run(client, operator, report)
    raise SwapdError(Code.TIMEOUT, f"the job did not end within {JOB_TIMEOUT_S:g} s")


class _Move:
    """A drain and when it was seen to begin and to end."""

    def __init__(self) -> None:
        self.view: DrainView | None = None
        self.began_s = 0.0
        self.ended_s = 0.0
        self.ended = trio.Event()
        self.failure: SwapdError | None = None

    async def run(self, operator: HttpClient, worker: str) -> None:
        try:
            self.began_s = trio.current_time()
            body = {"deadline_s": DRAIN_DEADLINE_S}
            view = await operator.view("POST", f"/v1/workers/{worker}/drains", DrainView, body)
            while view.state == "running":
                await trio.sleep(POLL_S)
                view = await operator.view("GET", f"/v1/drains/{view.id}", DrainView)
            self.view = view
        except SwapdError as error:
            self.failure = error
        finally:
            self.ended_s = trio.current_time()
            self.ended.set()


async def _run(client: HttpClient, operator: HttpClient, report: Report) -> dict[str, Any]:
    request = {
        "prompt": PROMPT,
        "max_new_tokens": MAX_NEW_TOKENS,
        "temperature": 0.0,
        "ignore_eos": True,
    }
    session = await client.view("POST", "/v1/sessions", SessionView, request)
    report(f"session {session.id}: {session.prompt_tokens} prompt tokens, greedy, {MAX_NEW_TOKENS} to come")
    tokens: list[SeenToken] = []
    move = _Move()
    source = ""
    terminal = ""
    async with trio.open_nursery() as nursery, client.events(session.id, reconnect=True) as stream:
        async for event in stream:
            if event.name == "token":
                tokens.append(SeenToken(int(event.json()["pos"]), event.id or 0, event.at_s))
                if len(tokens) == DRAIN_AFTER_TOKENS:
                    source = (
                        await client.view("GET", f"/v1/sessions/{session.id}", SessionView)
                    ).worker or ""
                    report(f"token {len(tokens)} came from worker {source}; draining it")
                    nursery.start_soon(move.run, operator, source)
            elif event.name != "created":
                terminal = event.name
        if source:
            await move.ended.wait()
    if move.failure is not None:
        raise move.failure
    final = await client.view("GET", f"/v1/sessions/{session.id}", SessionView)
    return _summary(final, terminal, tokens, move, source)


def _summary(
    final: SessionView, terminal: str, tokens: list[SeenToken], move: _Move, source: str
) -> dict[str, Any]:
    reading = judge(tokens, final.accepted, move.began_s, move.ended_s)
    moved = [each for each in move.view.sessions if each.session == final.id] if move.view else []
    outcome = moved[0] if moved else None
    return {
        "outcome": outcome.outcome if outcome else None,
        "tokens_lost": reading.tokens_lost,
        "tokens_duplicated": reading.tokens_duplicated,
        "tokens_out_of_order": reading.out_of_order,
        "recomputed_tokens": outcome.recomputed_tokens if outcome else None,
        "pause_ms": reading.pause_ms,
        "token_ms_median": reading.token_ms_median,
        "frozen_ms": outcome.frozen_ms if outcome else None,
        "precopied_bytes": outcome.precopied_bytes if outcome else None,
        "frozen_bytes": outcome.frozen_bytes if outcome else None,
        "reuse": outcome.reuse if outcome else None,
        "reason": outcome.reason if outcome else None,
        "state": terminal,
        "accepted": final.accepted,
        "prompt_tokens": final.prompt_tokens,
        "source": source,
        "target": outcome.target if outcome else None,
        "epoch": final.epoch,
        "drain_state": move.view.state if move.view else None,
        "machine": platform.machine(),
    }


def succeeded(summary: dict[str, Any]) -> bool:
    """Whether the generation moved natively and its reader noticed nothing but a pause."""
    zeros = ("tokens_lost", "tokens_duplicated", "tokens_out_of_order", "recomputed_tokens")
    return (
        summary["outcome"] == "completed_native"
        and summary["state"] == "completed"
        and all(summary[name] == 0 for name in zeros)
    )
