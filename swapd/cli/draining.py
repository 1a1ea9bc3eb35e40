"""`swapd drain`: start a drain and follow it. Leaving the view never cancels the drain (B19)."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from swapd.cli import place
from swapd.cli.boundary import EXIT_DONE, EXIT_INTERRUPTED, EXIT_NOT_AS_ASKED, refusals_as_json

if TYPE_CHECKING:
    from swapd.views import DrainMode, DrainView

POLL_S: Final = 0.2


@click.command(short_help="Move all sessions of workers to others.")
@click.argument("workers", metavar="WORKER...", nargs=-1, required=True)
@click.option("--deadline", "deadline_s", type=float, metavar="S", help="Seconds until it counts as blocked.")
@click.option("--park", is_flag=True, help="Keep sessions in host memory that no other worker has room for.")
@click.option("--reason", metavar="TEXT", help="Why, for those who look at it: one line.")
@click.option("--no-wait", is_flag=True, help="Start it and return at once.")
@place.place_options
@place.json_option
def drain(
    workers: tuple[str, ...],
    deadline_s: float | None,
    park: bool,
    reason: str | None,
    no_wait: bool,
    config: Path | None,
    socket_dir: Path | None,
    as_json: bool,
) -> None:
    """Close each WORKER to new sessions and move the running ones to other workers.

    Several are closed first and emptied second, so no session goes from one to another of them. Follows the
    moves with a bar. Interrupting (Ctrl-C) leaves the drains running. Exits with 0 when the workers are
    drained, 1 when a drain is blocked or was cancelled.
    """
    import trio

    from swapd.cli import output

    where = place.find(config, socket_dir).socket_dir
    wish = Wish(workers, deadline_s, "park" if park else "native", reason)
    with refusals_as_json(as_json):
        views, interrupted = trio.run(_follow, where, wish, no_wait, not as_json)
    if as_json:
        output.print_json(views[0] if len(workers) == 1 else {"drains": views})
    elif not interrupted:
        for view in views:
            if view.sessions:
                output.print_outcomes(view)
            click.echo(f"drain {view.id} of worker {view.worker}: {view.state}")
    if interrupted:
        for view in views:
            click.echo(
                f"drain {view.id} goes on; `swapd drains` shows it, `swapd cancel --drain {view.id}` ends it",
                err=True,
            )
        click.get_current_context().exit(EXIT_INTERRUPTED)
    done = all(view.state == "drained" or (no_wait and view.state == "running") for view in views)
    click.get_current_context().exit(EXIT_DONE if done else EXIT_NOT_AS_ASKED)


class Wish(NamedTuple):
    """What is asked for."""

    workers: tuple[str, ...]
    deadline_s: float | None
    mode: DrainMode
    reason: str | None


async def _follow(where: Path, wish: Wish, no_wait: bool, with_bar: bool) -> tuple[Sequence[DrainView], bool]:
    """Start the drains; return their last views, and whether we were told to stop looking."""
    import trio

    from swapd.cli.output import settled
    from swapd.ops.client import open_ops

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with open_ops(where) as ops:
            views: Sequence[DrainView] = await ops.start_drains(*wish)
            if no_wait:
                return views, False
            label = f"draining {', '.join(wish.workers)}"
            # stdout is for the result; a bar that nobody wants goes nowhere.
            stream = sys.stderr if with_bar else io.StringIO()
            with click.progressbar(length=_sessions(views), label=label, file=stream) as bar:
                while any(view.state == "running" for view in views):
                    with trio.move_on_after(POLL_S):
                        await anext(signals)
                        return views, True
                    views = [await ops.drain(view.id) if view.state == "running" else view for view in views]
                    bar.length = _sessions(views)
                    bar.update(sum(map(settled, views)) - bar.pos)
                bar.update((bar.length or 1) - bar.pos)
            return views, False


def _sessions(views: Sequence[DrainView]) -> int:
    return max(sum(len(view.sessions) for view in views), 1)
