"""`swapd diagnostics`: an archive for whoever helps, and the debug window. Both use the ops socket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from swapd.cli import place
from swapd.cli.boundary import refusals_as_json
from swapd.errors import Code, SwapdError

if TYPE_CHECKING:
    from swapd.views import DebugView

PRIVATE: Final = 0o600
MINUTE_S: Final = 60.0


@click.command(short_help="Write an archive of how the service is, for whoever helps.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="The file to write; default: a dated name in this folder."
)
@click.option(
    "--debug",
    type=click.FloatRange(0, 60),
    metavar="MINUTES",
    help="Write no archive; log every reading's decision for so long. 0 ends it.",
)
@place.place_options
@place.json_option
def diagnostics(
    out: Path | None, debug: float | None, config: Path | None, socket_dir: Path | None, as_json: bool
) -> None:
    """Write one .zip with settings that are no secret, health, readings, events and the latest log lines.

    It holds no prompt, no generated text and no credential; its README.txt says what each file is. A file
    that exists is not replaced.
    """
    from swapd.cli import output
    from swapd.ops.client import ask

    with refusals_as_json(as_json):
        folder = place.find(config, socket_dir).socket_dir
        if debug is not None:
            window = ask(folder, lambda ops: ops.log_decisions(debug * MINUTE_S))
            if as_json:
                output.print_json(window)
            else:
                click.echo(_window_text(window))
            return
        answer = ask(folder, lambda ops: ops.export_diagnostics())
        path = out if out is not None else Path(answer.name)
        _write_new(path, answer.archive)
    if as_json:
        output.print_json({"path": str(path), "bytes": len(answer.archive)})
    else:
        click.echo(f"wrote {path} ({len(answer.archive) / 1024:.0f} KiB); nothing of any client is in it")


def _window_text(window: DebugView) -> str:
    if window.by_configuration:
        return "every decision is logged, by the configuration (owner.debug_decisions)"
    return "every decision is logged; that ends by itself" if window.is_open else "decisions are not logged"


def _write_new(path: Path, data: bytes) -> None:
    """Write a file of our own that was not there. Raises `invalid_request`."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        raise SwapdError(Code.INVALID_REQUEST, f"{path} cannot be written: {error.strerror}") from None
