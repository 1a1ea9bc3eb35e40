"""A `libnvidia-ml.so.1` without a card, and the file that steers it; see `nvml.c`.

    nvml = FakeNvml(tmp_path)
    nvml.card(util=95, uses=[FakeUse(pid, sm=95)], processes=[FakeProcess(pid, bytes=1 << 30)])
    subprocess.Popen(..., env=nvml.env())      # the real bindings find it by name
    nvml.set(hang={"nvmlDeviceGetUtilizationRates": 60.0})   # also for processes that run already

It needs a C compiler: `compiler()` is None where there is none.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

HERE: Final = Path(__file__).resolve().parent
LIBRARY: Final = "libnvidia-ml.so.1"
COMPILE_TIMEOUT_S: Final = 60
GIB: Final = 1 << 30

NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
LOST: Final = 15
VERSION_MISMATCH: Final = 18
UNKNOWN: Final = 999


class FakeUse(msgspec.Struct, frozen=True):
    """A sample of a process. `at_us` "now": fresh at every call."""

    pid: int
    sm: int = 0
    encoder: int = 0
    decoder: int = 0
    at_us: int | Literal["now"] = "now"


class FakeProcess(msgspec.Struct, frozen=True):
    """An entry of a list of running processes."""

    pid: int
    bytes: int | None = GIB
    kind: Literal["compute", "graphics", "mps"] = "compute"


class FakeCard(msgspec.Struct, frozen=True):
    """One card; percentages and `mig` None: not supported. `fails`: what every call on it returns."""

    uuid: str = "GPU-00000000-0000-0000-0000-00000000000a"
    pci: str = "00000000:01:00.0"
    product: str = "NVIDIA Fake 4090"
    util: int | None = 0
    encoder: int | None = 0
    decoder: int | None = 0
    total: int | None = 24 * GIB
    used: int = GIB
    mig: int | None = None
    sm_clock: int = 1500
    power_state: int = 0
    uses: Sequence[FakeUse] = ()
    processes: Sequence[FakeProcess] = ()
    fails: int | None = None


class FakeState(msgspec.Struct, frozen=True):
    """`fail`, `hang` (seconds) and `crash` name functions as the library exports them."""

    devices: Sequence[FakeCard] = (FakeCard(),)
    init: int = 0
    driver: str = "570.86.15"
    count: int | None = None
    sizing: Literal["ring", "empty", "true"] = "ring"
    unfiltered: bool = False
    fail: Mapping[str, int] = {}
    hang: Mapping[str, float] = {}
    crash: Sequence[str] = ()


def compiler() -> str | None:
    """A C compiler, if there is one."""
    return shutil.which("cc") or shutil.which("gcc")


@cache
def built() -> Path:
    """The library, compiled once a process; gone at its end."""
    folder = Path(tempfile.mkdtemp(prefix="swapd-fake-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = [compiler() or "cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    command += [f"-Wl,-soname,{LIBRARY}", str(HERE / "nvml.c"), "-o", str(folder / LIBRARY), "-ldl"]
    subprocess.run(command, check=True, timeout=COMPILE_TIMEOUT_S)
    return folder / LIBRARY


class FakeNvml:
    """One library with a control file of its own, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "fake-nvml"
        self._folder.mkdir(parents=True)
        shutil.copyfile(built(), self.library)
        self.state = FakeState()
        self.set()

    @property
    def library(self) -> Path:
        return self._folder / LIBRARY

    def env(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment for a process whose NVML is to be this one."""
        env = dict(os.environ if base is None else base)
        for name, first in (("LD_LIBRARY_PATH", self._folder), ("PYTHONPATH", HERE / "site")):
            env[name] = os.pathsep.join(filter(None, (str(first), env.get(name))))
        return env

    def set(self, **changes: Any) -> None:
        """Change fields of `FakeState`; the rest stays. The next call of the library sees it."""
        self.state = msgspec.structs.replace(self.state, **changes)
        staging = self._folder / "control.new"
        staging.write_text("\n".join(_lines(self.state)) + "\n")
        staging.replace(self._folder / "control")

    def card(self, **changes: Any) -> None:
        """Change fields of the first card."""
        first, *rest = self.state.devices
        self.set(devices=[msgspec.structs.replace(first, **changes), *rest])

    def record(self) -> None:
        """Write down the functions called from now on."""
        (self._folder / "calls").write_text("")

    def calls(self) -> list[str]:
        """The functions called since `record`."""
        return (self._folder / "calls").read_text().split()


def _lines(state: FakeState) -> list[str]:
    lines = [f"init {state.init}", f"driver {state.driver}", f"sizing {state.sizing}"]
    if state.count is not None:
        lines.append(f"count {state.count}")
    if state.unfiltered:
        lines.append("unfiltered")
    lines += [f"fail {function} {code}" for function, code in state.fail.items()]
    lines += [f"hang {function} {seconds}" for function, seconds in state.hang.items()]
    lines += [f"crash {function}" for function in state.crash]
    for index, card in enumerate(state.devices):
        lines += _card_lines(index, card)
    return lines


def _card_lines(index: int, card: FakeCard) -> list[str]:
    free = None if card.total is None else card.total - card.used
    numbers = (card.util, card.encoder, card.decoder, card.total, free, card.used, card.mig)
    told = [*numbers, card.sm_clock, card.power_state]
    words = " ".join("none" if each is None else str(each) for each in told)
    lines = [f"device {index} {card.uuid} {card.pci} {words} {card.product}"]
    if card.fails is not None:
        lines.append(f"fail * {card.fails} {index}")
    lines += [
        f"sample {index} {use.pid} {use.at_us} {use.sm} 0 {use.encoder} {use.decoder}" for use in card.uses
    ]
    lines += [
        f"process {index} {each.kind} {each.pid} {'none' if each.bytes is None else each.bytes}"
        for each in card.processes
    ]
    return lines
