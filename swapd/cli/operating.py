"""Commands of an operator: the two switches, quarantine, and what a start found. All use the ops socket."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from swapd.cli import place
from swapd.cli.boundary import EXIT_NOT_AS_ASKED, refusals_as_json

if TYPE_CHECKING:
    from swapd.views import Role, Switch, SwitchesView


@click.command(short_help="Stop or reopen admission of new sessions.")
@click.argument("action", type=click.Choice(["stop", "reopen"]), required=False)
@place.place_options
@place.json_option
def admission(action: str | None, config: Path | None, socket_dir: Path | None, as_json: bool) -> None:
    """Stop admission of new sessions by the whole service, reopen it, or show how it stands.

    Sessions that run go on. It stays stopped over restarts until it is reopened.
    """
    from swapd.cli import output

    view = _turn("admission", None if action is None else action == "reopen", config, socket_dir, as_json)
    if not as_json:
        click.echo(output.switch_lines(view)[0])


@click.command(short_help="Turn moves of sessions on or off.")
@click.argument("action", type=click.Choice(["on", "off"]), required=False)
@place.place_options
@place.json_option
def migration(action: str | None, config: Path | None, socket_dir: Path | None, as_json: bool) -> None:
    """Turn moves of sessions off for the whole service, on again, or show how that stands.

    While they are off no move begins: drains wait, serving goes on. It stays off over restarts. What the
    configuration says (`migration_enabled = false`) cannot be turned on here.
    """
    from swapd.cli import output

    view = _turn("migration", None if action is None else action == "on", config, socket_dir, as_json)
    if not as_json:
        click.echo(output.switch_lines(view)[1])
    if action == "on" and not view.migration:
        click.get_current_context().exit(EXIT_NOT_AS_ASKED)


@click.command("clear-quarantine", short_help="Trust a worker again on which an import failed.")
@click.argument("worker")
@place.place_options
@place.json_option
def clear_quarantine(worker: str, config: Path | None, socket_dir: Path | None, as_json: bool) -> None:
    """Let WORKER take sessions again, new ones and those of other workers.

    Refused while it still holds something of moves that failed. A worker that is not quarantined stays as
    it is.
    """
    from swapd.cli import output
    from swapd.ops.client import ask

    with refusals_as_json(as_json):
        view = ask(place.find(config, socket_dir).socket_dir, lambda ops: ops.clear_quarantine(worker))
    if as_json:
        output.print_json(view)
    else:
        admits = (
            "admits sessions" if view.admitting else f"does not admit sessions: {view.reason or view.state}"
        )
        click.echo(f"worker {view.id} is not quarantined and {admits}")


@click.command(short_help="Show what the last start found of the run before it.")
@place.place_options
@place.json_option
def reconciliation(config: Path | None, socket_dir: Path | None, as_json: bool) -> None:
    """Show what became of each session that the run before left open, and why.

    Exits with 1 while some are still undecided.
    """
    from swapd.cli import output
    from swapd.ops.client import ask

    with refusals_as_json(as_json):
        report = ask(place.find(config, socket_dir).socket_dir, lambda ops: ops.reconciliation())
    if as_json:
        output.print_json(report)
    else:
        output.print_reconciliation(report)
    if report.state != "done":
        click.get_current_context().exit(EXIT_NOT_AS_ASKED)


@click.command("console-link", short_help="Make a link that signs one browser in to the console.")
@click.option("--viewer", is_flag=True, help="For somebody who may look and change nothing.")
@click.option("--new-tokens", is_flag=True, help="First make both tokens anew, which signs everybody out.")
@place.place_options
@place.json_option
def console_link(
    viewer: bool, new_tokens: bool, config: Path | None, socket_dir: Path | None, as_json: bool
) -> None:
    """Print a link to the console of a running service. It works once, for 15 minutes.

    Whoever has it first is signed in, so give it to nobody but the one it is for.
    """
    from swapd.cli import output
    from swapd.ops.client import ask

    role: Role = "viewer" if viewer else "owner"
    with refusals_as_json(as_json):
        link = ask(
            place.find(config, socket_dir).socket_dir,
            lambda ops: ops.console_link(role, new_tokens=new_tokens),
        )
    if as_json:
        output.print_json(link)
    else:
        click.echo(link.url)


def _turn(
    switch: Switch, on: bool | None, config: Path | None, socket_dir: Path | None, as_json: bool
) -> SwitchesView:
    """Turn one switch, or (None) only look; with `--json` print the view."""
    from swapd.cli import output
    from swapd.ops.client import OpsClient, ask

    async def question(ops: OpsClient) -> SwitchesView:
        return await ops.switches() if on is None else await ops.turn_switch(switch, on=on)

    with refusals_as_json(as_json):
        view = ask(place.find(config, socket_dir).socket_dir, question)
    if as_json:
        output.print_json(view)
    return view
