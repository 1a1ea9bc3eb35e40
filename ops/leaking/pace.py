"""The timers of the service under test: so patient that a busy machine aborts nothing by itself."""

from __future__ import annotations

from typing import Final

from ops.crashing.pace import Pace

_TIMERS: Final = {
    "heartbeat_s": 0.25,
    "suspect_s": 30.0,
    "dead_s": 90.0,
    "rpc_s": 20.0,
    "reserve_s": 20.0,
    "copy_s": 30.0,
    "freeze_s": 20.0,
    "prepare_s": 20.0,
    "activate_s": 10.0,
    "decide_s": 40.0,
    "import_orphan_s": 60.0,
}

PATIENT: Final = Pace(timers=_TIMERS, pause_s=0.0, stopped_s=0.0, reach_s=60.0, rest_s=60.0, cell_s=400.0)
"""Nobody is stopped here: the times of stops are not used."""
