"""An engine in a process of its own, spoken to over a pair of sockets: two vLLM engines need two processes.

`RemoteEngine` has the methods of `Engine`; each is one round trip. A `SwapdError` of the engine is raised
here again, anything else ends the child and shows as `EOFError`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from swapd.config import ModelConfig
from swapd.engines.base import Arrival, StepResult
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import EngineInfo
from swapd.messages.generation import GenerationSpec

START_TIMEOUT_S = 240.0
ANSWER_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 20.0


class RemoteEngine:
    """The parent's end."""

    def __init__(self, model: ModelConfig, cores: Sequence[int], log: Path) -> None:
        ours, theirs = socket.socketpair()
        with theirs, log.open("wb") as stderr:
            os.set_inheritable(theirs.fileno(), True)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.engines.remote", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                # Its temporary files lie where the test can see that none is left.
                env=os.environ | {"TMPDIR": str(log.parent)},
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self._log = log
        self._connection = Connection(ours.detach())
        self._connection.send((model, tuple(cores)))

    def wait_ready(self) -> None:
        if not self._connection.poll(START_TIMEOUT_S):
            raise TimeoutError("the engine did not start")
        self.info: EngineInfo = self._answer()

    def _answer(self) -> Any:
        if not self._connection.poll(ANSWER_TIMEOUT_S):
            raise TimeoutError("the engine does not answer")
        try:
            outcome, value = self._connection.recv()
        except EOFError:
            raise RuntimeError("the engine's process ended\n" + self._log.read_text()[-2000:]) from None
        if outcome == "refused":
            raise SwapdError(*value)
        return value

    def _call(self, method: str, *arguments: object) -> Any:
        self._connection.send((method, arguments))
        return self._answer()

    def start(self, key: str, spec: GenerationSpec, outputs: Sequence[int]) -> None:
        self._call("start", key, spec, tuple(outputs))

    def runnable(self) -> bool:
        return bool(self._call("runnable"))

    def step(self) -> StepResult:
        result: StepResult = self._call("step")
        return result

    def hold(self, key: str) -> None:
        self._call("hold", key)

    def unhold(self, key: str) -> None:
        self._call("unhold", key)

    def remove(self, key: str) -> None:
        self._call("remove", key)

    def reserve(self, key: str, spec: GenerationSpec) -> None:
        self._call("reserve", key, spec)

    def activate(self, arrivals: Sequence[Arrival]) -> None:
        self._call("activate", tuple(arrivals))

    def set_prefill(self, on: bool) -> None:
        self._call("set_prefill", on)

    def block_table(self, key: str) -> tuple[int, ...]:
        table: tuple[int, ...] = self._call("block_table", key)
        return table

    def computed(self, key: str) -> int:
        return int(self._call("computed", key))

    def decoding(self, key: str) -> bool:
        return bool(self._call("decoding", key))

    def outputs(self, key: str) -> tuple[int, ...]:
        outputs: tuple[int, ...] = self._call("outputs", key)
        return outputs

    def read_block(self, block: int, into: memoryview) -> None:
        into[:] = self._call("read_block", block)

    def write_block(self, block: int, data: memoryview) -> None:
        self._call("write_block", block, bytes(data))

    def free_blocks(self) -> int:
        return int(self._call("free_blocks"))

    def recomputed(self) -> int:
        return int(self._call("recomputed"))

    def recomputed_for(self, key: str) -> int:
        return int(self._call("recomputed_for", key))

    def leftovers(self) -> tuple[int, ...]:
        """What a vLLM engine still holds of generations: adapter, scheduler, runner."""
        found: tuple[int, ...] = self._call("leftovers")
        return found

    def clear(self) -> None:
        """Remove whatever a failed test left, so that the next one starts clean."""
        self._call("clear")

    def ask_to_close(self) -> None:
        """Begin to end the child, so that two can end side by side."""
        with contextlib.suppress(OSError):
            self._connection.send(("close", ()))

    def close(self) -> bytes:
        """End the child; return what it wrote to stdout."""
        try:
            stdout, _ = self.process.communicate(timeout=CLOSE_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            stdout, _ = self.process.communicate()
        self._connection.close()
        return stdout


def serve(descriptor: int) -> None:
    """Run the child's end until `close`."""
    connection = Connection(descriptor)
    model, cores = connection.recv()
    open_engine = importlib.import_module("swapd.engines.vllm").open_engine
    try:
        engine = open_engine(model, cores=cores)
    except SwapdError as error:
        connection.send(("refused", (error.code, error.detail)))
        return
    buffer = memoryview(bytearray(engine.info.block_bytes))
    connection.send(("done", engine.info))
    while True:
        method, arguments = connection.recv()
        if method == "close":
            break
        try:
            value: object
            if method == "read_block":
                engine.read_block(arguments[0], buffer)
                value = bytes(buffer)
            elif method == "write_block":
                engine.write_block(arguments[0], memoryview(arguments[1]))
                value = None
            elif method == "leftovers":
                value = _leftovers(engine)
            elif method == "clear":
                value = [engine.remove(key) for key in list(engine._stays)]
                engine.set_prefill(True)
            else:
                value = getattr(engine, method)(*arguments)
        except SwapdError as error:
            connection.send(("refused", (error.code, error.detail)))
        else:
            connection.send(("done", value))
    engine.close()
    # Taking the interpreter down takes seconds with vLLM in it.
    sys.stdout.flush()
    os._exit(0)


def _leftovers(engine: Any) -> tuple[int, ...]:
    scheduler, runner = engine._scheduler, engine._runner._runner
    return (
        len(engine._stays) + len(engine._by_request),
        len(scheduler.requests) + len(scheduler.held) + len(scheduler.reserved) + len(scheduler.running),
        len(scheduler.waiting) + len(scheduler.kv_holding_waiting) + len(scheduler.finished_req_ids),
        len(runner.requests),
        runner.input_batch.num_reqs,
    )


if __name__ == "__main__":
    assert Code  # unpickled by name
    serve(int(sys.argv[1]))
