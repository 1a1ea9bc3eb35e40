"""A desk whose devices, reasons and refusals a test sets."""

from __future__ import annotations

from collections.abc import Sequence

from swapd.device_views import TakeBack, TakenBack
from swapd.errors import Code, SwapdError
from swapd.lending.desk import LendingDesk
from swapd.lending.device import LentDevice


class DeskDouble(LendingDesk):
    """Closes a device that is taken back, and does nothing else."""

    def __init__(self, *devices: LentDevice) -> None:
        self.devices = {device.name: device for device in devices}
        self.asked: list[tuple[str, TakeBack]] = []
        self.refused: tuple[Code, str, float | None] | None = None
        self.reasons: tuple[str, ...] = ()

    def device(self, name: str) -> LentDevice:
        if name not in self.devices:
            raise SwapdError(Code.DEVICE_UNKNOWN, name)
        return self.devices[name]

    async def take_back(self, name: str, request: TakeBack) -> None:
        self.asked.append((name, request))
        device = self.device(name)
        device.taken_back = TakenBack(1.0, request.until or "told")
        device.state = "vacating"

    async def lend(self, name: str) -> None:
        self.device(name).taken_back = None

    def refusal(self) -> tuple[Code, str, float | None] | None:
        return self.refused

    def unready(self) -> Sequence[str]:
        return self.reasons
