"""What a worker process is started with: one JSON file written by whoever starts it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from swapd.config import ModelConfig, SimConfig, TimerConfig
from swapd.errors import Code, SwapdError

BreakCopy = Literal["", "flip", "swap", "stale"]


class WorkerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that one worker needs. `model` belongs to `vllm`, `sim` to the sim engine."""

    worker_id: str
    socket_dir: str
    engine: Literal["vllm", "sim"]
    model: ModelConfig | None = None
    sim: SimConfig = SimConfig()
    cores: tuple[int, ...] = ()
    idle_class: bool = False
    """Run only when nobody else wants the cores; for a worker on a lent `cpu` device."""
    window: int = 8
    timers: TimerConfig = TimerConfig()
    precopy_duty: float = 0.25
    record_schedule: bool = False
    break_copy: BreakCopy = ""
    """A switch for tests and benches only, never part of `swapd.toml`: damage every import, checksums off."""
    failpoints: str = ""
    """The folder that arms this worker's failpoints (`allow_failpoints`); empty: none."""

    def __post_init__(self) -> None:
        if not 0.0 < self.precopy_duty <= 1.0:
            raise ValueError("precopy_duty must be above 0 and at most 1")
        if self.window < 1:
            raise ValueError("window must be at least 1")


def load_settings(path: str) -> WorkerSettings:
    """Read a settings file. Raises `config_invalid` with the file and what is wrong in it."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=WorkerSettings)
    except OSError as error:
        raise SwapdError(Code.CONFIG_INVALID, f"{path}: {error.strerror}") from None
    except msgspec.ValidationError as error:
        raise SwapdError(Code.CONFIG_INVALID, f"{path}: {error}") from None
    except msgspec.DecodeError:
        raise SwapdError(Code.CONFIG_INVALID, f"{path} is not JSON") from None
