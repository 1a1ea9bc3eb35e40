"""Commands on what was learned of a device, for a stopped service: move it aside, bring it back (D36)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from swapd.cli import place
from swapd.cli.boundary import refusals_as_json
from swapd.config import Config
from swapd.errors import Code, SwapdError


@click.group(short_help="Move aside what was learned of a device, or bring it back.")
def calibration() -> None:
    """What was learned of a device: move it aside so that it starts from nothing, or bring it back.

    The service must be stopped: while it runs, it writes what it knows every five minutes.
    """


def _config_option(command: place.F) -> place.F:
    return click.option("--config", type=click.Path(path_type=Path), help=place.CONFIG_HELP)(command)


@calibration.command(short_help="Move one device's saved calibration into a dated file.")
@click.option("--device", "name", required=True, help="The device's name in the configuration.")
@_config_option
@place.json_option
def archive(name: str, config: Path | None, as_json: bool) -> None:
    """Move one device's saved calibration into a dated file beside the cache.

    At the next start the device learns anew, and is not lent before its first calibration is complete; the
    others keep theirs. Doing it again does nothing.
    """
    from datetime import UTC, datetime

    from swapd.pressure.archive import archive as move_aside

    with refusals_as_json(as_json), _stopped(config) as (read, path):
        target = move_aside(read, path, name, datetime.now(UTC))
    undo = None
    if target is not None:
        undo = shlex.join(["swapd", "calibration", "restore", str(target), "--config", str(path)])
    if as_json:
        click.echo(json.dumps({"device": name, "file": target and str(target), "undo": undo}))
    elif target is None:
        click.echo(f"nothing is saved of {name}")
    else:
        click.echo(f"what was learned of {name} is now in {target}\nto undo this: {undo}")


@calibration.command(short_help="Bring an archived calibration back.")
@click.argument("file", type=click.Path(path_type=Path))
@_config_option
@place.json_option
def restore(file: Path, config: Path | None, as_json: bool) -> None:
    """Bring back what `archive` has moved into FILE, in place of what was learned since."""
    from swapd.pressure.archive import put_back

    with refusals_as_json(as_json), _stopped(config) as (read, path):
        names = put_back(read, path, file)
    if as_json:
        click.echo(json.dumps({"devices": list(names)}))
    else:
        click.echo(f"{', '.join(names)}: what was in {file} is used again from the next start on")


@contextmanager
def _stopped(config: Path | None) -> Iterator[tuple[Config, Path]]:
    """Keep the service from running meanwhile. Raises `coordinator_lock_held` when it does."""
    from swapd.config_file import read_config
    from swapd.store.writer import LOCK_NAME
    from swapd.transport.lock import FileLock

    path = place.config_path(config)
    read = read_config(path)
    folder = Path(read.database_path).parent
    if not folder.is_dir():
        # No service has ever run on this store.
        yield read, path
        return
    try:
        lock = FileLock.acquire(folder / LOCK_NAME, Code.COORDINATOR_LOCK_HELD)
    except SwapdError as error:
        if error.code is not Code.COORDINATOR_LOCK_HELD:
            raise
        raise SwapdError(error.code, f"{error.detail}; stop the service first") from None
    try:
        yield read, path
    finally:
        lock.release()
