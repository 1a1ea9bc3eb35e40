"""The drill's table and its one line."""

from __future__ import annotations

from collections.abc import Sequence

from ops.crashing.cells import CellResult
from ops.crashing.matrix import MATRIX, STEPS


def table(results: Sequence[CellResult]) -> str:
    """Steps down, victims across: the class that came; `!` where something was wrong."""
    cells: dict[tuple[str, str], list[CellResult]] = {}
    for result in results:
        cells.setdefault((result.step, result.victim), []).append(result)
    victims = [victim for victim in MATRIX if any(key[1] == victim for key in cells)]
    rows = [["step", *victims]]
    for step, name in STEPS.items():
        if any(key[0] == step for key in cells):
            rows.append([f"{step} {name}", *(_entry(cells.get((step, victim))) for victim in victims)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _entry(results: Sequence[CellResult] | None) -> str:
    if not results:
        return "-"
    classes = dict.fromkeys(result.class_ for result in results)
    return "/".join(classes) + ("!" if any(result.faults for result in results) else "")


def summary(results: Sequence[CellResult], restarts: int, took_s: float) -> str:
    """How many cells, and in how many of them something was lost, doubled, left behind or else wrong."""
    kinds = dict.fromkeys(("lost", "doubled", "left", "other"), 0)
    for result in results:
        for kind in {kind for kind, _ in result.faults}:
            kinds[kind] += 1
    least = sum(result.class_.endswith("*") for result in results)
    verdict = "FAILED" if any(result.faults for result in results) else "ok"
    return (
        f"drill_crash: {verdict}: {len(results)} cells, {kinds['lost']} lost, {kinds['doubled']} doubled,"
        f" {kinds['left']} left behind, {kinds['other']} otherwise wrong; {least} at the least allowed (*);"
        f" {sum(result.tokens for result in results)} tokens, {restarts} restarts, {took_s:.0f} s"
    )
