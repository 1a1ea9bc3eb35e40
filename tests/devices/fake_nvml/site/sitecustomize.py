"""Takes this machine's pid namespace for the host's, in processes that use the fake NVML.

Tests may themselves run in a container, where swapd rightly refuses; the fake tells pids of that container.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class _AsHost(MetaPathFinder):
    """Replaces `INITIAL_PID_NAMESPACE` once `swapd.devices.nvml` is loaded."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != "swapd.devices.nvml":
            return None
        spec = PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, inner: Loader) -> None:
        self._inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        module.INITIAL_PID_NAMESPACE = os.readlink("/proc/self/ns/pid")  # type: ignore[attr-defined]


sys.meta_path.insert(0, _AsHost())
