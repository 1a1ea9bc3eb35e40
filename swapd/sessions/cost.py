"""What a replay cost that came to no token: its session ended first, so no run of tokens says it (H209).

Only the engine knows. The message that has the session dropped is sent once more, to be answered: whoever
drops a session keeps what that had cost.
"""

from __future__ import annotations

from swapd.errors import SwapdError
from swapd.messages.from_worker import Done
from swapd.messages.to_worker import Cancel
from swapd.sessions.live import LiveSession
from swapd.worker.link import WorkerLink


async def ask_cost(link: WorkerLink, session: LiveSession, within_s: float) -> int:
    """Positions that its owner had computed again for a session that has ended.

    0 where nobody can say: the worker is gone, and with it what it had computed.
    """
    try:
        done = await link.request(Cancel(session.id, session.record.epoch), Done, within_s)
    except SwapdError:
        return 0
    return done.recomputed
