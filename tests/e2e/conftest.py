"""One deployment of two real vLLM workers for all end-to-end tests that need them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trio

from swapd.models.smollm2 import ensure_checkpoint
from tests.e2e.deployment import Deployment

HERE: Final = Path(__file__).resolve().parent
TIMERS = """
[timers]
freeze_s = 10.0
rpc_s = 10.0
reserve_s = 10.0
heartbeat_s = 0.25
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark whole deployments `once`, but for those chosen to show each kind of them on every Python.

    They are most of what the suite costs, and how moves and restarts go hangs on no version.
    """
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("each_python") is None:
            item.add_marker("once")


@pytest.fixture(scope="session")
def checkpoint() -> str:
    """The folder of SmolLM2-135M-Instruct; built once a machine."""
    return os.environ.get("SWAPD_TEST_MODEL") or str(ensure_checkpoint(report=lambda line: None))


@pytest.fixture(scope="session")
def vllm_deployment(checkpoint: str) -> Iterator[Deployment]:
    """Started once a run; every test leaves it at rest."""
    top = f"park_bytes = {128 << 20}\nallow_failpoints = true"
    deployment = Deployment("vllm", checkpoint, extra=TIMERS, top=top)
    try:
        trio.run(lambda: deployment.start(ready_s=240))
        yield deployment
    finally:
        deployment.close()
