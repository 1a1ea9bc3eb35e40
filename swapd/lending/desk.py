"""All lent devices of one coordinator: whoever asks about a device or wants it back comes here."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from swapd.api import TakeBack
from swapd.errors import Code
from swapd.lending.device import LentDevice


class LendingDesk:
    """Owns the devices' actors. `run` is its task; the rest may be called from any task of the service."""

    devices: dict[str, LentDevice]

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Samplers, attendance, trackers, give-backs, until cancelled; saves what was learned at the end."""
        raise NotImplementedError

    def device(self, name: str) -> LentDevice:
        """Raises `device_unknown`."""
        raise NotImplementedError

    async def take_back(self, name: str, request: TakeBack) -> None:
        """Close at once, then write it down, then let what runs leave."""
        raise NotImplementedError

    async def lend(self, name: str) -> None:
        """End a take-back."""
        raise NotImplementedError

    def refusal(self) -> tuple[Code, str, float | None] | None:
        """What to tell a client when no worker admits because of devices: code, reason, Retry-After."""
        raise NotImplementedError

    def unready(self) -> Sequence[str]:
        """Reasons for `/readyz` (R61, D11), each `<why>:<device>`; none where all devices are lent."""
        raise NotImplementedError
