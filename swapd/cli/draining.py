"""`swapd drain`: start a drain and follow it. Leaving the view never cancels the drain (B19)."""

from __future__ import annotations

import io
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from swapd.cli import place
from swapd.cli.boundary import EXIT_DONE, EXIT_INTERRUPTED, EXIT_NOT_AS_ASKED, refusals_as_json

if TYPE_CHECKING:
    from swapd.views import DrainView

POLL_S: Final = 0.2


@click.command(short_help="Move all sessions of a worker to others.")
@click.argument("worker")
@click.option("--deadline", "deadline_s", type=float, metavar="S", help="Seconds until it counts as blocked.")
@click.option("--park", is_flag=True, help="Keep sessions in host memory that no other worker has room for.")
@click.option("--no-wait", is_flag=True, help="Start it and return at once.")
@place.place_options
@place.json_option
def drain(
    worker: str,
    deadline_s: float | None,
    park: bool,
    no_wait: bool,
    config: Path | None,
    socket_dir: Path | None,
    as_json: bool,
) -> None:
    """Close WORKER to new sessions and move the running ones to other workers.

    Follows the moves with a bar. Interrupting (Ctrl-C) leaves the drain running. Exits with 0 when the
    worker is drained, 1 when the drain is blocked or was cancelled.
    """
    import trio

    from swapd.cli import output

    where = place.find(config, socket_dir).socket_dir
    with refusals_as_json(as_json):
        view, interrupted = trio.run(_follow, where, worker, deadline_s, park, no_wait, not as_json)
    if as_json:
        output.print_json(view)
    elif not interrupted:
        if view.sessions:
            output.print_outcomes(view)
        click.echo(f"drain {view.id} of worker {view.worker}: {view.state}")
    if interrupted:
        click.echo(
            f"drain {view.id} goes on; `swapd drains` shows it, `swapd cancel --drain {view.id}` ends it",
            err=True,
        )
        click.get_current_context().exit(EXIT_INTERRUPTED)
    done = view.state == "drained" or (no_wait and view.state == "running")
    click.get_current_context().exit(EXIT_DONE if done else EXIT_NOT_AS_ASKED)


async def _follow(
    where: Path, worker: str, deadline_s: float | None, park: bool, no_wait: bool, with_bar: bool
) -> tuple[DrainView, bool]:
    """Start the drain; return its last view, and whether we were told to stop looking."""
    import trio

    from swapd.cli.output import settled
    from swapd.ops.client import open_ops

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with open_ops(where) as ops:
            view = await ops.start_drain(worker, deadline_s, "park" if park else "native")
            if no_wait:
                return view, False
            label = f"draining {worker}"
            # stdout is for the result; a bar that nobody wants goes nowhere.
            stream = sys.stderr if with_bar else io.StringIO()
            with click.progressbar(length=max(len(view.sessions), 1), label=label, file=stream) as bar:
                while view.state == "running":
                    with trio.move_on_after(POLL_S):
                        await anext(signals)
                        return view, True
                    view = await ops.drain(view.id)
                    bar.length = max(len(view.sessions), 1)
                    bar.update(settled(view) - bar.pos)
                bar.update((bar.length or 1) - bar.pos)
            return view, False
