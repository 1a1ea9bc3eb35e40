"""Run tests against a mutated module, in a fork of a process that has pytest loaded already."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Literal

import hypothesis

Result = Literal["passed", "failed", "timeout"]


class _Substitute(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module another source."""

    def __init__(self, module: str, path: Path, source: str) -> None:
        self._module, self._path, self._source = module, path, source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=str(self._path))

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(self._path)
        exec(compile(self._source, str(self._path), "exec"), module.__dict__)


class _NoShrinking:
    """That a mutant is noticed is all that counts: the smallest example that does it is nobody's question."""

    def pytest_configure(self) -> None:
        # After the conftest has loaded its profile, and before any test is defined.
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", parent=hypothesis.settings(), phases=phases)
        hypothesis.settings.load_profile("mutants")


def module_name(path: str) -> str:
    """`swapd/pressure/cache.py` → `swapd.pressure.cache`."""
    return path.removesuffix(".py").replace("/", ".")


def run_tests(
    tests: Sequence[str], *, path: str = "", source: str | None = None, timeout_s: float, root: Path
) -> Result:
    """Run test files in a child; `source` stands in for the module at `path`. Blocks."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _child(tests, path, source, root)
    fd = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        if not poller.poll(timeout_s * 1000):
            _end(pid)
            return "timeout"
        _, status = os.waitpid(pid, 0)
        _end(pid)
        return "passed" if os.waitstatus_to_exitcode(status) == 0 else "failed"
    finally:
        os.close(fd)


def foreign_modules(tests: Sequence[str], root: Path) -> list[str]:
    """Name what these tests load that is not of this project. Blocks."""
    program = (
        "import sys, pytest; pytest.main(['--co', '-qq', '-p', 'no:cacheprovider', *sys.argv[1:]])\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    command = [sys.executable, "-c", program, *tests]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, timeout=300)
    own = {path.name for path in root.iterdir()} | {"__main__"}
    return [name for name in done.stderr.split() if name.partition(".")[0] not in own]


def _end(pid: int) -> None:
    """End the child's whole process group: a mutant may have left what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and os.waitpid(pid, os.WNOHANG) == (0, 0):
            time.sleep(0.01)


def _child(tests: Sequence[str], path: str, source: str | None, root: Path) -> None:
    code = 70
    try:
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(quiet, fd)
        os.chdir(root)
        sys.path.insert(0, str(root))
        # Without a mutant it is written, so that the trials need not compile the tests each time.
        sys.dont_write_bytecode = source is not None
        if source is not None:
            sys.meta_path.insert(0, _Substitute(module_name(path), root / path, source))
        import pytest

        # What was loaded before the fork cannot be rewritten; no assertion of a test is in it.
        loaded = "ignore::pytest.PytestAssertRewriteWarning"
        code = int(
            pytest.main(["-x", "-q", "-W", loaded, "-p", "no:cacheprovider", *tests], [_NoShrinking()])
        )
    finally:
        os._exit(code)
