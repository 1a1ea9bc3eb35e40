"""When nothing of a drain's sessions is left on their worker's device (B17).

A drain is over when its sessions are away. What they held is free a little later: the engine lets go of
blocks between two steps. So it is asked, as soon as the last session has left, whether it still holds any of
them and whether its free blocks are back at what they would be without them. A process that has ended holds
nothing; where an owner's device is given back, the give-back says when its memory is back
(`swapd.lending.memory`).
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

import trio

from swapd.errors import SwapdError
from swapd.messages.from_worker import Inventory
from swapd.messages.to_worker import InventoryQuery
from swapd.migration.ledger import CapacityLedger, WorkerCapacity
from swapd.worker.link import WorkerLink

ASK_FIRST_S: Final = 0.01
ASK_MOST_S: Final = 1.0
"""Between two questions; each pause is twice as long as the one before."""
ANSWER_WITHIN_S: Final = 5.0
CLEAR_WITHIN_S: Final = 30.0
"""After that it is not waited for any longer: a figure that late tells nothing of the drain."""


def is_clear(sessions: Set[str], found: Inventory, capacity: WorkerCapacity) -> bool:
    """Whether an engine holds nothing of `sessions` any more, by what it says between two steps.

    Who is on the worker now, by its promises, may hold as much as was promised: it may be one of them that
    has come back.
    """
    gone = sessions - capacity.charges.keys()
    if any(item.session in gone for item in found.items):
        return False
    return found.free_blocks is None or found.free_blocks >= capacity.usable_blocks - capacity.committed


async def wait_clear(link: WorkerLink, ledger: CapacityLedger, sessions: Set[str]) -> bool:
    """Return when a worker holds nothing of sessions that have left; False: not within `CLEAR_WITHIN_S`."""
    before, pause_s = link.owner, ASK_FIRST_S
    with trio.move_on_after(CLEAR_WITHIN_S):
        while not _ended(link, before):
            capacity = ledger.worker(link.name)
            try:
                found = await link.request(InventoryQuery(), Inventory, ANSWER_WITHIN_S)
            except SwapdError:
                found = None  # gone, or too busy to answer: it is looked at again
            if found is not None and capacity is not None and is_clear(sessions, found, capacity):
                return True
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, ASK_MOST_S)
        return True
    return False


def _ended(link: WorkerLink, before: object) -> bool:
    """Whether the process that held them has ended: it was collected, or another one has its name."""
    return link.at_rest or (link.owner is not None and link.owner != before)
