"""What tests of devices share: an NVML without a card, an invented host, folders short enough for sockets."""

from __future__ import annotations

import ctypes
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from tests.devices.fake_nvml import FakeNvml, compiler
from tests.devices.nvml_backends import Machine


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short socket directories: pytest's own paths are too long for sockets."""
    parent = Path(tempfile.mkdtemp(prefix="swapd-devices-"))
    try:
        yield parent / "s"
    finally:
        shutil.rmtree(parent)


@pytest.fixture
def fake_nvml(tmp_path: Path) -> FakeNvml:
    """A fake NVML for other processes: start them with its `env()`."""
    if compiler() is None:
        pytest.skip("the fake NVML is C, and there is no C compiler")
    return FakeNvml(tmp_path)


@pytest.fixture
def nvml(fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """A fake NVML that the real bindings of this process use."""
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(fake_nvml.library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return fake_nvml


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A host whose processes and cards a test invents."""
    return Machine(tmp_path / "host")
