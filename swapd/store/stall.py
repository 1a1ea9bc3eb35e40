"""Whether the disk answers: a write that takes seconds is seen, and said, while it is waited for.

There is no other answer to it than to wait, however long: the outcome of a COMMIT that has not returned is
unknown (H160). So the service only stops promising anything meanwhile, and goes on when the disk does.
"""

from __future__ import annotations

import logging
import time
from typing import Final

import trio

STUCK_S: Final = 5.0
"""A commit takes milliseconds, on a busy disk tenths of a second."""
LOOK_EVERY_S: Final = 1.0

logger = logging.getLogger("swapd.store")


class Stall:
    """The writer's thread says when a group begins and ends; anybody may ask."""

    def __init__(self) -> None:
        self._since: float | None = None

    def begin(self) -> None:
        """A group is being written from now on."""
        self._since = time.monotonic()

    def end(self) -> None:
        """It is written, or refused."""
        self._since = None

    @property
    def stuck_s(self) -> float | None:
        """For how long a write has been waited for, if that is too long."""
        since = self._since
        waited_s = time.monotonic() - since if since is not None else 0.0
        return waited_s if waited_s > STUCK_S else None

    async def watch(self) -> None:
        """Log when the disk stops answering, and when it answers again."""
        longest_s = 0.0
        while True:
            await trio.sleep(LOOK_EVERY_S)
            stuck_s = self.stuck_s
            if stuck_s is not None:
                if not longest_s:
                    logger.error("the disk does not answer a write", extra={"silent_s": round(stuck_s, 1)})
                longest_s = stuck_s
            elif longest_s:
                logger.warning("the disk answers again", extra={"silent_s": round(longest_s, 1)})
                longest_s = 0.0
