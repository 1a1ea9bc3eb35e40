"""The command line does what its help says, against a service on real sockets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
import trio
import zmq
from click.testing import CliRunner, Result

from console.app import create_app
from console.server import serve_http
from swapd.cli import main
from swapd.cli.serving import _announce
from swapd.config import LimitConfig
from swapd.errors import Code, SwapdError
from swapd.ops.bus import EventBus
from swapd.ops.server import run_ops
from tests.ops.service_double import ServiceDouble

ROOT = Path(__file__).parent.parent
WAIT_S = 20.0

CONFIG = """database_path = "swapd.db"
socket_dir = "{run}"
port = {port}
self_certify = true
allow_sim_engine = true
[[workers]]
worker_id = "a"
engine = "sim"
[[workers]]
worker_id = "b"
engine = "sim"
[[models]]
alias = "smollm2"
path = "model"
[[credentials]]
namespace = "me"
token = "a-tenant-token-for-the-test"
"""


class Running:
    """A service double with its ops socket and HTTP API, in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.config = folder / "swapd.toml"
        self.service = ServiceDouble()
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken
        self._scope: trio.CancelScope
        self._thread = threading.Thread(target=trio.run, args=(self._main,))

    def __enter__(self) -> Running:
        self._thread.start()
        assert self._ready.wait(WAIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._token.run_sync_soon(self._scope.cancel)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    async def _main(self) -> None:
        context = zmq.Context[zmq.Socket[bytes]]()
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(
                    partial(run_ops, self.service, EventBus(), socket_dir=self.run_dir, context=context)
                )
                limits = LimitConfig()
                app = create_app(self.service, limits)
                port = await nursery.start(partial(serve_http, app, host="127.0.0.1", port=0, limits=limits))
                self.config.touch(mode=0o600)
                self.config.write_text(CONFIG.format(run=self.run_dir, port=port))
                self._token, self._scope = trio.lowlevel.current_trio_token(), nursery.cancel_scope
                self._ready.set()
        finally:
            context.term()

    def do(self, action: Callable[[], object]) -> None:
        """Run something in the service's thread."""
        trio.from_thread.run_sync(action, trio_token=self._token)

    def swapd(self, *args: str, input: str | None = None) -> Result:
        return CliRunner().invoke(main, [*args, "--config", str(self.config)], input=input)

    def process(self, *args: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "swapd", *args, "--config", str(self.config)]
        return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture
def running() -> Iterator[Running]:
    with tempfile.TemporaryDirectory(prefix="cli-", dir="/tmp") as folder, Running(Path(folder)) as started:
        yield started


def until(condition: Callable[[], object]) -> None:
    """Wait for another process to have got somewhere."""
    ends = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_every_command_and_option_has_a_help_text() -> None:
    for name, command in main.commands.items():
        assert command.help, name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.opts[0]}"
        shown = CliRunner().invoke(main, [name, "--help"])
        assert shown.exit_code == 0
        # Rules have numbers for those who work on swapd, not for those who use it.
        assert "H127" not in shown.stdout


def test_the_list_of_commands_cuts_no_sentence() -> None:
    shown = CliRunner().invoke(main, ["--help"], terminal_width=80).stdout
    assert "..." not in shown.partition("Commands:")[2]


def test_help_loads_nothing_heavy() -> None:
    """`swapd --help` is quick because commands import what they run when they run."""
    heavy = ("quart", "hypercorn", "torch", "vllm", "zmq", "trio", "tokenizers", "sqlite_utils")
    script = f"import sys, swapd.cli; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_python_m_swapd_is_the_same_program() -> None:
    """H100."""
    done = subprocess.run(
        [sys.executable, "-m", "swapd", "worker", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for option in ("--worker-id", "--socket-dir", "--engine", "--model", "--max-model-len"):
        assert option in done.stdout
    assert "--gpu-memory-utilization" in done.stdout


def test_status_shows_workers_sessions_and_drains(running: Running) -> None:
    running.service.story = [("token", {"pos": 1})]
    assert running.swapd("generate", "x", "--max-new-tokens", "0").exit_code == 2
    result = running.swapd("status")
    assert result.exit_code == 0
    assert "ready" in result.stdout
    assert "12.5" in result.stdout
    assert "sessions: none" in result.stdout
    shown = json.loads(running.swapd("status", "--json").stdout)
    assert [worker["id"] for worker in shown["workers"]] == ["a", "b"]
    assert "type" not in shown
    # By the sockets' folder alone, too.
    assert CliRunner().invoke(main, ["status", "--socket-dir", str(running.run_dir)]).exit_code == 0


def test_status_of_a_service_that_is_not_ready_exits_with_1(running: Running) -> None:
    running.do(running.service.stop)
    result = running.swapd("status")
    assert result.exit_code == 1
    assert "not ready: stopping" in result.stdout


def test_generate_prints_the_text_and_nothing_else(running: Running) -> None:
    running.service.story = [
        ("token", {"pos": 1, "token_id": 5, "text": "one"}),
        ("token", {"pos": 2, "token_id": 6, "text": " two"}),
        ("completed", {"finish_reason": "length", "text": "."}),
    ]
    result = running.swapd("generate", "count", "--seed", "7", "--stop", "END", "--temperature", "0")
    assert (result.exit_code, result.stdout) == (0, "one two.\n")
    asked = running.service.requests[-1]
    assert (asked.prompt, asked.seed, asked.stop, asked.temperature) == ("count", 7, ["END"], 0.0)
    assert asked.max_new_tokens == 256
    result = running.swapd("generate", "--json", input="from stdin")
    assert running.service.requests[-1].prompt == "from stdin"
    assert json.loads(result.stdout) == {
        "session": "ses_1",
        "state": "completed",
        "finish_reason": "length",
        "code": None,
        "text": "one two.",
        "reconnects": 0,
    }


def test_a_session_that_fails_exits_with_1_and_its_code(running: Running) -> None:
    running.service.story = [("failed", {"code": "recovery_unavailable"})]
    result = running.swapd("generate", "x")
    assert result.exit_code == 1
    assert "ended as failed [recovery_unavailable]" in result.stderr


@pytest.mark.parametrize("keep", [False, True])
def test_interrupting_generate_cancels_the_session_unless_it_is_to_be_kept(
    running: Running, keep: bool
) -> None:
    with running.process("generate", "x", *(["--keep"] if keep else [])) as process:
        until(lambda: running.service.subscriptions)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    state = running.service.views["ses_0"].state
    assert state == ("running" if keep else "cancelled")
    assert ("goes on" if keep else "cancelled") in said


def test_drain_follows_to_the_end_and_shows_each_outcome(running: Running) -> None:
    running.service.story = [("completed", {})]
    running.swapd("generate", "x")
    running.service.polls_to_drained = 2
    result = running.swapd("drain", "a", "--deadline", "30")
    assert result.exit_code == 0
    assert "draining a" in result.stderr
    assert "completed_native" in result.stdout
    assert "drain drn_0 of worker a: drained" in result.stdout
    assert running.service.drain_views["drn_0"].deadline_s == 30.0
    running.service.polls_to_drained = 1
    result = running.swapd("drain", "b", "--json")
    assert json.loads(result.stdout)["state"] == "drained"
    assert result.stderr == ""


def test_several_workers_are_drained_by_one_command_with_its_reason(running: Running) -> None:
    """B16"""
    running.service.polls_to_drained = 2
    result = running.swapd("drain", "a", "b", "--reason", "a new driver")
    assert result.exit_code == 0
    assert "draining a, b" in result.stderr
    assert "drain drn_0 of worker a: drained" in result.stdout
    assert "drain drn_1 of worker b: drained" in result.stdout
    assert [view.reason for view in running.service.drain_views.values()] == ["a new driver"] * 2
    assert "a new driver" in running.swapd("drains").stdout
    running.service.polls_to_drained = 1
    told = json.loads(running.swapd("drain", "a", "b", "--json").stdout)
    assert [view["worker"] for view in told["drains"]] == ["a", "b"]


def test_one_blocked_drain_of_several_exits_with_1(running: Running) -> None:
    with running.process("drain", "a", "b") as process:
        until(lambda: len(running.service.drain_views) == 2)
        running.do(lambda: running.service.finish_drain("drn_0"))
        running.do(lambda: running.service.finish_drain("drn_1", "blocked"))
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 1


def test_a_running_drain_says_who_asked_and_why(running: Running) -> None:
    """B16"""
    running.swapd("drain", "a", "--no-wait", "--reason", "a new driver")
    assert "(operator: a new driver)" in running.swapd("status").stdout


def test_a_blocked_drain_exits_with_1(running: Running) -> None:
    with running.process("drain", "a") as process:
        until(lambda: running.service.drain_views)
        running.do(lambda: running.service.finish_drain("drn_0", "blocked"))
        shown, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert "worker a: blocked" in shown


def test_interrupting_drain_leaves_it_running_and_says_how_to_end_it(running: Running) -> None:
    """B19: closing the view never cancels the drain."""
    with running.process("drain", "a") as process:
        until(lambda: running.service.drain_views)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert "swapd cancel --drain drn_0" in said
    assert running.service.drain_views["drn_0"].state == "running"
    assert "drn_0" in running.swapd("drains").stdout
    assert "worker a is open again" in running.swapd("cancel", "--drain", "drn_0").stdout


def test_cancelling_a_drain_that_is_over_does_not_claim_to_have_opened_its_worker(running: Running) -> None:
    running.service.polls_to_drained = 1
    running.swapd("drain", "a")
    shown = running.swapd("cancel", "--drain", "drn_0").stdout
    assert shown == "drain drn_0 was over already: drained\n"


def test_a_drain_can_be_started_without_waiting(running: Running) -> None:
    result = running.swapd("drain", "a", "--no-wait", "--json")
    assert (result.exit_code, json.loads(result.stdout)["state"]) == (0, "running")


def test_sessions_are_listed_and_cancelled(running: Running) -> None:
    async def create() -> None:
        from swapd.views import Caller, NewSession

        await running.service.create_session(Caller("me"), NewSession(prompt="x", max_new_tokens=3))

    trio.from_thread.run(create, trio_token=running._token)
    assert "ses_0" in running.swapd("sessions").stdout
    assert json.loads(running.swapd("sessions", "--json").stdout)["sessions"][0]["id"] == "ses_0"
    assert "ses_0 is cancelled" in running.swapd("cancel", "ses_0").stdout
    assert json.loads(running.swapd("drains", "--json").stdout) == {"drains": []}


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["drain", "z"], Code.WORKER_UNKNOWN),
        (["cancel", "ses_9"], Code.SESSION_UNKNOWN),
        (["cancel", "--drain", "drn_9"], Code.DRAIN_UNKNOWN),
        (["generate", ""], Code.PROMPT_EMPTY),
    ],
)
def test_a_refusal_is_one_sentence_with_its_code_and_exit_status_2(
    running: Running, args: list[str], code: Code
) -> None:
    result = running.swapd(*args)
    assert result.exit_code == 2
    assert result.stderr.startswith("swapd: ")
    assert result.stderr.strip().endswith(f"[{code}]")
    assert result.stderr.count("\n") == 1
    result = running.swapd(*args, "--json")
    assert json.loads(result.stdout)["error"]["code"] == code


def invoke(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def test_without_a_service_or_configuration_the_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    result = invoke("status")
    assert result.exit_code == 2
    assert "there is no ./swapd.toml and no quickstart has run; name one with --config" in result.stderr
    result = invoke("status", "--socket-dir", str(tmp_path))
    assert "start it with `swapd serve`" in result.stderr


def test_a_default_configuration_is_found_in_the_folder(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(running.folder)
    assert invoke("status").exit_code == 0


def test_without_one_in_the_folder_the_quickstarts_is_taken(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of the README work in a fresh checkout."""
    kept = tmp_path / "swapd" / "quickstart"
    kept.mkdir(parents=True)
    running.config.rename(kept / "swapd.toml")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(running.folder)
    assert invoke("status").exit_code == 0
    assert invoke("drains").exit_code == 0


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    path = tmp_path / "swapd.toml"
    path.touch(mode=0o600)
    path.write_text(CONFIG.format(run="/run/swapd", port=8080))
    return path


def test_check_config_says_what_serve_would_and_takes_no_lock(config_path: Path) -> None:
    """H127."""
    result = invoke("check-config", "--config", str(config_path))
    assert result.exit_code == 0
    assert "warning: self_certify = true" in result.stderr
    assert "is valid: workers a, b; model smollm2; http://127.0.0.1:8080" in result.stdout
    answer = json.loads(invoke("check-config", "--config", str(config_path), "--json").stdout)
    assert answer["ok"] is True
    assert any("self_certify" in warning for warning in answer["warnings"])
    # Nothing was made beside it: no lock, no store, no folder.
    assert os.listdir(config_path.parent) == ["swapd.toml"]


def test_check_config_and_serve_refuse_with_the_same_sentence(config_path: Path) -> None:
    """H127, H119: a mistake is named with its line, and nothing starts."""
    config_path.write_text(config_path.read_text().replace("self_certify", "self_certfy"))
    checked = invoke("check-config", "--config", str(config_path))
    assert checked.exit_code == 2
    assert "swapd.toml line 4: unknown key 'self_certfy'" in checked.stderr
    command = [sys.executable, "-m", "swapd", "serve", "--config", str(config_path)]
    served = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S)
    assert served.returncode == 2
    assert served.stderr == checked.stderr
    assert os.listdir(config_path.parent) == ["swapd.toml"]


def test_serve_has_no_option_for_a_number_of_processes() -> None:
    """H121."""
    assert invoke("serve", "--workers", "2").exit_code == 2
    options = {name for parameter in main.commands["serve"].params for name in parameter.opts}
    assert options == {"--config"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--socket-dir", "/tmp/x"], "--worker-id is missing"),
        (["--worker-id", "a"], "--socket-dir is missing"),
        (["--worker-id", "a", "--socket-dir", "/tmp/x"], "--model is missing"),
        (
            ["--worker-id", "a", "--socket-dir", "/tmp/x", "--engine", "sim", "--cores", "x"],
            "invalid literal",
        ),
        (["--settings", "f.json", "--worker-id", "a"], "--settings goes alone, without --worker-id"),
        (["--settings", "/nowhere.json"], "No such file"),
    ],
)
def test_a_worker_without_what_it_needs_is_refused_in_words(args: list[str], said: str) -> None:
    """H100."""
    result = invoke("worker", *args)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_workers_options_become_its_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """H100."""
    from swapd.worker import process

    given: list[Any] = []
    monkeypatch.setattr(process, "run_worker", lambda settings: given.append(settings) or 3)
    # The real one ends the process without unwinding.
    monkeypatch.setattr(process, "leave", sys.exit)
    monkeypatch.setattr("swapd.log.configure_logging", lambda: None)
    result = invoke(
        *("worker", "--worker-id", "a", "--socket-dir", str(tmp_path), "--model", str(tmp_path / "m")),
        *("--max-model-len", "512", "--gpu-memory-utilization", "0.5", "--cores", "0,1", "--window", "4"),
    )
    assert result.exit_code == 3
    (settings,) = given
    assert (settings.worker_id, settings.engine, settings.cores, settings.window) == ("a", "vllm", (0, 1), 4)
    assert settings.model.max_model_len == 512
    assert settings.model.gpu_memory_utilization == 0.5
    assert settings.model.alias == "m"
    assert settings.socket_dir == str(tmp_path)


def test_a_refusal_inside_a_nursery_is_still_one_sentence() -> None:
    group = BaseExceptionGroup("", [BaseExceptionGroup("", [SwapdError(Code.STORE_FAILED, "disk")])])

    @click.command("nested")
    def nested() -> None:
        raise group

    main.add_command(nested)
    try:
        result = invoke("nested")
    finally:
        del main.commands["nested"]
    assert (result.exit_code, result.stderr.strip().rpartition(" ")[2]) == (2, "[store_failed]")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_link_to_the_console_is_for_a_person_s_eyes(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal `serve` prints one; what is no terminal is somebody's log, and none is even made."""
    made: list[str] = []

    def link() -> str:
        made.append("http://127.0.0.1:8080/sign-in#code")
        return made[0]

    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    _announce("::1", 8080, link)
    shown = capsys.readouterr().out
    assert shown.startswith("swapd serves http://[::1]:8080\n")
    assert ("#code" in shown, len(made)) == (is_terminal, int(is_terminal))
