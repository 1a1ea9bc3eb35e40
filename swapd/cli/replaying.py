"""`swapd replay-readings`: what the rules make of recorded readings. No service is asked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from swapd.errors import Code, SwapdError

if TYPE_CHECKING:
    from swapd.pressure.reading import Decision
    from swapd.pressure.replay import Totals

STDIN: Final = "-"
HEADS: Final = (
    "T S",
    "PROFILE",
    "READING",
    "BASELINE",
    "TARGET",
    "THRESHOLD",
    "CALIBRATED",
    "ENGAGED",
    "LEARNED H",
)
WIDTHS: Final = (12, 8, 8, 8, 8, 9, 10, 7, 9)


@click.command("replay-readings", short_help="Show what the rules make of recorded readings.")
@click.argument("file", metavar="FILE")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="Take the settings of [owner] from here; default: the built-in ones.",
)
@click.option("--all", "every", is_flag=True, help="Show every row, not only those that change something.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a row, and nothing else.")
def replay_readings(file: str, config: Path | None, every: bool, as_json: bool) -> None:
    """Run the readings of FILE (`-`: standard input) through the same rules as a lent device's.

    FILE is CSV with the head line t_s,reading,attendance. A reading is 0 to 100, failed, invalid or missing;
    attendance is locked, unlocked or unknown.
    """
    import msgspec

    from swapd.config import OwnerConfig
    from swapd.config_file import read_config
    from swapd.pressure.replay import Totals, parse, replay, row
    from swapd.pressure.texts import decision_text

    owner = read_config(config).owner if config is not None else OwnerConfig()
    with _lines(file) as lines:
        name = "standard input" if file == STDIN else Path(file).name
        decisions = replay(parse(lines, name), owner.gpu_pressure, headless=owner.presence == "headless")
        if as_json:
            out = sys.stdout.buffer
            try:
                for decision in decisions:
                    out.write(msgspec.json.encode(row(decision)) + b"\n")
            finally:
                # What came before a line that is refused has been asked for as well.
                out.flush()
            return
        totals = Totals()
        _print_table(decisions, totals, every)
        text = decision_text(totals.last, owner.gpu_pressure) if totals.last is not None else None
    _print_summary(totals, text)


@contextmanager
def _lines(file: str) -> Iterator[Iterator[str]]:
    """The lines of a file or of standard input, none much longer than may be. Raises `invalid_request`."""
    from swapd.pressure.replay import MAX_LINE_CHARS

    try:
        # Bytes that are no UTF-8 become characters that no cell may hold, so that the line is named.
        stream = click.open_file(file, encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise SwapdError(Code.INVALID_REQUEST, f"cannot read {file}: {error.strerror}") from None
    with stream as opened:
        yield iter(lambda: opened.readline(MAX_LINE_CHARS + 1), "")


def _print_table(decisions: Iterator[Decision], totals: Totals, every: bool) -> None:
    """Print as it comes: a month of readings is never held in memory."""
    shown_last = True
    for decision in decisions:
        changed = totals.add(decision)
        if totals.rows == 1:
            _print_cells(HEADS)
        shown_last = changed or every
        if shown_last:
            _print_decision(decision)
    if not shown_last and totals.last is not None:
        _print_decision(totals.last)


def _print_decision(decision: Decision) -> None:
    _print_cells(
        (
            f"{decision.t_s:.3f}".rstrip("0").rstrip("."),
            decision.profile or "-",
            decision.reading if isinstance(decision.reading, str) else f"{decision.reading:.1f}",
            *(
                "-" if value is None else f"{value:.1f}"
                for value in (decision.baseline_pct, decision.target_pct, decision.threshold_pct)
            ),
            "yes" if decision.calibrated else "no",
            "yes" if decision.engaged else "no",
            f"{decision.learned_s / 3600:.2f}",
        )
    )


def _print_cells(cells: tuple[str, ...]) -> None:
    click.echo("  ".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True)))


def _print_summary(totals: Totals, text: str | None) -> None:
    times = "once" if totals.engagements == 1 else f"{totals.engagements} times"
    parts = [f"{totals.rows} rows, {totals.readings} readings"]
    if totals.last is not None:
        engaged = (
            f"engaged {times}, {totals.engaged_s:.0f} s in all" if totals.engagements else "never engaged"
        )
        parts.append(engaged)
        if totals.last.hint:
            parts.append(totals.last.hint)
        parts.append(text or "attendance unknown at the end")
    click.echo("; ".join(parts))
