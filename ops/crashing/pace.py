"""How long things take: the timers of the service under test, and how long a process is stopped by them.

A cell in which nobody hangs has *patient* timers: no busy machine makes a step of it fail by itself. Where
somebody hangs they are *hurried*, so that the hang is noticed in seconds.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["patient", "hurried", "grace", "owner"]


class Pace(NamedTuple):
    """Seconds. `pause_s` outlasts a freeze's patience, `stopped_s` is how long silence is borne, about."""

    timers: dict[str, float]
    pause_s: float
    stopped_s: float
    reach_s: float
    rest_s: float
    cell_s: float
    grace_s: float = 30.0
    """How long a client may be gone."""
    lends: bool = False
    """Whether the workers run on devices that their owner may want back."""

    def toml(self, step_ms: float) -> str:
        """What the configuration needs of it."""
        lines = [f"{name} = {value}" for name, value in self.timers.items()]
        limits = f"\n[limits]\ndisconnect_grace_s = {self.grace_s}\n"
        return f"\n[sim]\nstep_ms = {step_ms}\n{limits}\n[timers]\n" + "\n".join(lines) + "\n"


_PATIENT_SIM: Final = Pace(
    timers={
        "heartbeat_s": 0.25,
        "suspect_s": 15.0,
        "dead_s": 60.0,
        "rpc_s": 20.0,
        "reserve_s": 20.0,
        "copy_s": 30.0,
        "freeze_s": 20.0,
        "prepare_s": 20.0,
        "activate_s": 10.0,
        "decide_s": 20.0,
        "import_orphan_s": 60.0,
    },
    pause_s=0.0,
    stopped_s=0.0,
    reach_s=40.0,
    rest_s=30.0,
    cell_s=120.0,
)
_PATIENT_VLLM: Final = _PATIENT_SIM._replace(
    timers={
        "heartbeat_s": 0.5,
        "suspect_s": 30.0,
        "dead_s": 120.0,
        "rpc_s": 30.0,
        "reserve_s": 30.0,
        "copy_s": 60.0,
        "freeze_s": 30.0,
        "prepare_s": 60.0,
        "activate_s": 20.0,
        "decide_s": 40.0,
        "import_orphan_s": 120.0,
    },
    reach_s=90.0,
    rest_s=180.0,
    cell_s=400.0,
)
PACES: Final[dict[tuple[str, Kind], Pace]] = {
    ("sim", "patient"): _PATIENT_SIM,
    ("sim", "grace"): _PATIENT_SIM._replace(grace_s=2.0),
    ("sim", "owner"): _PATIENT_SIM._replace(lends=True),
    ("sim", "hurried"): _PATIENT_SIM._replace(
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
        stopped_s=9.5,
    ),
    ("vllm", "patient"): _PATIENT_VLLM,
    ("vllm", "grace"): _PATIENT_VLLM._replace(grace_s=5.0),
    ("vllm", "owner"): _PATIENT_VLLM._replace(lends=True),
    ("vllm", "hurried"): _PATIENT_VLLM._replace(
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
        stopped_s=14.0,
    ),
}
