"""`swapd quickstart`: a real model served by two workers on this machine's CPU, with nothing to configure.

Everything lives in one private folder and in one child process, `swapd serve`; when this command ends, the
child and its workers have ended too.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import trio

from swapd.client import HttpClient, Unreachable
from swapd.errors import Code, SwapdError
from swapd.models.smollm2 import ensure_checkpoint
from swapd.ops.client import open_ops
from swapd.quickstart.child import ServeProcess
from swapd.quickstart.job import run_job, succeeded
from swapd.quickstart.state import (
    HOST,
    State,
    choose_port,
    default_folder,
    open_state,
    usable_cores,
    write_config,
)
from swapd.transport.lock import FileLock

READY_TIMEOUT_S: Final = 600.0
"""A worker takes half a minute on an idle machine and several on a busy one."""
POLL_S: Final = 0.25
OWNERS: Final = ("vacating", "free")
"""States of a device that its owner has, or gets."""
STOP_TIMEOUT_S: Final = 75.0
EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130


def run_quickstart(*, once: bool, port: int, folder: Path | None, json_path: Path | None) -> int:
    """Serve until told to stop, or with `once` run the main job; returns the exit status.

    Raises `model_missing`, `coordinator_lock_held`, `internal` when the service does not start.
    """
    state = open_state(folder or default_folder())
    lock = FileLock.acquire(state.folder / "quickstart.lock", Code.COORDINATOR_LOCK_HELD)
    try:
        model = ensure_checkpoint(report=report)
        chosen = choose_port(port)
        if chosen != port and port != 0:
            report(f"port {port} is in use, taking {chosen}")
        # The plain job must work on a machine that is busy with other things: it lends nothing.
        write_config(state, model=model, port=chosen, cores=usable_cores(), lend=not once)
        report(f"state is in {state.folder}, the service's log in {state.log_path}")
        child = ServeProcess.start(state.config_path, state.log_path)
        status = trio.run(partial(_main, state, child, chosen, once=once, json_path=json_path))
        if status in (0, EXIT_INTERRUPTED):
            state.clear_sockets()
        return status
    finally:
        lock.release()


def report(line: str) -> None:
    """One line of progress for a person, on stderr."""
    click.echo(f"· {line}", err=True)


async def _main(state: State, child: ServeProcess, port: int, *, once: bool, json_path: Path | None) -> int:
    """Run, and whatever happens end the child and its workers within a bound."""
    outcome = _Outcome()
    try:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_stop_on_signal, signals, nursery.cancel_scope, outcome)
                nursery.start_soon(_stop_on_exit, child, nursery.cancel_scope, outcome)
                await outcome.keep(partial(_use, state, port, once, json_path))
                nursery.cancel_scope.cancel()
            report("stopping the service and its workers")
            with trio.move_on_after(STOP_TIMEOUT_S, shield=True):
                await child.stop()
                report("all have ended")
    finally:
        if child.running:
            with trio.move_on_after(STOP_TIMEOUT_S, shield=True):
                await child.stop()
    if outcome.failure is not None:
        raise outcome.failure
    if outcome.last_line:
        click.echo(outcome.last_line)
    # Ctrl-C is how the serving form is meant to end.
    return (EXIT_INTERRUPTED if once else 0) if outcome.interrupted else outcome.status


class _Outcome:
    """What ended the run: the job, a signal, or the child."""

    def __init__(self) -> None:
        self.status = 0
        self.last_line = ""
        self.interrupted = False
        self.failure: SwapdError | None = None

    async def keep(self, body: Callable[[], Any]) -> None:
        """Run the body; a refusal is kept, so that it does not arrive wrapped in the nursery's group."""
        try:
            self.status, self.last_line = await body()
        except SwapdError as error:
            self.failure = self.failure or error


async def _stop_on_signal(signals: Any, scope: trio.CancelScope, outcome: _Outcome) -> None:
    async for _number in signals:
        outcome.interrupted = True
        scope.cancel()
        return


async def _stop_on_exit(child: ServeProcess, scope: trio.CancelScope, outcome: _Outcome) -> None:
    await child.wait()
    outcome.failure = child.failure()
    scope.cancel()


async def _use(state: State, port: int, once: bool, json_path: Path | None) -> tuple[int, str]:
    """The exit code, and the line that is to be the last one printed."""
    url = f"http://{HOST}:{port}"
    client, operator = HttpClient(url, state.tenant_token), HttpClient(url, state.operator_token)
    await _wait_ready(operator)
    if not once:
        _, devices = await operator.request("GET", "/v1/devices")
        async with open_ops(state.socket_dir) as ops:
            link = (await ops.console_link()).url
        click.echo(_welcome(state, url, link, devices["devices"] if isinstance(devices, dict) else []))
        await trio.sleep_forever()
    summary = await run_job(client, operator, report)
    line = json.dumps(summary)
    if json_path is not None:
        json_path.write_text(line + "\n")  # noqa: ASYNC240 (a few hundred bytes, nothing else runs)
    return 0 if succeeded(summary) else EXIT_FAILED, line


async def _wait_ready(operator: HttpClient) -> None:
    """Return when the service takes work and both workers are ready, telling each step."""
    began = trio.current_time()
    states: dict[str, str] = {}
    with trio.move_on_after(READY_TIMEOUT_S):
        while True:
            try:
                status, _ = await operator.request("GET", "/readyz")
                _, answer = await operator.request("GET", "/v1/workers")
                workers = answer.get("workers", []) if isinstance(answer, dict) else []
                for worker in workers:
                    _tell(states, worker["id"], worker["state"], trio.current_time() - began)
                devices = await _devices(operator)
                for device in devices:
                    _tell_device(states, device)
                # A core that its owner needs just now has no worker; whoever waits for it is told why.
                wanted = {w for device in devices if device["state"] in OWNERS for w in device["workers"]}
                ready = workers and all(w["state"] == "ready" or w["id"] in wanted for w in workers)
                if ready and (status == 200 or _learnt(devices)):
                    return
            except Unreachable:
                pass
            await trio.sleep(POLL_S)
    waiting = ", ".join(f"{worker} {state}" for worker, state in sorted(states.items())) or "no answer"
    raise SwapdError(Code.TIMEOUT, f"not ready after {READY_TIMEOUT_S:g} s: {waiting}")


async def _devices(operator: HttpClient) -> list[dict[str, Any]]:
    _, answer = await operator.request("GET", "/v1/devices")
    return list(answer.get("devices", [])) if isinstance(answer, dict) else []


def _learnt(devices: list[dict[str, Any]]) -> bool:
    """Whether every device knows what is normal; from there on, waiting is for its owner only."""
    return bool(devices) and all(device["calibrated"] for device in devices)


def _tell_device(states: dict[str, str], device: dict[str, Any]) -> None:
    """What a device waits for, once a change of reason; learning tells its progress in quarters."""
    name, why = f"device {device['name']}", str(device["why"])
    profile = device["profiles"].get(device["profile"] or "unlocked", {})
    if why == "calibrating" and profile:
        why += str(4 * profile["warmup_have"] // profile["warmup_samples"])
    if states.get(name) != why:
        states[name] = why
        report(f"{name}: {device['sentence']}")


def _tell(states: dict[str, str], worker: str, state: str, after_s: float) -> None:
    if states.get(worker) == state:
        return
    states[worker] = state
    report(
        f"worker {worker} ready after {after_s:.0f} s" if state == "ready" else f"worker {worker}: {state} …"
    )


def _welcome(state: State, url: str, link: str, devices: list[dict[str, Any]]) -> str:
    tenant, operator = state.tenant_token, state.operator_token
    # As it can be typed: an environment that is not active has no `swapd` on the path.
    swapd = shlex.quote(str(Path(sys.executable).with_name("swapd")))
    config = shlex.quote(str(state.config_path))
    return f"""
swapd serves SmolLM2-135M-Instruct at {url}

  console         {link}
  token           {tenant}
  operator token  {operator}

The link signs one browser in, once, within 15 minutes; `{swapd} console-link --config {config}`
makes another.

Try it in another terminal. Generate, and watch the text come:

  {swapd} generate --config {config} "Once upon a time"

The same over HTTP:

  curl -s {url}/v1/sessions -H 'Authorization: Bearer {tenant}' \\
       -H 'Content-Type: application/json' \\
       -d '{{"prompt": "Once upon a time", "max_new_tokens": 400, "ignore_eos": true}}'
  curl -N {url}/v1/sessions/SESSION/events -H 'Authorization: Bearer {tenant}'

While it runs, move it away from its worker (a, or b: see status), and look at how that went:

  {swapd} drain a --config {config}
  {swapd} status --config {config}
  {swapd} drains --config {config}

  curl -X POST {url}/v1/workers/a/drains -H 'Authorization: Bearer {operator}'
{_lent(devices, swapd, config)}
Ctrl-C stops the service and both workers."""


def _lent(devices: list[dict[str, Any]], swapd: str, config: str) -> str:
    """How to see that the owner wins; nothing where no core is lent."""
    if not devices:
        return ""
    cores = ", ".join(device["name"] for device in devices)
    return f"""
The cores are lent ({cores}): work of your own on one of them gets it back, and so does a word of yours.

  taskset -c {usable_cores()[0]} sha1sum /dev/zero      (in another terminal; Ctrl-C ends it)
  {swapd} status --config {config}
  {swapd} take-back cpu0 --for 5m --wait --config {config}
  {swapd} lend cpu0 --config {config}
"""
