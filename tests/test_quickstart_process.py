"""The quickstart ends what it started, and its main job moves a generation; here with the sim engine."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from swapd.errors import Code, SwapdError
from swapd.quickstart import child as child_module
from swapd.quickstart.child import ServeProcess
from tests.ports import free_port

ROOT = Path(__file__).parent.parent
WAIT_S = 90.0
"""For a service, two workers and a generation on a busy machine."""

pytestmark = pytest.mark.timeout(180)

# The quickstart as it is, with the sim engine in place of the model that takes half a minute to load.
SCRIPT = """
import sys
from pathlib import Path
import swapd.quickstart as quickstart
from swapd.quickstart import state as state_module

folder, once, json_path = Path(sys.argv[1]), sys.argv[2] == "once", Path(sys.argv[3])
write = state_module.write_config

def write_sim(state, **given):
    write(state, **given)
    text = state.config_path.read_text().replace('worker_id =', 'engine = "sim"\\nworker_id =')
    text = text.replace(f"arena_bytes = {256 << 20}", f"arena_bytes = {64 << 20}\\nallow_sim_engine = true")
    state_module.write_private(state.config_path, text + "\\n[sim]\\nstep_ms = 20.0\\n")

quickstart.write_config = write_sim
quickstart.ensure_checkpoint = lambda report: folder
sys.exit(quickstart.run_quickstart(once=once, port=int(sys.argv[4]), folder=folder, json_path=json_path))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="qs-", dir="/tmp") as made:
        yield Path(made)


@contextmanager
def quickstart(folder: Path, form: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            SCRIPT,
            str(folder / "state"),
            form,
            str(folder / "report.json"),
            str(free_port()),
        ],
        cwd=ROOT,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    # A test that fails leaves nothing behind either.
    late = threading.Timer(WAIT_S, process.terminate)
    late.start()
    try:
        with process:
            yield process
    finally:
        late.cancel()
        if process.poll() is None:
            process.terminate()


def sign_in(address: str, code: str) -> int:
    """The status of the sign-in form's answer."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=WAIT_S)
    with closing(connection):
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request("POST", place.path, f"key={code}", form)
        return connection.getresponse().status


def processes_of(folder: Path) -> list[str]:
    """Command lines that name the folder: the service and its workers."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if str(folder) in line and "-m swapd" in line:
                found.append(line)
    return found


@pytest.mark.once
def test_once_moves_a_generation_and_reports_it_in_its_last_line(folder: Path) -> None:
    with quickstart(folder, "once") as process:
        shown, progress = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, progress
    report = json.loads(shown.splitlines()[-1])
    assert report["outcome"] == "completed_native"
    assert (report["tokens_lost"], report["tokens_duplicated"], report["recomputed_tokens"]) == (0, 0, 0)
    assert report["accepted"] == 128
    assert report["pause_ms"] > 0
    assert report["token_ms_median"] > 0
    assert {report["source"], report["target"]} == {"a", "b"}
    assert json.loads((folder / "report.json").read_text()) == report
    assert re.search(r"worker [ab] ready after \d+ s", progress)
    assert processes_of(folder) == []
    # Sockets, locks and settings are gone; what is kept is for the next run.
    assert {each.name for each in folder.iterdir()} == {"state", "report.json"}
    kept = {"swapd.toml", "tokens.json", "serve.log", "swapd.db", "owner-token", "viewer-token"}
    left = {each.name for each in (folder / "state").iterdir()}
    assert left - {"coordinator.lock", "swapd.db.lock", "swapd.db-ballast"} == kept


@pytest.mark.once
def test_it_serves_until_ctrl_c_and_then_everything_has_ended(folder: Path) -> None:
    with quickstart(folder, "serve") as process:
        assert process.stdout is not None
        shown = ""
        for line in process.stdout:
            shown += line
            if "Ctrl-C stops" in line:
                break
        assert re.search(r"serves SmolLM2-135M-Instruct at http://127.0.0.1:\d+", shown)
        assert f"{Path(sys.executable).parent}/swapd generate --config" in shown
        link = re.search(r"^  console +(http://127.0.0.1:\d+/sign-in)#([\w-]{43})$", shown, re.MULTILINE)
        assert link is not None
        assert sign_in(link[1], link[2]) == 303
        assert link[2] not in (folder / "state" / "serve.log").read_text()
        # The service and two workers; and where there are two cores, which it lends then, their sampler.
        assert len(processes_of(folder)) == 3 + (len(os.sched_getaffinity(0)) > 1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert processes_of(folder) == []


CHILDREN = {
    "refuses": "import sys; print('swapd: no port [config_invalid]', file=sys.stderr); sys.exit(2)",
    "fails": 'print(\'{"level":"error","message":"it broke","error_type":"OSError"}\'); raise SystemExit(1)',
    "deaf": "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
}


def config_in(folder: Path) -> Path:
    path = folder / "swapd.toml"
    path.write_text(
        'database_path="d"\nsocket_dir="s"\nworkers=[{worker_id="a"}]\nmodels=[{alias="m",path="m"}]\n'
        'credentials=[{namespace="me",token="a-token-for-this-test"}]\n'
    )
    return path


def start(folder: Path, name: str) -> ServeProcess:
    command = (sys.executable, "-c", CHILDREN[name])
    return ServeProcess.start(config_in(folder), folder / "log", command)


@pytest.mark.parametrize(("name", "said"), [("refuses", "no port"), ("fails", "it broke OSError; see ")])
async def test_a_service_that_ends_by_itself_is_told_in_its_own_words(
    folder: Path, name: str, said: str
) -> None:
    process = start(folder, name)
    assert await process.wait() in (1, 2)
    failure = process.failure()
    assert isinstance(failure, SwapdError)
    assert failure.code is Code.INTERNAL
    assert said in failure.sentence
    await process.stop()


async def test_a_service_that_does_not_stop_is_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "STOP_WAIT_S", 0.1)
    process = start(folder, "deaf")
    with (folder / "log").open() as log:
        while "up" not in log.read():
            log.seek(0)
    await process.stop()
    assert not process.running


def test_the_service_is_stopped_when_the_quickstart_is_killed(folder: Path) -> None:
    """SIGKILL leaves no chance to clean up; the kernel tells the child."""
    script = (
        "import sys, time; from pathlib import Path; from swapd.quickstart.child import ServeProcess\n"
        "child = ServeProcess.start(Path(sys.argv[1]), Path(sys.argv[2]), "
        "(sys.executable, '-c', 'import time; time.sleep(60)'))\n"
        "print(child._process.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, str(config_in(folder)), str(folder / "log")]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pidfd = os.pidfd_open(int(process.stdout.readline()))
        try:
            process.kill()
            ready, _, _ = select.select([pidfd], [], [], WAIT_S)
            assert ready
        finally:
            os.close(pidfd)
