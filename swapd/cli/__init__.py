"""The command line. Commands import what they run when they run, so that `swapd --help` is quick.

Exit status: 0 done, 1 done but not as asked (a blocked drain, a failed session), 2 refused or not possible,
130 interrupted. A refusal is one sentence with its stable code on stderr, and JSON on stdout with `--json`.
"""

from __future__ import annotations

import click

from swapd import __version__
from swapd.cli.boundary import SentenceGroup
from swapd.cli.calibrating import calibration
from swapd.cli.certifying import plans, revoke
from swapd.cli.diagnosing import diagnostics
from swapd.cli.draining import drain
from swapd.cli.generating import generate
from swapd.cli.lending import devices, lend, take_back
from swapd.cli.operating import admission, clear_quarantine, console_link, migration, reconciliation
from swapd.cli.replaying import replay_readings
from swapd.cli.serving import check_config, quickstart, sampler, serve, worker
from swapd.cli.showing import cancel, drains, sessions, status


@click.group(cls=SentenceGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="swapd")
def main() -> None:
    """Lend this machine's idle GPUs to LLM serving and get them back without losing a token.

    Start with `swapd quickstart`. Commands that talk to a running service find it by its configuration
    (./swapd.toml, or --config FILE) or by the folder of its sockets (--socket-dir DIR); where there is
    neither, they mean the quickstart's.
    """


for command in (
    quickstart,
    serve,
    worker,
    sampler,
    check_config,
    status,
    devices,
    take_back,
    lend,
    generate,
    sessions,
    drain,
    drains,
    cancel,
    admission,
    migration,
    plans,
    revoke,
    clear_quarantine,
    reconciliation,
    diagnostics,
    console_link,
    calibration,
    replay_readings,
):
    main.add_command(command)
