"""Two vLLM workers on one card move sessions to and fro: the rounds of the bench, without its timing claims.

Written from the facts, on a machine without a GPU: it has not met one yet (`docs/gpu.md` has what it did).
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from ops.gpu_checking.dummy import write_checkpoint
from ops.gpu_checking.report import Check, Json
from ops.handoff_bench.control import control_round, run_controls
from ops.handoff_bench.deployment import Card, Size, open_deployment, private_folder
from ops.handoff_bench.figures import cell_json
from ops.handoff_bench.plan import CellPlan, plan_cell
from ops.handoff_bench.rounds import Round, RoundResult
from ops.handoff_bench.verdict import claims
from swapd.errors import SwapdError
from swapd.sessions.tokenizer import load_tokenizer

CUDA_VLLM: Final = "vllm"
NAMESPACE: Final = "bench"
"""Of the deployment's credential."""
CONTEXTS: Final = (1024, 4096)
SESSIONS: Final = (1, 4)
MOVES: Final = 8
SEED: Final = 1
SHARE: Final = 0.4
"""Of the card's memory for each worker; the desktop and CUDA itself need the rest."""
BLOCK_TOKENS: Final = 16
CPU_BLOCK_TOKENS: Final = 32


def check_handoff(
    uuid: str, model: Path | None, keep: bool, report: Callable[[str], None]
) -> tuple[list[Check], list[Json]]:
    """Move sessions, and return a check a claim and the bench's cells. Raises `SwapdError`."""
    try:
        importlib.metadata.version(CUDA_VLLM)
    except importlib.metadata.PackageNotFoundError:
        return [Check("handoff", "skipped", "vLLM for CUDA is not installed (swapd[cuda])")], []
    with private_folder(keep) as folder:
        if keep:
            report(f"everything is in {folder}")
        if model is None:
            (folder / "model").mkdir()
            model = write_checkpoint(folder / "model")
        try:
            return trio.run(move_on_card, folder, model, Card(uuid, SHARE, BLOCK_TOKENS), report)
        except SwapdError as error:
            return [Check("handoff", "fails", f"{error.code}: {error}")], []


async def move_on_card(
    folder: Path, model: Path, card: Card, report: Callable[[str], None]
) -> tuple[list[Check], list[Json]]:
    """The measured part, then its control; nothing of either is left."""
    return await move(folder, model, card, plan(model, CONTEXTS, SESSIONS, MOVES, card.block_tokens), report)


def plan(
    model: Path, contexts: tuple[int, ...], sessions: tuple[int, ...], moves: int, block_tokens: int
) -> list[CellPlan]:
    encode = load_tokenizer(model).encode
    return [
        plan_cell(context, at_once, moves, SEED, block_tokens, encode, broken=False)
        for context in contexts
        for at_once in sessions
    ]


async def move(
    folder: Path, model: Path, card: Card | None, cells: list[CellPlan], report: Callable[[str], None]
) -> tuple[list[Check], list[Json]]:
    """`card` None: on this machine's CPU, as the bench does."""
    block_tokens = cells_block_tokens(card)
    size = Size(
        session_tokens=max(blocks(cell.tokens, block_tokens) for cell in cells),
        tokens=max(cell.sessions * blocks(cell.tokens, block_tokens) for cell in cells),
        sessions=max(cell.sessions for cell in cells),
    )
    results: list[list[RoundResult]] = []
    async with open_deployment(folder, model, size, "", report, card) as deployment:
        block_bytes = deployment.info.block_bytes
        for cell in cells:
            report(f"{cell.context} tokens, {cell.sessions} at once")
            results.append([await Round(deployment, each, report).run() for each in cell.rounds])
        await deployment.collect()
        steps, config = deployment.steps, deployment.config.models[0]
    clock_s = trio.current_time() - time.monotonic()
    wanted = [
        control_round(f"{cell}/{number}", result, steps, NAMESPACE, clock_s)
        for cell, rounds in enumerate(results)
        for number, result in enumerate(rounds)
    ]
    controls = await run_controls(folder, config, wanted, report, card)
    figures = [
        cell_json(
            plan,
            [(result, controls[f"{cell}/{number}"]) for number, result in enumerate(results[cell])],
            steps,
            clock_s,
            block_tokens,
        )
        for cell, plan in enumerate(cells)
    ]
    found = [
        Check(f"handoff: {claim.name}", "holds" if claim.holds else "fails", claim.detail)
        for claim in claims(figures, block_bytes, timing=False)
    ]
    return [*found, *map(pause, figures)], figures


def cells_block_tokens(card: Card | None) -> int:
    return CPU_BLOCK_TOKENS if card is None else card.block_tokens


def blocks(tokens: int, block_tokens: int) -> int:
    """Whole blocks, in tokens."""
    return -(-tokens // block_tokens) * block_tokens


def pause(cell: Json) -> Check:
    """Pauses are told and not judged: what is right for a card is not known yet."""
    told = (
        f"{cell['pause_ms']['median']:.0f} ms, p95 {cell['pause_ms']['p95']:.0f} ms,"
        f" {cell['pause_steps_p95']:.2f} token intervals"
    )
    return Check(f"handoff: pause at {cell['context']} tokens, {cell['sessions']} at once", "seen", told)
