"""Saved calibration for tests: cards, profiles, configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from swapd.config import Config, DeviceConfig, ModelConfig, OwnerConfig, PressureConfig, WorkerConfig
from swapd.pressure.cache import Entry, encode_profile
from swapd.pressure.reading import Profile, ProfileState

FIXTURES: Final = Path(__file__).parent / "fixtures"
CARD: Final = "GPU-5d1f8a30-0000-4000-8000-00000000000a"
OTHER: Final = "GPU-5d1f8a30-0000-4000-8000-00000000000b"
PCI: Final = "00000000:01:00.0"
GPU0: Final = DeviceConfig("gpu0", selector=CARD)
GPU1: Final = DeviceConfig("gpu1", selector=OTHER)

SOUND: Final = ProfileState(True, 33.5, 740, 3700.0, None, ((26, 12.5), (27, 3.1)))


def state(**changes: Any) -> ProfileState:
    return SOUND._replace(**changes)


def entry(
    resource: str = "gpu0",
    uuid: str = CARD,
    ignore: tuple[str, ...] = ("obs",),
    pci: str | None = None,
    **profiles: ProfileState | bytes,
) -> Entry:
    texts: dict[Profile, bytes] = {}
    for name, value in profiles.items():
        assert name in ("locked", "unlocked")
        texts[name] = value if isinstance(value, bytes) else encode_profile(value)
    return Entry(resource, uuid, ignore, texts, pci)


def owner(*ignore: str, **pressure: Any) -> OwnerConfig:
    return OwnerConfig(ignore=ignore, gpu_pressure=PressureConfig(**pressure))


def config(*devices: DeviceConfig, owned: OwnerConfig | None = None, folder: str = "/srv") -> Config:
    return Config(
        database_path=f"{folder}/data/swapd.db",
        socket_dir=f"{folder}/run",
        workers=(WorkerConfig("a", engine="sim"),),
        models=(ModelConfig("m", f"{folder}/model"),),
        credentials=(),
        devices=devices,
        owner=owner("obs") if owned is None else owned,
    )
