"""The quickstart's private folder: configuration, tokens, store and logs, kept between runs."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
from pathlib import Path
from typing import Final, NamedTuple

import tomlkit
from tomlkit.exceptions import TOMLKitError

from swapd.errors import Code, SwapdError
from swapd.transport.paths import ensure_private_dir

HOST: Final = "127.0.0.1"
MAX_SOCKET_DIR_BYTES: Final = 60
MIB: Final = 1 << 20
ARENA_BYTES: Final = 256 * MIB
"""Eleven contexts of 1,000 tokens of SmolLM2-135M at once; memory is reserved at start."""
KV_CACHE_BYTES: Final = 384 * MIB
"""About 17,000 tokens a worker."""
OWNER: Final = """
[owner]
consent = true
presence = "headless"
resume_after_s = 10.0

[owner.gpu_pressure]
# A demonstration: a real owner wants more samples, over a longer time.
poll_ms = 500
warmup_samples = 30
sustain_s = 3.0
release_s = 5.0
# One core of a machine that is in use is never quite idle.
floor_pct = 40
cap_pct = 60
"""
"""On what terms it lends at first: short times, so that one sees it happen."""


class State(NamedTuple):
    """Where everything of one quickstart is."""

    folder: Path
    socket_dir: Path
    tenant_token: str
    operator_token: str

    @property
    def config_path(self) -> Path:
        return self.folder / "swapd.toml"

    @property
    def log_path(self) -> Path:
        return self.folder / "serve.log"

    def clear_sockets(self) -> None:
        """Remove the socket folder with what ended workers left in it; their logs are worth keeping only
        after a failure."""
        for left in self.socket_dir.iterdir():
            left.unlink()
        self.socket_dir.rmdir()


def default_folder() -> Path:
    """`$XDG_STATE_HOME/swapd/quickstart`, by default under `~/.local/state`."""
    base = os.environ.get("XDG_STATE_HOME") or ""
    root = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return root / "swapd" / "quickstart"


def open_state(folder: Path) -> State:
    """Create or reopen the folder, mode 0700. Tokens are made once and readable by the user alone.

    Raises `config_invalid` for a folder that is not ours alone.
    """
    folder = folder.absolute()
    ensure_private_dir(folder)
    socket_dir = _short_dir(folder)
    ensure_private_dir(socket_dir)
    tokens = _tokens(folder / "tokens.json")
    return State(folder, socket_dir, tokens["tenant"], tokens["operator"])


def _short_dir(folder: Path) -> Path:
    """A short folder for sockets, whose paths have a limit (H105); one for each state folder."""
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
    runtime = os.environ.get("XDG_RUNTIME_DIR") or ""
    if runtime.startswith("/") and len(runtime) < MAX_SOCKET_DIR_BYTES - 20 and os.path.isdir(runtime):
        return Path(runtime) / f"swapd-{digest}"
    return Path("/tmp") / f"swapd-{os.getuid()}-{digest}"


def _tokens(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text())
        return {name: str(found[name]) for name in ("tenant", "operator")}
    except FileNotFoundError:
        made = {name: secrets.token_urlsafe(24) for name in ("tenant", "operator")}
        write_private(path, json.dumps(made))
        return made
    except (OSError, ValueError, KeyError, TypeError):
        raise SwapdError(Code.CONFIG_INVALID, f"{path} cannot be read; remove it to get new tokens") from None


def write_private(path: Path, text: str) -> None:
    """Write a whole file that only its owner can read, or leave the old one as it was."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    draft.replace(path)


def write_config(state: State, *, model: Path, port: int, cores: list[int], lend: bool) -> None:
    """Write `swapd.toml` for two CPU workers on the first two cores, or both on the only one.

    With `lend`, the two cores are lent: their owner's own work gets them back. One core alone cannot be two
    devices; it is not lent. What the owner has set under `[owner]` since stays.
    """
    owner = _owner_before(state.config_path)
    first, second = cores[0], cores[1] if len(cores) > 1 else cores[0]
    lend = lend and first != second
    devices = ['device = "cpu0"\n', 'device = "cpu1"\n'] if lend else ["", ""]
    # JSON strings are TOML basic strings.
    quote = json.dumps
    write_private(
        state.config_path,
        f"""# Written by `swapd quickstart` at each start: only what is under [owner] lasts.
database_path = "swapd.db"
socket_dir = {quote(str(state.socket_dir))}
host = "{HOST}"
port = {port}
arena_bytes = {ARENA_BYTES}
# Nobody has evaluated this machine: equal fingerprints are taken as enough.
self_certify = true
# Nobody comes back for a worker of this service.
stop_workers = "always"

[[workers]]
worker_id = "a"
{devices[0]}cores = [{first}]

[[workers]]
worker_id = "b"
{devices[1]}cores = [{second}]

[[models]]
alias = "smollm2"
path = {quote(str(model))}
max_model_len = 8192
kv_cache_bytes = {KV_CACHE_BYTES}
max_num_seqs = 8

[[credentials]]
namespace = "me"
token = {quote(state.tenant_token)}

[[credentials]]
namespace = "operators"
token = {quote(state.operator_token)}
is_operator = true

[timers]
# A laptop that does other things starts slowly, and its steps take long.
worker_start_s = 600.0
rpc_s = 10.0
reserve_s = 20.0
freeze_s = 10.0
prepare_s = 20.0
activate_s = 10.0
"""
        + (lent_cores(first, second) if lend else "")
        + (owner or (OWNER if lend else "")),
    )


def _owner_before(path: Path) -> str:
    """The `[owner]` tables of the configuration of an earlier start; empty where there are none."""
    try:
        before = tomlkit.parse(path.read_text())
    except (OSError, UnicodeDecodeError, TOMLKitError):
        return ""
    kept = tomlkit.document()
    if "owner" not in before:
        return ""
    kept["owner"] = before["owner"]
    return f"\n{tomlkit.dumps(kept)}"


def lent_cores(first: int, second: int) -> str:
    """The part of the configuration that says which two cores are lent."""
    return f"""
[[devices]]
name = "cpu0"
kind = "cpu"
cores = [{first}]

[[devices]]
name = "cpu1"
kind = "cpu"
cores = [{second}]
"""


def usable_cores() -> list[int]:
    """The cores that this process may run on, in order."""
    return sorted(os.sched_getaffinity(0))


def choose_port(wanted: int) -> int:
    """The port wanted, or a free one when it is taken (or 0)."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise SwapdError(Code.CONFIG_INVALID, f"{HOST} has no free port")
