"""Commands that look at a running service, and `cancel`. All go through the ops socket."""

from __future__ import annotations

from pathlib import Path

import click

from swapd.cli import place
from swapd.cli.boundary import EXIT_NOT_AS_ASKED, refusals_as_json


@click.command(short_help="Show devices, workers, sessions and running drains.")
@place.place_options
@place.json_option
def status(config: Path | None, socket_dir: Path | None, as_json: bool) -> None:
    """Show whether the service is ready, its devices, workers, sessions and running drains.

    Exits with 1 when it answers but is not ready.
    """
    from swapd.cli import output
    from swapd.ops.client import ask

    with refusals_as_json(as_json):
        answer = ask(place.find(config, socket_dir).socket_dir, lambda ops: ops.status())
    if as_json:
        output.print_json(answer)
    else:
        ready = "ready" if answer.readiness.ready else "not ready: " + ", ".join(answer.readiness.reasons)
        click.echo(f"swapd {answer.version}, process {answer.pid}, {ready}\n")
        for line in output.switch_lines(answer.switches):
            if "is off" in line or "is stopped" in line:
                click.echo(line)
        for device in answer.devices:
            click.echo("\n".join(output.device_lines(device)))
        if answer.devices:
            click.echo()
        output.print_workers(answer.workers)
        counts = ", ".join(f"{count} {state}" for state, count in sorted(answer.sessions.items()))
        click.echo(f"\nsessions: {counts or 'none'}")
        for view in answer.drains:
            progress = f"{output.settled(view)} of {len(view.sessions)} sessions settled"
            why = f" ({view.origin}: {view.reason})" if view.reason else f" ({view.origin})"
            click.echo(f"drain {view.id} of {view.worker}: {view.state}, {progress}{why}")
    if not answer.readiness.ready:
        click.get_current_context().exit(EXIT_NOT_AS_ASKED)


@click.command()
@place.place_options
@place.json_option
def sessions(config: Path | None, socket_dir: Path | None, as_json: bool) -> None:
    """List the sessions that have not ended."""
    from swapd.cli import output
    from swapd.ops.client import ask

    with refusals_as_json(as_json):
        found = ask(place.find(config, socket_dir).socket_dir, lambda ops: ops.sessions())
    if as_json:
        output.print_json({"sessions": found})
    else:
        output.print_sessions(found)


@click.command()
@place.place_options
@place.json_option
def drains(config: Path | None, socket_dir: Path | None, as_json: bool) -> None:
    """List drains, newest first."""
    from swapd.cli import output
    from swapd.ops.client import ask

    with refusals_as_json(as_json):
        found = ask(place.find(config, socket_dir).socket_dir, lambda ops: ops.drains())
    if as_json:
        output.print_json({"drains": found})
    else:
        output.print_drains(found)


@click.command()
@click.argument("name", metavar="ID")
@click.option("--drain", "is_drain", is_flag=True, help="ID is a drain: stop moving and reopen its worker.")
@place.place_options
@place.json_option
def cancel(name: str, is_drain: bool, config: Path | None, socket_dir: Path | None, as_json: bool) -> None:
    """End the session ID, or with --drain the drain ID.

    A session that was moved by a cancelled drain stays where it is.
    """
    from swapd.cli import output
    from swapd.ops.client import OpsClient, ask
    from swapd.views import DrainView, SessionView

    async def question(ops: OpsClient) -> DrainView | SessionView:
        return await ops.cancel_drain(name) if is_drain else await ops.cancel_session(name)

    with refusals_as_json(as_json):
        view = ask(place.find(config, socket_dir).socket_dir, question)
    if as_json:
        output.print_json(view)
    elif isinstance(view, DrainView) and view.state != "cancelled":
        click.echo(f"drain {view.id} was over already: {view.state}")
    elif isinstance(view, DrainView):
        click.echo(f"drain {view.id} is {view.state}; worker {view.worker} is open again")
    else:
        click.echo(f"session {view.id} is {view.state}")
