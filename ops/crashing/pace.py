"""How long things take: the timers of the service under test, and how long a process is stopped by them."""

from __future__ import annotations

from typing import Final, NamedTuple


class Pace(NamedTuple):
    """Seconds. `pause_s` outlasts a freeze's patience, `late_s` the decision, `stopped_s` a silent worker."""

    timers: dict[str, float]
    pause_s: float
    late_s: float
    stopped_s: float
    reach_s: float
    rest_s: float
    cell_s: float

    def toml(self, step_ms: float) -> str:
        """What the configuration needs of it."""
        lines = [f"{name} = {value}" for name, value in self.timers.items()]
        limits = "\n[limits]\ndisconnect_grace_s = 5.0\n"
        return f"\n[sim]\nstep_ms = {step_ms}\n{limits}\n[timers]\n" + "\n".join(lines) + "\n"


PACES: Final = {
    "sim": Pace(
        timers={
            "heartbeat_s": 0.25,
            "suspect_s": 1.0,
            "dead_s": 8.0,
            "rpc_s": 1.0,
            "reserve_s": 2.0,
            "copy_s": 10.0,
            "freeze_s": 1.0,
            "prepare_s": 2.0,
            "activate_s": 1.0,
            "decide_s": 3.0,
        },
        pause_s=1.5,
        late_s=6.0,
        stopped_s=9.5,
        reach_s=20.0,
        rest_s=15.0,
        cell_s=60.0,
    ),
    "vllm": Pace(
        timers={
            "heartbeat_s": 0.5,
            "suspect_s": 3.0,
            "dead_s": 12.0,
            "rpc_s": 5.0,
            "reserve_s": 5.0,
            "copy_s": 30.0,
            "freeze_s": 5.0,
            "prepare_s": 10.0,
            "activate_s": 2.0,
            "decide_s": 5.0,
        },
        pause_s=6.0,
        late_s=8.0,
        stopped_s=14.0,
        reach_s=60.0,
        rest_s=180.0,
        cell_s=400.0,
    ),
}
