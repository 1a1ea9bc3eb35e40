"""A worker on lent cores runs only when nobody else wants them.

Otherwise a busy worker would hold its fair half of a core against its owner, whose demand would then look
like half of what it is. The scheduling class SCHED_IDLE does that among the tasks of one group. With
autogroups each session is a group of its own, and groups share evenly whatever is in them; so the group's
weight is lowered too. In a control group with the cpu controller (systemd units, containers) neither reaches
beyond that group: there the unit needs `CPUWeight=idle`.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from pathlib import Path
from typing import Final

AUTOGROUP: Final = Path("/proc/self/autogroup")
LOWEST: Final = b"19"
TRIES: Final = 20
RETRY_S: Final = 0.11
"""Without privileges the kernel takes one change in 0.1 s, of all processes together, and says EAGAIN."""

_log = logging.getLogger("swapd.worker")


def yield_to_owner(autogroup: Path = AUTOGROUP) -> None:
    """Let everybody else on this machine go first. Call it before threads start: they inherit the class.

    What the kernel does not offer is logged and left out: the worker works, its owner waits longer.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError as error:
        _log.warning("no idle scheduling class", extra={"errno": error.errno})
    # The group is the session's: in a session that is not ours it is the weight of others' work, too.
    if os.getsid(0) == os.getpid():
        _lower_group(autogroup)


def _lower_group(autogroup: Path) -> None:
    for _ in range(TRIES):
        try:
            fd = os.open(autogroup, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return  # A kernel without autogroups: the class alone does it.
        try:
            os.write(fd, LOWEST)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                _log.warning("autogroup stays as it is", extra={"errno": error.errno})
                return
        else:
            return
        finally:
            os.close(fd)
        time.sleep(RETRY_S)
    _log.warning("autogroup stays as it is", extra={"errno": errno.EAGAIN})
