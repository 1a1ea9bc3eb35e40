"""How views are shown: as aligned columns for people, as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
import msgspec

from swapd.device_views import DeviceView, HeldUp
from swapd.views import DrainView, ReconciliationView, SessionView, SwitchesView, WorkerView


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
        ("DRAIN", "WORKER", "STATE", "ORIGIN", "SESSIONS", "SETTLED", "CLEAR IN S", "REASON"),
        [
            (
                view.id,
                view.worker,
                view.state,
                "+".join(each.origin for each in view.askers) or view.origin,
                len(view.sessions),
                settled(view),
                view.time_to_clear_s,
                view.reason,
            )
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


def print_devices(devices: Sequence[DeviceView]) -> None:
    print_table(
        ("DEVICE", "KIND", "STATE", "ADMITS", "LOAD %", "THRESHOLD %", "ATTENDANCE", "FREE IN S", "WHY"),
        [
            (
                view.name,
                view.kind,
                view.state,
                view.admitting,
                view.reading_pct,
                None if view.threshold_pct is msgspec.UNSET else view.threshold_pct,
                view.attendance,
                view.last_give_back.free_in_s if view.last_give_back is not None else None,
                view.sentence,
            )
            for view in devices
        ],
    )


def device_text(view: DeviceView) -> str:
    """State and reason in one sentence: `refused: learning: 12 of 60 readings`."""
    return f"{view.state}: {view.sentence}" if view.sentence and view.sentence != view.state else view.state


def given_back_text(view: DeviceView) -> str:
    """How a wait for a free device ended."""
    given = view.last_give_back
    if view.state != "free":
        return device_text(view)
    return f"free in {given.free_in_s:.1f} s" if given is not None and given.free_in_s is not None else "free"


def device_lines(view: DeviceView) -> list[str]:
    """What `swapd status` tells of a device: the sentence, then what stands behind it (R50, R62)."""
    lines = [f"{view.name} is {device_text(view)}"]
    load = f"load {view.reading_pct:.0f} %" if view.reading_pct is not None else f"readings {view.readings}"
    if view.readings_detail is not None:
        load += f" ({view.readings_detail})"
    lines.append("; ".join(part for part in (load, view.threshold_text, view.hint or None) if part))
    for name, profile in view.profiles.items():
        if not profile.calibrated:
            progress = f"{profile.warmup_have} of {profile.warmup_samples} readings"
            lines.append(f"calibrating while {name}: {progress}")
    detail = f" ({view.attendance_detail})" if view.attendance_detail is not None else ""
    lines.append(f"attendance {view.attendance}{detail}")
    given = view.last_give_back
    if given is not None:
        free = f"free in {given.free_in_s:.1f} s" if given.free_in_s is not None else "not free yet"
        lines.append(f"last given back: {free} ({given.why})")
    if view.held_up is not None:
        lines.append(_held_up_text(view.held_up))
    return [lines[0], *(f"  {line}" for line in lines[1:])]


def _held_up_text(held: HeldUp) -> str:
    """How a give-back ends although the store has failed."""
    names = ", ".join(f"{name} (pid {pid})" for name, pid in held.processes.items()) or "its workers"
    if held.ends_at is None:
        return f"held up: the store failed during a move; restart swapd, or end {names} yourself"
    return f"held up: the store failed; swapd ends {names} at {when(held.ends_at)}"


def switch_lines(view: SwitchesView) -> list[str]:
    """How admission and migration stand, a line each."""
    admission = "admission is open"
    if not view.admission:
        admission = f"admission is stopped by the operator{_since(view.admission_off_since)}"
    migration = "migration is on"
    if view.migration_off_since is not None:
        migration = f"migration is off by the operator{_since(view.migration_off_since)}"
    if not view.migration_configured:
        migration = "migration is off by the configuration (migration_enabled = false)"
    return [admission, migration]


def _since(at: float | None) -> str:
    return "" if at is None else f" since {when(at)}"


def when(at: float) -> str:
    """A moment in local time, to the second."""
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"


def print_reconciliation(report: ReconciliationView) -> None:
    """Each session with what became of it; then one line of counts."""
    if report.sessions:
        print_table(
            ("SESSION", "RESULT", "WORKER", "EPOCH", "ACCEPTED", "RECOMPUTED", "REASON"),
            [
                (
                    each.session,
                    each.result,
                    each.worker,
                    each.epoch,
                    each.accepted,
                    each.recomputed_tokens,
                    each.code or each.reason,
                )
                for each in report.sessions
            ],
        )
        click.echo()
    counts = ", ".join(f"{count} {result}" for result, count in sorted(report.counts.items()))
    if report.left_out:
        click.echo(f"{report.left_out} more are not listed")
    workers = ", ".join(f"{worker} {how}" for worker, how in report.workers.items())
    click.echo(f"reconciliation: {report.state}; {counts or 'no sessions were left'}; workers: {workers}")
    if report.undecided:
        click.echo(f"{report.undecided} sessions are undecided")
    if report.found_to_ready_s is not None:
        click.echo(f"decided {report.found_to_ready_s:.3f} s after the last worker was found")


def settled(drain: DrainView) -> int:
    """How many of a drain's sessions have an outcome."""
    return sum(each.outcome is not None for each in drain.sessions)
