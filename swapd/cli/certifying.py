"""Commands about what allows moves: the plans, and revoking a certificate. Both use the ops socket."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from swapd.cli import place
from swapd.cli.boundary import refusals_as_json

if TYPE_CHECKING:
    from swapd.certify.views import PlansView


@click.command(short_help="Show between which workers sessions may move, and why.")
@place.place_options
@place.json_option
def plans(config: Path | None, socket_dir: Path | None, as_json: bool) -> None:
    """Show which worker may hand sessions to which, on what evidence, and why others may not."""
    from swapd.cli import output
    from swapd.ops.client import ask

    with refusals_as_json(as_json):
        view = ask(place.find(config, socket_dir).socket_dir, lambda ops: ops.plans())
    if as_json:
        output.print_json(view)
    else:
        _print_plans(view)


@click.command(short_help="Deny all moves on a certificate, for good.")
@click.argument("certificate", metavar="ID")
@place.place_options
@place.json_option
def revoke(certificate: str, config: Path | None, socket_dir: Path | None, as_json: bool) -> None:
    """Revoke the certificate ID: no move begins on it any more, from now on and after every restart.

    Sessions stay where they are and go on. It cannot be undone; a new evaluation makes a new certificate.
    """
    from swapd.cli import output
    from swapd.ops.client import ask

    with refusals_as_json(as_json):
        view = ask(place.find(config, socket_dir).socket_dir, lambda ops: ops.revoke(certificate))
    if as_json:
        output.print_json(view)
    else:
        click.echo(f"certificate {view.certificate} is revoked since {output.when(view.revoked_at)}")


def _print_plans(view: PlansView) -> None:
    from swapd.cli import output

    if view.edges:
        output.print_table(
            ("FROM", "TO", "BASIS", "EXPIRES", "CERTIFICATE"),
            [
                (
                    each.edge.source,
                    each.edge.target,
                    each.basis,
                    output.when(each.expires_at) if each.expires_at is not None else None,
                    each.certificate,
                )
                for each in view.edges
            ],
        )
    if view.no_target:
        click.echo("no target: it takes two workers that are ready to move a session")
    if view.certification_refusals:
        click.echo("refused:")
        output.print_table(
            ("FROM", "TO", "CODE", "WHY"),
            [
                (each.edge.source, each.edge.target, each.code, each.detail)
                for each in view.certification_refusals
            ],
        )
    for each in view.certificates:
        state = "expired" if each.expires_in_s <= 0 else "expires"
        told = f"{each.basis}, {state} {output.when(each.expires_at)}"
        if each.blocking:
            told += f", not issued: {', '.join(each.blocking)}"
        if each.revoked_at is not None:
            told += f", revoked {output.when(each.revoked_at)}"
        click.echo(f"certificate {each.id}: {told}")
    if view.transfer.kind == "none":
        click.echo(f"transfer: none: {view.transfer.refusal}")
    else:
        lock = "page-locked" if view.transfer.page_locked else "not page-locked"
        click.echo(f"transfer: {view.transfer.kind} of {view.transfer.bytes >> 20} MiB, {lock}")
    if not view.migration_enabled:
        click.echo("migration is off: no move begins, whatever is allowed")
