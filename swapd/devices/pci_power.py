"""Whether a card sleeps, told by the kernel, so that asking does not wake it.

Initialising NVML wakes every card of the machine, and an open handle keeps it awake: ten watts and a fan on a
laptop. sysfs tells the power state without touching the card.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

NVIDIA_VENDOR: Final = "0x10de"
DISPLAY_CLASS: Final = "0x03"
"""3D and VGA controllers."""
ASLEEP: Final = frozenset({"suspended", "suspending"})


class PciPower:
    """Reads `<sysfs>/bus/pci/devices` and the driver's `<proc>/driver/nvidia/gpus`, both awake or not."""

    def __init__(self, sysfs: Path, proc: Path) -> None:
        self._devices = sysfs / "bus/pci/devices"
        self._told = proc / "driver/nvidia/gpus"

    def asleep(self, selector: str, known_pci: str | None = None) -> bool:
        """Whether the card of this UUID or index is powered down.

        `known_pci` is the address that NVML told of it before. A card that cannot be found is not asleep:
        NVML then says what is the matter. Where it is one of several, it sleeps if all do.
        """
        cards = self._cards()
        address = _short(known_pci) if known_pci else self._address(selector, cards)
        wanted = [address] if address in cards else cards
        return bool(wanted) and all(self._status(each) in ASLEEP for each in wanted)

    def _cards(self) -> list[str]:
        """Addresses of NVIDIA's display controllers, in the order of NVML's indices."""
        try:
            folders = sorted(self._devices.iterdir())
        except OSError:
            return []
        return [each.name for each in folders if self._is_card(each)]

    def _is_card(self, folder: Path) -> bool:
        if _read(folder / "vendor") != NVIDIA_VENDOR:
            return False
        driver = folder / "driver"
        bound = driver.resolve().name if driver.is_symlink() else "nvidia"
        return bound == "nvidia" and (_read(folder / "class") or "").startswith(DISPLAY_CLASS)

    def _address(self, selector: str, cards: list[str]) -> str | None:
        if selector.isdecimal():
            return cards[int(selector)] if int(selector) < len(cards) else None
        for card in cards:
            for line in (_read(self._told / card / "information") or "").splitlines():
                name, _, value = line.partition(":")
                if name.strip() == "GPU UUID" and value.strip().lower() == selector.lower():
                    return card
        return None

    def _status(self, address: str) -> str | None:
        return _read(self._devices / address / "power/runtime_status")


def _short(pci: str) -> str:
    """NVML writes the domain with eight digits, the kernel with four."""
    domain, _, rest = pci.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _read(file: Path) -> str | None:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return None
