"""What the bench claims, and whether its figures bear it out. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ops.judging import Claim

Json = dict[str, Any]

MAX_PAUSE_STEPS: Final = 3.0
MAX_GROWTH: Final = 1.3
"""Of the pause in token intervals, from the smallest context to the largest."""
MAX_RATIO_COLD: Final = 0.05
RATIO_COLD_FROM_CONTEXT: Final = 2048
MIN_DIFFERING: Final = 0.9


def claims(cells: Sequence[Json], block_bytes: int, *, timing: bool) -> list[Claim]:
    """The claims about moves that were not broken; those about time only with `timing`."""
    found = list(_sound(cells, block_bytes))
    if timing:
        found += _fast(cells)
    return found


def broken_claims(cells: Sequence[Json]) -> list[Claim]:
    """With a damaged copy: at least `MIN_DIFFERING` of the prompts went on differently."""
    prompts = [prompt for cell in cells for prompt in cell["prompts"]]
    # A void control says nothing of a difference.
    differing = sum(prompt["differs_at"] is not None and prompt["control_void"] is None for prompt in prompts)
    detail = f"{differing} of {len(prompts)} prompts differ"
    return [Claim("damage is seen", bool(prompts) and differing >= MIN_DIFFERING * len(prompts), detail)]


def _sound(cells: Sequence[Json], block_bytes: int) -> Iterator[Claim]:
    moves, asked = (sum(cell[key] for cell in cells) for key in ("moves", "moves_asked"))
    yield Claim("every move is native", moves == asked, f"{moves} of {asked}")
    reuse = min(cell["reuse"] for cell in cells)
    yield Claim("reuse is 1.0", reuse == 1.0, f"{reuse:g}")
    recomputed = sum(cell["recomputed_tokens"] for cell in cells)
    yield Claim("nothing is recomputed", recomputed == 0, f"{recomputed} tokens")
    differing = sum(cell["differing"] for cell in cells)
    total = sum(len(cell["prompts"]) for cell in cells)
    yield Claim(
        "every continuation is identical",
        all(cell["identical"] for cell in cells),
        f"{total - differing} of {total} sessions",
    )
    # No state travels beside the blocks: noise is a function of seed and position.
    frozen = max(cell["frozen_bytes_max"] for cell in cells)
    yield Claim(
        "at most one block is copied in the pause", frozen <= block_bytes, f"{frozen} of {block_bytes} bytes"
    )


def _fast(cells: Sequence[Json]) -> Iterator[Claim]:
    worst = max(cells, key=lambda cell: _or_inf(cell["pause_steps_p95"]))
    yield Claim(
        f"the pause is at most {MAX_PAUSE_STEPS:g} token intervals",
        worst["pause_steps_p95"] <= MAX_PAUSE_STEPS,
        f"p95 {worst['pause_steps_p95']:.2f} at {_where(worst)}",
    )
    for sessions in sorted({cell["sessions"] for cell in cells}):
        group = sorted((c for c in cells if c["sessions"] == sessions), key=lambda c: int(c["context"]))
        if len(group) > 1:
            growth = group[-1]["pause_steps_p95"] / group[0]["pause_steps_p95"]
            yield Claim(
                f"the pause does not grow with the context, {sessions} at once",
                growth <= MAX_GROWTH,
                f"{growth:.2f} times from {group[0]['context']} to {group[-1]['context']} tokens",
            )
    long = [cell for cell in cells if cell["context"] >= RATIO_COLD_FROM_CONTEXT]
    if long:
        worst = max(long, key=lambda cell: _or_inf(cell["ratio_cold"]))
        yield Claim(
            f"the pause is at most {MAX_RATIO_COLD:.0%} of a cold replay",
            worst["ratio_cold"] <= MAX_RATIO_COLD,
            f"{worst['ratio_cold']:.2%} at {_where(worst)}",
        )
    worst = max(cells, key=lambda cell: _or_inf(cell["ratio_warm"]))
    yield Claim(
        "the pause is shorter than a warm replay",
        worst["ratio_warm"] < 1,
        f"{worst['ratio_warm']:.2f} at {_where(worst)}",
    )


def _or_inf(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _where(cell: Json) -> str:
    return f"{cell['context']} tokens, {cell['sessions']} at once"
