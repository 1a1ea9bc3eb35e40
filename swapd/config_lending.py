"""What a configuration may say about lending: devices, their workers, the owner's wishes, pressure. Pure.

`problems` stop a start; `warnings` do not. Both point into the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from swapd.config import Config, DeviceConfig, OwnerConfig, PressureConfig
from swapd.config_lines import Path
from swapd.config_rules import RESERVED_IDS, WORKER_ID, Problem
from swapd.lending.quiet import QuietHoursError, always_quiet, parse_quiet
from swapd.pressure.bounds import CAP_CEILING_PCT, effective_cap_pct
from swapd.pressure.settings_rules import RETIRED_KEYS, fixed_problem

GPU_UUID: Final = re.compile(
    r"GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE
)
GPU_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,2}")
PROCESS_NAME_MAX_CHARS: Final = 255
PORTS: Final = range(1, 65536)

_OWNER: Final[Path] = ("owner",)
_PRESSURE: Final[Path] = ("owner", "gpu_pressure")


def problems(config: Config) -> Iterator[Problem]:
    """Everything about lending that a start is refused for."""
    yield from _devices(config.devices)
    if config.devices:
        yield from _workers_on_devices(config)
    yield from _owner(config.owner)
    if config.owner.when_full == "park" and not config.park_bytes:
        yield Problem(
            (*_OWNER, "when_full"), 'when_full = "park" needs memory to park sessions in: set park_bytes'
        )
    yield from _pressure(config.owner.gpu_pressure)


def warnings(config: Config) -> Iterator[Problem]:
    """What a person should know about lending; the start goes on."""
    if config.devices:
        yield from _lent_devices(config)
        yield from _never_lent(config.owner)
    elif config.owner != OwnerConfig():
        yield Problem(_OWNER, "[owner] has no effect: there are no [[devices]], so nothing is an owner's")
    yield from _cap(config.owner.gpu_pressure)
    yield from _retired(config.owner.gpu_pressure)


def _devices(devices: tuple[DeviceConfig, ...]) -> Iterator[Problem]:
    names: set[str] = set()
    selectors: dict[str, str] = {}
    cores: dict[int, str] = {}
    for index, device in enumerate(devices):
        path: Path = ("devices", index)
        if not WORKER_ID.fullmatch(device.name):
            yield Problem((*path, "name"), "a device's name must be 1 to 32 characters of a-z, 0-9 and '-'")
        elif device.name in RESERVED_IDS:
            yield Problem((*path, "name"), f"device name '{device.name}' is a name that swapd itself uses")
        elif device.name in names:
            yield Problem((*path, "name"), f"device name '{device.name}' is used twice")
        names.add(device.name)
        yield from (
            _selector(device, path, selectors) if device.kind == "nvml" else _cores(device, path, cores)
        )


def _selector(device: DeviceConfig, path: Path, taken: dict[str, str]) -> Iterator[Problem]:
    if device.cores:
        yield Problem((*path, "cores"), 'cores are for a device of kind = "cpu"')
    selector = device.selector
    if selector is None:
        yield Problem(
            path, f"device '{device.name}' needs a selector: the GPU's UUID (nvidia-smi -L) or its index"
        )
        return
    where = (*path, "selector")
    if selector.upper().startswith("MIG-"):
        # NVML tells no use by process there (field notes); 0 % would be a lie.
        yield Problem(where, "a part of a GPU (MIG) cannot be lent: its driver does not tell who uses it")
    elif not GPU_UUID.fullmatch(selector) and not GPU_INDEX.fullmatch(selector):
        yield Problem(
            where,
            f"selector '{selector}' is neither a GPU's UUID (GPU-…, see nvidia-smi -L) nor an index",
        )
    elif (other := taken.setdefault(selector.lower(), device.name)) != device.name:
        yield Problem(where, f"devices '{other}' and '{device.name}' are one GPU: selector '{selector}'")


def _cores(device: DeviceConfig, path: Path, taken: dict[int, str]) -> Iterator[Problem]:
    if device.selector is not None:
        yield Problem((*path, "selector"), 'a selector is for a device of kind = "nvml"')
    if not device.cores:
        yield Problem(
            path, f"device '{device.name}' needs cores: the CPU cores that it lends, such as [2, 3]"
        )
    elif any(core < 0 for core in device.cores) or len(set(device.cores)) != len(device.cores):
        yield Problem((*path, "cores"), "cores must be distinct numbers, zero or more")
    for number, core in enumerate(dict.fromkeys(device.cores)):
        if (other := taken.setdefault(core, device.name)) != device.name:
            yield Problem(
                (*path, "cores", number), f"core {core} is of device '{other}' and of device '{device.name}'"
            )


def _workers_on_devices(config: Config) -> Iterator[Problem]:
    devices = {device.name: device for device in config.devices}
    for index, worker in enumerate(config.workers):
        path: Path = ("workers", index)
        device = devices.get(worker.device)
        if device is None:
            yield Problem(
                (*path, "device"),
                f"worker '{worker.worker_id}' runs on '{worker.device}', which no [[devices]] entry names",
            )
        elif device.kind == "cpu":
            # What is not lent is not used either; the owner's cores are not even measured.
            for core in sorted(set(worker.cores) - set(device.cores)):
                yield Problem(
                    (*path, "cores"),
                    f"worker '{worker.worker_id}' is bound to core {core}, which is none of '{device.name}'",
                )


def _owner(owner: OwnerConfig) -> Iterator[Problem]:
    if owner.presence == "headless" and owner.lend_when == "locked":
        # D34: a headless machine counts as unlocked, always.
        yield Problem(
            (*_OWNER, "lend_when"),
            'lend_when = "locked" never lends with presence = "headless": such a machine is never locked',
        )
    for number, entry in enumerate(owner.quiet_hours):
        try:
            parse_quiet(entry)
        except QuietHoursError as error:
            yield Problem((*_OWNER, "quiet_hours", number), f"quiet_hours: {error}")
    ignored = {name.casefold() for name in owner.ignore}
    for key in ("ignore", "always"):
        for number, name in enumerate(getattr(owner, key)):
            where: Path = (*_OWNER, key, number)
            if (
                not name.strip()
                or "/" in name
                or not name.isprintable()
                or len(name) > PROCESS_NAME_MAX_CHARS
            ):
                yield Problem(where, f"{key} holds names of processes, such as 'obs', not paths")
            elif key == "always" and name.casefold() in ignored:
                yield Problem(
                    where, f"'{name}' is in ignore and in always; it is either nobody's or the owner's"
                )
    for number, port in enumerate(owner.borrower_ports):
        if port not in PORTS:
            yield Problem((*_OWNER, "borrower_ports", number), f"borrower port {port} is outside 1 to 65535")


def _pressure(pressure: PressureConfig) -> Iterator[Problem]:
    if sentence := fixed_problem(pressure):
        yield Problem((*_PRESSURE, "threshold_pct"), sentence)
    if pressure.state_file == "":
        yield Problem((*_PRESSURE, "state_file"), "state_file is empty; leave it out for the default")


def _lent_devices(config: Config) -> Iterator[Problem]:
    used = {worker.device for worker in config.workers}
    for index, device in enumerate(config.devices):
        if device.name not in used:
            yield Problem(("devices", index), f"device '{device.name}' has no worker: nothing runs on it")
        if device.kind == "nvml" and device.selector is not None and device.selector.isdigit():
            # R91: an index may be another card after the next start.
            yield Problem(
                ("devices", index, "selector"),
                f"device '{device.name}' is selected by an index: what is learned is not kept; use its UUID",
            )


def _never_lent(owner: OwnerConfig) -> Iterator[Problem]:
    if not owner.consent:
        # D40.
        yield Problem((*_OWNER, "consent"), "nothing is lent before owner.consent = true")
    if always_quiet([parse_quiet(entry) for entry in owner.quiet_hours]):
        yield Problem(
            (*_OWNER, "quiet_hours"), "quiet_hours leave no minute of the week: nothing is ever lent"
        )


def _cap(pressure: PressureConfig) -> Iterator[Problem]:
    """R37-R39: one warning exactly where floor <= cap <= 90 does not hold (D6)."""
    cap, floor = pressure.cap_pct, pressure.floor_pct
    if floor <= cap <= CAP_CEILING_PCT:
        return
    held = f"calibrated mode runs with a cap of {effective_cap_pct(pressure):g}"
    where = (*_PRESSURE, _written(pressure, "cap_pct", "floor_pct"))
    if cap < floor:
        yield Problem(where, f"cap_pct = {cap:g} is below floor_pct = {floor:g}: {held}")
    else:
        yield Problem(where, f"cap_pct = {cap:g} is over {CAP_CEILING_PCT:g}: {held}")


def _retired(pressure: PressureConfig) -> Iterator[Problem]:
    if pressure.mode == "adaptive":
        # R78.
        yield Problem((*_PRESSURE, "mode"), 'mode = "adaptive" is retired and runs as "calibrated"')
    for name in RETIRED_KEYS:
        # R122: whatever its value is.
        if getattr(pressure, name) is not None:
            yield Problem((*_PRESSURE, name), f"{name} is retired and ignored; remove it")


def _written(pressure: PressureConfig, name: str, other: str) -> str:
    """Of two keys one that the file holds, for its line: a default has none."""
    return name if getattr(pressure, name) != getattr(PressureConfig(), name) else other
