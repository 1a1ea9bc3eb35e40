"""The drill's claims, from what was seen. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from ops.judging import Claim, verdicts
from ops.leaking.drift import Drift
from ops.leaking.rest import Residue, Rest, residues
from ops.leaking.steps import ABORTS, Abort

SLOPE_MAX_KIB: Final = 10.0
"""A cycle, for each process (B48)."""
SHOWN: Final = 5


class Seen(msgspec.Struct):
    """All that a run of the drill knows in the end. Memory is in KiB, one value a cycle."""

    engine: str
    at: str
    """Which aborts there were to be: all that have this in their names."""
    cycles: int
    migrated: dict[str, int]
    aborted: dict[str, int]
    again: int
    sessions: int
    tokens: int
    took_s: float
    baseline: Rest
    rest: Rest
    memory: dict[str, list[int]]
    drifts: dict[str, Drift]
    cycle_faults: list[str]
    stream_faults: list[str]


def claims(seen: Seen) -> list[Claim]:
    """What must hold; each says what was found."""
    left = residues(seen.baseline, seen.rest)
    before = residues(None, seen.baseline)
    lost = [text for text in seen.stream_faults if "doubled:" not in text]
    doubled = [text for text in seen.stream_faults if "doubled:" in text]
    found = [
        Claim("every cycle ended as it was to", not seen.cycle_faults, _some(seen.cycle_faults)),
        Claim("0 tokens lost or changed", not lost, _some(lost)),
        Claim("0 tokens doubled", not doubled, _some(doubled)),
        Claim("nothing is held at the baseline", not before, _some([told(one) for one in before])),
        Claim(
            f"nothing is left behind within {seen.rest.after_s:.1f} s",
            not left,
            _some([told(one) for one in left]),
        ),
    ]
    for role, drift in seen.drifts.items():
        if drift.slope is not None:
            found.append(
                Claim(
                    f"{role} grows by at most {SLOPE_MAX_KIB:g} KiB a cycle",
                    drift.slope <= SLOPE_MAX_KIB,
                    f"{drift.slope:.2f} KiB a cycle from cycle {drift.since} on",
                )
            )
    if seen.at == "" and seen.cycles >= 4 * len(ABORTS):
        missing = [name for name in everywhere() if not seen.aborted.get(name)]
        found.append(
            Claim("a move was aborted at every point in both directions", not missing, _some(missing))
        )
    return found


def everywhere() -> list[str]:
    """Every abort in both directions, as `Seen.aborted` names them."""
    return [aborted_at(source, abort) for source in ("a", "b") for abort in ABORTS]


def aborted_at(source: str, abort: Abort) -> str:
    return f"{source}: {abort.name}"


def told(one: Residue) -> str:
    """One residue for people."""
    return f"{one.name} {one.before:g} -> {one.after:g}" + (f" ({one.detail})" if one.detail else "")


def _some(texts: list[str]) -> str:
    more = len(texts) - SHOWN
    return "; ".join(texts[:SHOWN]) + (f"; {more} more" if more > 0 else "") if texts else "none"


def table(seen: Seen, found: list[Claim]) -> str:
    """Levels before and after, memory, and every claim with its verdict."""
    rows = [("at rest", "baseline", "end")]
    names: Counter[str] = Counter()
    for name, value in seen.rest.held.items():
        # Workers' own figures are many and zero: one line tells them all, those that are not by name.
        if value:
            rows.append((name, _number(seen.baseline.held, name), f"{value:g}"))
        names["zero" if not value else "left"] += 1
    rows.append((f"({names['zero']} of {len(seen.rest.held)} figures of what is held)", "", "0"))
    rows += [
        (name, _number(seen.baseline.kept, name), f"{value:g}") for name, value in seen.rest.kept.items()
    ]
    for role, drift in seen.drifts.items():
        rows.append((f"{role} RssAnon, MiB", f"{drift.start / 1024:.1f}", f"{drift.end / 1024:.1f}"))
        if drift.slope is not None:
            rows.append((f"{role} slope, KiB a cycle", "", f"{drift.slope:.2f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{a.ljust(widths[0])}  {b.rjust(widths[1])}  {c.rjust(widths[2])}" for a, b, c in rows]
    return "\n".join(lines + verdicts(found))


def _number(levels: Mapping[str, float], name: str) -> str:
    return f"{levels.get(name, 0):g}"


def summary(seen: Seen, found: list[Claim]) -> str:
    """One line."""
    failed = sum(not claim.holds for claim in found)
    verdict = "ok" if not failed else f"FAILED: {failed} of {len(found)} claims do not hold"
    directions = ", ".join(f"{count} {way}" for way, count in sorted(seen.migrated.items()))
    return (
        f"drill_leak: {verdict}: {seen.engine}, {seen.cycles} cycles, {sum(seen.migrated.values())} moves"
        f" ({directions}), {sum(seen.aborted.values())} aborts, {seen.again} again, {seen.sessions} sessions,"
        f" {seen.tokens} tokens, {len(residues(seen.baseline, seen.rest))} left behind, {seen.took_s:.0f} s"
    )
