"""How views are shown: as aligned columns for people, as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from swapd.api import DrainView, SessionView, WorkerView


def print_json(value: Any) -> None:
    """One JSON document on one line; a message's type tag is no part of it."""
    built = msgspec.to_builtins(value)
    if isinstance(built, dict):
        built.pop("type", None)
    click.echo(msgspec.json.encode(built).decode())


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as their widest cell; None is shown as `-`."""
    cells = [list(heads), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    return str(value)


def print_workers(workers: Sequence[WorkerView]) -> None:
    print_table(
        ("WORKER", "STATE", "ADMITS", "SESSIONS", "BLOCKS", "STEP MS", "DEVICE", "DRAIN", "REASON"),
        [
            (
                view.id,
                view.state,
                view.admitting,
                view.sessions,
                f"{view.committed_blocks}/{view.usable_blocks}",
                view.stats.get("step_ms_median"),
                view.device,
                view.drain,
                view.reason,
            )
            for view in workers
        ],
    )


def print_sessions(sessions: Sequence[SessionView]) -> None:
    print_table(
        ("SESSION", "STATE", "WORKER", "EPOCH", "TOKENS", "OF", "PROMPT"),
        [
            (
                view.id,
                view.state,
                view.worker,
                view.epoch,
                view.accepted,
                view.max_new_tokens,
                view.prompt_tokens,
            )
            for view in sessions
        ],
    )


def print_drains(drains: Sequence[DrainView]) -> None:
    print_table(
        ("DRAIN", "WORKER", "STATE", "ORIGIN", "SESSIONS", "SETTLED"),
        [
            (view.id, view.worker, view.state, view.origin, len(view.sessions), settled(view))
            for view in drains
        ],
    )


def print_outcomes(drain: DrainView) -> None:
    print_table(
        ("SESSION", "OUTCOME", "TARGET", "FROZEN MS", "RECOMPUTED", "REASON"),
        [
            (
                each.session,
                each.outcome or each.phase,
                each.target,
                each.frozen_ms,
                each.recomputed_tokens,
                each.reason,
            )
            for each in drain.sessions
        ],
    )


def settled(drain: DrainView) -> int:
    """How many of a drain's sessions have an outcome."""
    return sum(each.outcome is not None for each in drain.sessions)
