"""Which service a command talks to: the one of a configuration file, or the one behind a socket folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click

from swapd.config import Config
from swapd.errors import Code, SwapdError

DEFAULT_CONFIG: Final = "swapd.toml"
CONFIG_HELP: Final = f"The service's configuration; default ./{DEFAULT_CONFIG}, else the quickstart's."

F = TypeVar("F", bound=Callable[..., Any])


class Place(NamedTuple):
    """`config` is None when only the socket folder was given."""

    socket_dir: Path
    config: Config | None


def place_options(command: F) -> F:
    """The options `--config` and `--socket-dir`."""
    command = click.option(
        "--socket-dir",
        type=click.Path(path_type=Path),
        help="The folder of the service's sockets, instead of a configuration.",
    )(command)
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        help=CONFIG_HELP,
    )(command)


def json_option(command: F) -> F:
    """The option `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(command)


def find(config: Path | None, socket_dir: Path | None) -> Place:
    """Resolve the two options. Raises `config_invalid` when neither leads anywhere."""
    if socket_dir is not None and config is None:
        return Place(socket_dir, None)
    read = require_config(config)
    return Place(socket_dir or Path(read.socket_dir), read)


def require_config(config: Path | None) -> Config:
    """Read the configuration that was named, or the one in this folder, or the quickstart's."""
    from swapd.config_file import read_config

    return read_config(config_path(config))


def config_path(config: Path | None) -> Path:
    """Where that configuration is. Raises `config_invalid` when none is named and there is none."""
    from swapd.quickstart.state import default_folder

    if config is not None:
        return config
    for path in (Path(DEFAULT_CONFIG), default_folder() / DEFAULT_CONFIG):
        if path.exists():
            return path
    raise SwapdError(
        Code.CONFIG_INVALID,
        f"there is no ./{DEFAULT_CONFIG} and no quickstart has run; "
        "name one with --config, or use --socket-dir",
    )


def base_url(config: Config) -> str:
    """Where the service of a configuration answers from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
    return f"http://[{host}]:{config.port}" if ":" in host else f"http://{host}:{config.port}"


def plain_token(config: Config) -> str | None:
    """A token that the configuration holds in plain, a tenant's before an operator's."""
    tokens = [each for each in config.credentials if each.token is not None]
    tokens.sort(key=lambda each: each.is_operator)
    return tokens[0].token if tokens else None
