"""Starting worker processes from the coordinator's side, where the host does not let it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from swapd.config import Config, CredentialConfig, ModelConfig, WorkerConfig
from swapd.errors import Code, SwapdError
from swapd.worker.spawn import spawn


def config(folder: Path, worker: WorkerConfig) -> Config:
    return Config(
        database_path=str(folder / "swapd.db"),
        socket_dir=str(folder),
        workers=(worker,),
        models=(ModelConfig("m", "."),),
        credentials=(CredentialConfig("n", token="t"),),
    )


WORKER = WorkerConfig("a", engine="sim")


async def test_an_interpreter_that_is_not_there_is_the_workers_failure_alone(tmp_path: Path) -> None:
    """A refusal with the path, which a link survives; an OSError would end the service."""
    worker = msgspec.structs.replace(WORKER, python="/nowhere/python")
    with pytest.raises(SwapdError, match="/nowhere/python") as caught:
        await spawn(config(tmp_path, worker), worker)
    assert caught.value.code is Code.ENGINE_FAILED


async def test_a_log_that_cannot_be_written_is_the_workers_failure_alone(tmp_path: Path) -> None:
    (tmp_path / "a.log").mkdir()
    with pytest.raises(SwapdError) as caught:
        await spawn(config(tmp_path, WORKER), WORKER)
    assert caught.value.code is Code.ENGINE_FAILED


async def test_a_socket_folder_that_is_gone_is_the_workers_failure_alone(tmp_path: Path) -> None:
    with pytest.raises(SwapdError, match="not_there") as caught:
        await spawn(config(tmp_path / "not_there", WORKER), WORKER)
    assert caught.value.code is Code.ENGINE_FAILED
