"""Commands of an owner: `swapd devices`, `take-back` and `lend`."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from swapd.cli import place
from swapd.cli.boundary import EXIT_INTERRUPTED, EXIT_NOT_AS_ASKED, refusals_as_json
from swapd.errors import Code, SwapdError

if TYPE_CHECKING:
    from swapd.device_views import DeviceView, TakeBack
    from swapd.ops.client import OpsClient

POLL_S: Final = 0.2
UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_PART: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def span(ctx: click.Context | None, param: click.Parameter | None, text: str | None) -> float | None:
    """A length of time such as `90m`, `1h30m` or `2d`, in seconds."""
    if text is None:
        return None
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise click.BadParameter(f"{text!r} is no length of time; write it as 90m, 1h30m or 2d")
    return sum(float(number) * UNITS_S[unit] for number, unit in parts)


@click.command(short_help="List the lent devices and why each is lent or not.")
@place.place_options
@place.json_option
def devices(config: Path | None, socket_dir: Path | None, as_json: bool) -> None:
    """List the devices that this service was lent, and why each of them is lent now or not."""
    from swapd.cli import output
    from swapd.ops.client import ask

    with refusals_as_json(as_json):
        found = ask(place.find(config, socket_dir).socket_dir, lambda ops: ops.devices())
    if as_json:
        output.print_json({"devices": found})
    elif found:
        output.print_devices(found)
    else:
        click.echo("no [[devices]] are configured: all devices belong to the service")


@click.command("take-back", short_help="Give devices back to their owner now.")
@click.argument("names", nargs=-1, metavar="[DEVICE]...")
@click.option("--all", "take_all", is_flag=True, help="All devices.")
@click.option(
    "--for", "for_s", callback=span, metavar="SPAN", help="For so long, as 1h, 90m or 2d; at most 30 days."
)
@click.option(
    "--until", type=click.Choice(["told", "unlock"]), help="Until you say so, or until the next unlock."
)
@click.option("--wait", is_flag=True, help="Wait until they are free, and say how long it took.")
@place.place_options
@place.json_option
def take_back(
    names: tuple[str, ...],
    take_all: bool,
    for_s: float | None,
    until: Any,
    wait: bool,
    config: Path | None,
    socket_dir: Path | None,
    as_json: bool,
) -> None:
    """Give DEVICEs back to their owner now: nothing new comes, and what runs on them leaves.

    Without a name it means the one device that there is. Without --for and --until they stay with their owner
    until `swapd lend`. With --wait it exits with 1 when one of them was lent again meanwhile. Interrupting
    the wait (Ctrl-C) changes nothing.
    """
    import trio

    from swapd.cli import output
    from swapd.device_views import TakeBack

    where = place.find(config, socket_dir).socket_dir
    request = TakeBack(for_s=for_s, until=until)
    with refusals_as_json(as_json):
        views, interrupted = trio.run(_take_back, where, names, take_all, request, wait, not as_json)
    if as_json:
        output.print_json({"devices": views})
    elif not interrupted:
        for view in views:
            click.echo(f"{view.name}: {output.given_back_text(view) if wait else output.device_text(view)}")
    if interrupted:
        click.echo("the devices go on being given back; `swapd devices` shows it", err=True)
        click.get_current_context().exit(EXIT_INTERRUPTED)
    if wait and any(view.state != "free" for view in views):
        click.get_current_context().exit(EXIT_NOT_AS_ASKED)


@click.command(short_help="End a take-back.")
@click.argument("names", nargs=-1, metavar="[DEVICE]...")
@click.option("--all", "lend_all", is_flag=True, help="All devices.")
@place.place_options
@place.json_option
def lend(
    names: tuple[str, ...], lend_all: bool, config: Path | None, socket_dir: Path | None, as_json: bool
) -> None:
    """Lend DEVICEs again that were taken back. Whatever else speaks against lending still does.

    Without a name it means the one device that there is.
    """
    from swapd.cli import output
    from swapd.ops.client import ask

    async def question(ops: OpsClient) -> list[DeviceView]:
        return [await ops.lend(name) for name in await _chosen(ops, names, lend_all)]

    with refusals_as_json(as_json):
        views = ask(place.find(config, socket_dir).socket_dir, question)
    if as_json:
        output.print_json({"devices": views})
    else:
        for view in views:
            click.echo(f"{view.name}: {output.device_text(view)}")


async def _chosen(ops: OpsClient, names: Sequence[str], every: bool) -> Sequence[str]:
    """Which devices are meant, all of them known. Raises `device_unknown`, `invalid_request`."""
    known = [view.name for view in await ops.devices()]
    if not known:
        raise SwapdError(Code.DEVICE_UNKNOWN, "no [[devices]] are configured")
    listed = ", ".join(known)
    if every and names:
        raise SwapdError(Code.INVALID_REQUEST, "--all goes alone, without names")
    if not every and not names and len(known) > 1:
        raise SwapdError(Code.INVALID_REQUEST, f"name devices or say --all; there are {listed}")
    for name in names:
        if name not in known:
            # Before anything is asked for: a slip in the last name must not leave half of it done.
            raise SwapdError(Code.DEVICE_UNKNOWN, f"{name}; there are {listed}")
    return list(dict.fromkeys(names)) or known


async def _take_back(
    where: Path, names: Sequence[str], every: bool, request: TakeBack, wait: bool, with_progress: bool
) -> tuple[list[DeviceView], bool]:
    """Take back, then perhaps wait; return the last views, and whether we were told to stop looking.

    The wait has no deadline of its own: moves take as long as they take, and Ctrl-C ends it.
    """
    import trio

    from swapd.ops.client import open_ops

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with open_ops(where) as ops:
            views = {name: await ops.take_back(name, request) for name in await _chosen(ops, names, every)}
            told: dict[str, str] = {}
            while wait and not all(_settled(view) for view in views.values()):
                if with_progress:
                    await _tell(ops, views.values(), told)
                with trio.move_on_after(POLL_S):
                    await anext(signals)
                    return list(views.values()), True
                views = {name: await ops.device(name) for name in views}
            return list(views.values()), False


def _settled(view: DeviceView) -> bool:
    """Free and measured, or lent again by somebody."""
    given = view.last_give_back
    done = view.state == "free" and (given is None or given.free_in_s is not None)
    return done or view.taken_back is None


async def _tell(ops: OpsClient, views: Any, told: dict[str, str]) -> None:
    """One line on stderr for each device whose progress changed."""
    from swapd.cli import output

    for view in views:
        line = f"{view.name}: {view.state}"
        drains = view.last_give_back.drains if view.last_give_back is not None else ()
        if not _settled(view) and drains:
            found = [await ops.drain(drain) for drain in drains]
            settled = sum(output.settled(drain) for drain in found)
            line += f", {settled} of {sum(len(drain.sessions) for drain in found)} sessions settled"
        if told.get(view.name) != line:
            told[view.name] = line
            click.echo(line, err=True)
