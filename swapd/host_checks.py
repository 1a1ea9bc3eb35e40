"""What only the host can tell about a configuration: file modes, the model folder, memory limits."""

from __future__ import annotations

import hashlib
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from swapd.config import Config, ModelConfig
from swapd.config_rules import SHORT_TOKEN_CHARS, Problem, is_loopback
from swapd.errors import Code, SwapdError

MIB: Final = 1 << 20
CAP_IPC_LOCK_BIT: Final = 14
IPC_PATH_MAX_BYTES: Final = 107
"""What fits into `sockaddr_un` beside its NUL (H105)."""

ONLINE_CORES_PATH: Final = Path("/sys/devices/system/cpu/online")

SELF_CERTIFY_WARNING: Final = (
    "self_certify = true: native moves run on equal fingerprints alone, without evidence; "
    "do not use it where a wrong continuation would matter"
)


def mode_of(fd: int) -> int:
    """The permission bits of an open file, so that check and read see the same one."""
    return stat.S_IMODE(os.fstat(fd).st_mode)


def check(config: Config, *, mode: int, name: str) -> list[str]:
    """Warnings about a parsed configuration on this host.

    Raises `config_invalid` for a token file that others can read (B34), `socket_path_too_long`,
    `model_missing`.
    """
    warnings = [
        *_readable_tokens(config, mode, name),
        *_short_tokens(config),
        *_policy(config),
        *_page_lock(config),
    ]
    _socket_room(config)
    if any(worker.engine == "vllm" for worker in config.workers):
        for model in config.models:
            _model_folder(model)
    return warnings


def missing_cores(config: Config) -> Iterator[Problem]:
    """Cores that are to be lent and that this host does not have."""
    online = online_cores()
    for index, device in enumerate(config.devices):
        for number, core in enumerate(device.cores):
            if core not in online:
                yield Problem(
                    ("devices", index, "cores", number),
                    f"this machine has no core {core} (it has {show_cores(online)})",
                )


def online_cores() -> frozenset[int]:
    """The cores that run now, also those that this process may not use."""
    try:
        return parse_cores(ONLINE_CORES_PATH.read_text())
    except (OSError, ValueError):
        return frozenset(range(os.cpu_count() or 1))


def parse_cores(text: str) -> frozenset[int]:
    """Read a list of cores as the kernel writes it: `0-3,8`. Raises `ValueError`."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def show_cores(cores: frozenset[int]) -> str:
    """Write cores as the kernel does."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1][1:] = [core]
        else:
            runs.append([core])
    return ",".join("-".join(map(str, run)) for run in runs)


def _readable_tokens(config: Config, mode: int, name: str) -> list[str]:
    if all(credential.token is None for credential in config.credentials):
        return []
    if mode & stat.S_IRWXO:
        raise SwapdError(
            Code.CONFIG_INVALID,
            f"{name} holds tokens and everyone may read it (mode {mode:04o}); chmod 600 it",
        )
    if mode & stat.S_IRWXG:
        return [f"{name} holds tokens and its group may read it (mode {mode:04o}); chmod 600 it"]
    return []


def _short_tokens(config: Config) -> list[str]:
    return [
        f"the token of namespace {credential.namespace} has under {SHORT_TOKEN_CHARS} characters"
        for credential in config.credentials
        if credential.token is not None and len(credential.token) < SHORT_TOKEN_CHARS
    ]


def _policy(config: Config) -> list[str]:
    warnings = []
    if config.self_certify:
        warnings.append(SELF_CERTIFY_WARNING)
    elif config.migration_enabled and config.certificate_path is None:
        # H124: without evidence the service starts, and sessions stay where they are.
        warnings.append("there is no certificate and self_certify is false: native moves are refused")
    if not config.transfer_arena:
        warnings.append("transfer_arena = false: native moves are refused")
    if len(config.workers) == 1:
        warnings.append("with one worker there is no target to move a session to")
    if not is_loopback(config.host):
        warnings.append(f"host {config.host} is reachable from elsewhere and swapd does not encrypt")
    if config.allow_sim_engine:
        warnings.append("allow_sim_engine = true: the sim engine makes up its output")
    if config.allow_failpoints:
        warnings.append("allow_failpoints = true: files in socket_dir may hold or fail moves; for tests only")
    return warnings


def _page_lock(config: Config) -> list[str]:
    if not config.transfer_arena or _may_lock():
        return []
    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    wanted, names = config.arena_bytes, "arena_bytes is"
    if config.park_bytes:
        wanted, names = wanted + config.park_bytes, "arena_bytes and park_bytes are together"
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return []
    # The arena is locked first: what remains of the limit decides about the park's memory.
    loser = "the arena" if soft < config.arena_bytes else "the memory of parked sessions"
    return [
        f"RLIMIT_MEMLOCK is {soft / MIB:.0f} MiB and {names} {wanted / MIB:.0f} MiB: "
        f"{loser} will not be page-locked (LimitMEMLOCK=infinity in a systemd unit allows it)"
    ]


def _may_lock() -> bool:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_IPC_LOCK_BIT & 1)
    return False


def _socket_room(config: Config) -> None:
    # The longest names in the folder: a worker's arena socket, and what belongs to a sampler.
    names = [f"/{worker.worker_id}.arena.sock" for worker in config.workers]
    names += [f"/sampler-{device.kind}.settings.json" for device in config.devices]
    longest = max(len(name) for name in names)
    length = len(os.fsencode(config.socket_dir)) + longest
    if length > IPC_PATH_MAX_BYTES:
        raise SwapdError(
            Code.SOCKET_PATH_TOO_LONG,
            f"paths in {config.socket_dir} take {length} bytes, the limit is {IPC_PATH_MAX_BYTES}",
        )


def _model_folder(model: ModelConfig) -> None:
    folder = Path(model.path)
    if not folder.is_dir():
        raise SwapdError(Code.MODEL_MISSING, f"models.path {folder} is not a folder")
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise SwapdError(Code.MODEL_MISSING, f"{folder} has no {name}")
    if not any(folder.glob("*.safetensors")):
        raise SwapdError(Code.MODEL_MISSING, f"{folder} has no *.safetensors")
    if model.tokenizer_digest is not None:
        # H125: text and stop strings would mean something else under another tokenizer.
        digest = hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
        if digest != model.tokenizer_digest:
            raise SwapdError(
                Code.CONFIG_INVALID, f"{folder}/tokenizer.json is not the one of tokenizer_digest"
            )
