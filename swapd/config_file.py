"""Reads `swapd.toml` and nothing else: no environment variable changes what comes out (H117).

`parse_config` is pure: text in, `Config` out, or one refusal that names file, line and key (H119).
`load_config` adds what only the disk can tell: who may read the file, whether the model is there, whether
the host lets the arena be locked. `swapd serve` and `swapd check-config` both call it, so that they refuse
and warn alike (H127).
"""

from __future__ import annotations

import difflib
import time
import tomllib
import typing
from pathlib import Path
from typing import Any, Final

import msgspec

from swapd import config_lending, config_rules, host_checks
from swapd.certify import file as certificate_file
from swapd.certify.registry import Evidence, Terms
from swapd.config import Config
from swapd.config_lines import Path as KeyPath
from swapd.config_lines import key_lines, nearest_line, show_path
from swapd.config_rules import Problem
from swapd.errors import Code, SwapdError
from swapd.messages.snapshot import SNAPSHOT_SCHEMA
from swapd.pressure.cache_file import state_folder_problem

MAX_CONFIG_BYTES: Final = 1 << 20
RETIRED_CHOICES: Final = frozenset({"adaptive"})
"""Still taken, no longer offered (R78)."""


def parse_config(text: str, *, folder: Path, name: str) -> Config:
    """Turn TOML into a checked configuration; relative paths are resolved against `folder`.

    Raises `config_invalid` or `engine_refused` with file name, line and key.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SwapdError(Code.CONFIG_INVALID, f"{name}: not valid TOML: {error}") from None
    found: list[Problem] = []
    config = _struct(Config, data, (), found)
    if config is not None and not found:
        assert isinstance(config, Config)
        found.extend(_written_empty(data))
        found.extend(config_rules.problems(config))
        found.extend(config_lending.problems(config))
    if found:
        raise _refusal(found, key_lines(text), name)
    assert isinstance(config, Config)
    return _resolve(config, folder)


def load_config(path: Path) -> tuple[Config, list[str]]:
    """Read and check a configuration file; the second value is what a person should know but may keep.

    Raises as `parse_config`, `model_missing`, and `certificate_unreadable` (H124).
    """
    config, mode, text = _read(Path(path))
    lines = key_lines(text)
    if missing := list(host_checks.missing_cores(config)):
        raise _refusal(missing, lines, path.name)
    warnings = host_checks.check(config, mode=mode, name=path.name)
    evidence = Evidence(
        Terms.of(config, SNAPSHOT_SCHEMA), certificate_file.read_configured(config.certificate_path)
    )
    warnings += evidence.warnings(time.time())
    placed = list(config_lending.warnings(config))
    if unsafe := state_folder_problem(config, path):
        # R98: where what is learned is to be kept.
        placed.append(Problem(("owner", "gpu_pressure", "state_file"), unsafe))
    return config, [*warnings, *_placed(placed, lines, path.name)]


def read_config(path: Path) -> Config:
    """Read a configuration to find a service by it, without judging this host. Raises `config_invalid`."""
    return _read(Path(path))[0]


def _read(path: Path) -> tuple[Config, int, str]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_CONFIG_BYTES + 1)
            mode = host_checks.mode_of(file.fileno())
    except OSError as error:
        raise SwapdError(Code.CONFIG_INVALID, f"cannot read {path}: {error.strerror}") from None
    if len(raw) > MAX_CONFIG_BYTES:
        raise SwapdError(Code.CONFIG_INVALID, f"{path.name} is over {MAX_CONFIG_BYTES} bytes")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise SwapdError(Code.CONFIG_INVALID, f"{path.name}: byte {error.start} is not UTF-8") from None
    return parse_config(text, folder=path.resolve().parent, name=path.name), mode, text


def _struct(
    kind: type[msgspec.Struct], data: object, path: KeyPath, found: list[Problem]
) -> msgspec.Struct | None:
    """Build one table; what is wrong goes to `found`, and the answer is then None."""
    if not isinstance(data, dict):
        found.append(Problem(path, f"{show_path(path)} must be a table"))
        return None
    hints = typing.get_type_hints(kind)
    before = len(found)
    found.extend(_unknown(key, list(hints), (*path, key)) for key in data if key not in hints)
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name in data:
            value = data[field.encode_name]
            values[field.name] = _value(hints[field.name], value, (*path, field.encode_name), found)
        elif field.required:
            where = f" in {show_path(path)}" if path else ""
            found.append(Problem(path, f"'{field.encode_name}' is missing{where}"))
    return kind(**values) if len(found) == before else None


def _value(hint: Any, value: object, path: KeyPath, found: list[Problem]) -> object:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _struct(hint, value, path, found)
    item = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else None
    if isinstance(item, type) and issubclass(item, msgspec.Struct):
        if isinstance(value, list):
            return tuple(_struct(item, each, (*path, index), found) for index, each in enumerate(value))
        wrong = f"{show_path(path)} must be written as [[{show_path(path)}]] tables"
        if path == ("workers",) and isinstance(value, int):
            # H121: it looks like a server's worker count, and there is none.
            wrong += "; swapd always serves from one process, a number of processes cannot be set"
        found.append(Problem(path, wrong))
        return None
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        found.append(Problem(path, f"{show_path(path)}: {_type_problem(hint, error)}"))
        return None


def _type_problem(hint: Any, error: msgspec.ValidationError) -> str:
    if typing.get_origin(hint) is typing.Literal:
        choices = [choice for choice in typing.get_args(hint) if choice not in RETIRED_CHOICES]
        return "must be one of " + ", ".join(f"'{choice}'" for choice in choices)
    # msgspec's other sentences name types, never values.
    text = str(error).replace("`", "").replace(" | null", "")
    return text[:1].lower() + text[1:]


def _unknown(key: str, known: list[str], path: KeyPath) -> Problem:
    where = f" in [{show_path(path[:-1])}]" if path[:-1] else ""
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    return Problem(path, f"unknown key '{key}'{where}{hint}")


def _written_empty(data: dict[str, Any]) -> list[Problem]:
    """H125: an empty list of end tokens would make every generation run to its budget."""
    return [
        Problem(
            ("models", index, "eos_token_ids"), "eos_token_ids is empty; leave it out for the model's own"
        )
        for index, model in enumerate(data["models"])
        if model.get("eos_token_ids") == []
    ]


def _refusal(found: list[Problem], lines: dict[KeyPath, int], name: str) -> SwapdError:
    first = min(found, key=lambda problem: nearest_line(lines, problem.path) or 0)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return SwapdError(first.code, f"{_said(first, lines, name)}{more}")


def _placed(found: list[Problem], lines: dict[KeyPath, int], name: str) -> list[str]:
    """Write each warning with its line, in the order of the file."""
    found.sort(key=lambda problem: nearest_line(lines, problem.path) or 0)
    return [_said(problem, lines, name) for problem in found]


def _said(problem: Problem, lines: dict[KeyPath, int], name: str) -> str:
    line = nearest_line(lines, problem.path)
    return f"{name}{f' line {line}' if line else ''}: {problem.text}"


def _resolve(config: Config, folder: Path) -> Config:
    lent_cores = {device.name: device.cores for device in config.devices}
    models = tuple(msgspec.structs.replace(model, path=str(folder / model.path)) for model in config.models)
    workers = tuple(
        msgspec.structs.replace(
            worker,
            python=str(folder / worker.python) if worker.python and "/" in worker.python else worker.python,
            # Cores that are not lent are the owner's: no worker of a lent set strays from it.
            cores=worker.cores or lent_cores.get(worker.device, ()),
        )
        for worker in config.workers
    )
    owner = config.owner
    if (state_file := owner.gpu_pressure.state_file) is not None:
        pressure = msgspec.structs.replace(owner.gpu_pressure, state_file=str(folder / state_file))
        owner = msgspec.structs.replace(owner, gpu_pressure=pressure)
    return msgspec.structs.replace(
        config,
        workers=workers,
        database_path=str(folder / config.database_path),
        socket_dir=str(folder / config.socket_dir),
        park_dir=str(folder / config.park_dir) if config.park_dir is not None else None,
        certificate_path=str(folder / config.certificate_path)
        if config.certificate_path is not None
        else None,
        models=models,
        owner=owner,
    )
