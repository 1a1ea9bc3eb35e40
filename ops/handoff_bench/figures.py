"""From what rounds saw to a cell of the report. Pure.

Everything is kept as raw samples too, one a move and session, so that another question can be asked later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ops.handoff_bench.control import ControlResult
from ops.handoff_bench.measure import (
    Window,
    first_difference,
    loop_share,
    median,
    pause,
    percentile,
    step_increase,
    token_interval_s,
)
from ops.handoff_bench.plan import CellPlan
from ops.handoff_bench.rounds import MoveSample, RoundResult, Stream
from swapd.messages.from_worker import StepRecord

Json = dict[str, Any]


def cell_json(
    plan: CellPlan,
    rounds: Sequence[tuple[RoundResult, ControlResult]],
    logs: Mapping[str, Sequence[StepRecord]],
    clock_s: float,
    block_tokens: int,
) -> Json:
    """One entry of `cells`; `clock_s` is trio's clock minus the monotonic one of recorded steps."""
    samples: list[Json] = []
    busy: list[Json] = []
    prompts: list[Json] = []
    replays: dict[str, list[float]] = {"warm": [], "cold": []}
    increases: list[float] = []
    for number, (result, control) in enumerate(rounds):
        windows = [sample.window for sample in result.moves]
        for stream in result.streams:
            interval_s = token_interval_s(stream.times, windows, result.during)
            prompts.append(_prompt(number, result, stream, control, interval_s))
            for index, sample in enumerate(result.moves):
                samples.append(_sample(number, index, sample, stream, interval_s, block_tokens))
            busy += [_sample(number, -1, s, stream, interval_s, block_tokens) for s in result.gathering]
            for kind, replay in (("warm", result.warm), ("cold", result.cold)):
                if replay is not None and stream.session in replay.tokens_before:
                    replays[kind].append(1000 * pause(stream.times, replay.window).seconds)
        increases += _increases(result, logs, clock_s)
    native = [sample for sample in samples if sample["outcome"] == "completed_native"]
    pauses = [sample["pause_ms"] for sample in native]
    cold, warm = median(replays["cold"]), median(replays["warm"])
    recomputed = sum(result.recomputed_tokens for result, _ in rounds)
    moved = sum(sample["position"] for sample in native)
    return {
        "context": plan.context,
        "sessions": plan.sessions,
        "moves": len(native) // plan.sessions,
        "moves_asked": sum(each.moves for each in plan.rounds),
        "token_ms_median": _ms(median([prompt["token_ms_median"] for prompt in prompts])),
        "pause_ms": _spread(pauses),
        "frozen_ms": _spread([sample["frozen_ms"] for sample in native]),
        "pause_steps_median": _ms(median([sample["pause_steps"] for sample in native])),
        "pause_steps_p95": _ms(percentile([sample["pause_steps"] for sample in native], 95)),
        "busy_target_pause_steps": [
            _ms(sample["pause_steps"]) for sample in busy if sample["outcome"] is not None
        ],
        "cold_replay_ms": _ms(cold),
        "warm_replay_ms": _ms(warm),
        "ratio_cold": _ratio(median(pauses), cold),
        "ratio_warm": _ratio(median(pauses), warm),
        "reuse": min([s["reuse"] or 0.0 for s in native] + [1 - recomputed / moved if moved else 0.0]),
        "recomputed_tokens": recomputed + sum(sample["recomputed_tokens"] for sample in native),
        "precopied_bytes": median([sample["precopied_bytes"] for sample in native]),
        "frozen_bytes_max": max((sample["frozen_bytes"] for sample in native), default=0),
        "rounds_max": max((sample["rounds"] for sample in native), default=0),
        "neighbour_step_increase": _ms(median(increases)),
        "identical": all(prompt["identical"] for prompt in prompts),
        "differing": sum(not prompt["identical"] for prompt in prompts),
        "loop_share_max": max(prompt["loop_share"] for prompt in prompts),
        "warm_recomputed_tokens": sum(result.warm_recomputed_tokens for result, _ in rounds),
        "cold_recomputed_tokens": sum(result.cold_recomputed_tokens for result, _ in rounds),
        "warm_replays_ms": [_ms(value) for value in replays["warm"]],
        "cold_replays_ms": [_ms(value) for value in replays["cold"]],
        "prompts": prompts,
        "samples": samples,
        "busy_samples": busy,
    }


def _prompt(
    number: int, result: RoundResult, stream: Stream, control: ControlResult, interval_s: float
) -> Json:
    cut = result.cuts[stream.session]
    ours = stream.ids[:cut]
    differs_at = first_difference(ours, control.outputs.get(stream.session, [])[:cut])
    return {
        "round": number,
        "temperature": stream.plan.sampling.temperature,
        "repetition_penalty": stream.plan.sampling.repetition_penalty,
        "seed": stream.plan.sampling.seed,
        "token_ms_median": _ms(1000 * interval_s),
        "tokens_compared": cut,
        "identical": control.void is None and differs_at is None and cut > 0,
        "differs_at": differs_at,
        "control_void": control.void,
        "control_steps": control.steps,
        "control_disordered": control.disordered,
        "loop_share": _ms(loop_share(ours)),
    }


def _sample(
    number: int, index: int, sample: MoveSample, stream: Stream, interval_s: float, block_tokens: int
) -> Json:
    outcome = sample.outcomes.get(stream.session)
    gap = pause(stream.times, sample.window)
    # The token that came last is not in the KV yet.
    position = len(stream.plan.prompt) + gap.tokens - 1
    return {
        "round": number,
        "move": index,
        "source": sample.source,
        "position": position,
        "block_position": position % block_tokens,
        "pause_ms": _ms(1000 * gap.seconds),
        "pause_steps": _ms(gap.seconds / interval_s),
        "drain_ms": _ms(1000 * (sample.window.ended_s - sample.window.began_s)),
        "outcome": outcome.outcome if outcome else None,
        "reason": outcome.reason if outcome else None,
        "frozen_ms": _ms(outcome.frozen_ms or math.nan) if outcome else math.nan,
        "precopied_bytes": outcome.precopied_bytes if outcome else 0,
        "frozen_bytes": outcome.frozen_bytes if outcome else 0,
        "rounds": outcome.rounds if outcome else 0,
        "reuse": outcome.reuse if outcome else None,
        "recomputed_tokens": outcome.recomputed_tokens if outcome else 0,
    }


def _increases(result: RoundResult, logs: Mapping[str, Sequence[StepRecord]], clock_s: float) -> list[float]:
    """Of the decode steps of each source, while its blocks were copied out."""
    during = Window(result.during.began_s - clock_s, result.during.ended_s - clock_s)
    increases: list[float] = []
    for worker, steps in logs.items():
        copies = [
            Window(
                outcome.copy_started_at + sample.offset_s - clock_s,
                outcome.copy_ended_at + sample.offset_s - clock_s,
            )
            for sample in result.moves
            for outcome in sample.outcomes.values()
            if sample.source == worker
            and outcome.copy_started_at is not None
            and outcome.copy_ended_at is not None
        ]
        increases += step_increase(steps, copies, during)
    return increases


def _spread(values: Sequence[float]) -> Json:
    return {"median": _ms(median(values)), "p95": _ms(percentile(values, 95))}


def _ratio(ours: float, theirs: float) -> float:
    return round(ours / theirs, 5) if theirs else math.nan


def _ms(value: float) -> float:
    return round(value, 3)
