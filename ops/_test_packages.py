"""Install the few packages of the system that only the tests need: `python -m ops._test_packages`.

A real message bus, and a login manager to put on it, which runs under the system's own Python; and a browser:
no virtual environment can hold them. Nothing is done where they are; `ops/quickstart` needs none of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from ops._setup import LOCKS, ROOT, Environment, SetupError, clean_environment, run, say, step

PACKAGES: Final = ("dbus", "python3-dbusmock", "chromium")
NAMES: Final = ", ".join(PACKAGES)
INSTALL: Final = ("install", "-y", "--no-install-recommends", *PACKAGES)
SYSTEM_PYTHON: Final = "/usr/bin/python3"
PROGRAMS: Final = ("dbus-daemon", "chromium")
MODULES: Final = ("dbusmock", "dbus", "gi")
DEBIAN_MODULES: Final = Path("/usr/lib/python3/dist-packages")
APT_LOCK_S: Final = 120


def present() -> bool:
    """Whether the tests find what they need of the system; on Debian without running anything."""
    if not all(map(shutil.which, PROGRAMS)):
        return False
    if all((DEBIAN_MODULES / name / "__init__.py").exists() for name in MODULES):
        return True
    try:
        asked = subprocess.run(
            [SYSTEM_PYTHON, "-c", f"import {', '.join(MODULES)}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=clean_environment(),
        )
    except OSError:
        return False
    return asked.returncode == 0


def ensure(env: Environment) -> None:
    """Install what is missing; apt's output goes to the environment's log.

    Raises `SetupError` where that cannot be done here, with the command for the person who can.
    """
    if present():
        return
    if shutil.which("apt-get") is None:
        raise SetupError(
            f"the tests need dbus-daemon, chromium, and python-dbusmock for {SYSTEM_PYTHON}; "
            f"on Debian and Ubuntu these are the packages {NAMES}."
        )
    if os.geteuid() != 0:
        raise SetupError(
            "the tests need packages of the system; "
            f"install them with: sudo apt-get update && sudo apt-get {' '.join(INSTALL)}"
        )
    # Another apt may be at work, and nobody is there to answer questions.
    apt = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", f"DPkg::Lock::Timeout={APT_LOCK_S}")
    with step(1, 1, f"installing the system packages {NAMES} for the tests"):
        run(env, "apt-get update", *apt, "update")
        run(env, "installing the system packages", *apt, *INSTALL)
    if not present():
        raise SetupError(
            f"{NAMES} are installed, but not all is found: {', '.join(PROGRAMS)}, {SYSTEM_PYTHON}'s modules."
        )


def main() -> int:
    try:
        ensure(Environment(ROOT / ".venv", sys.executable, LOCKS / "cpu-py311.txt"))
    except SetupError as error:
        say(f"ops/setup: {error}")
        return 1
    except KeyboardInterrupt:
        say("\nops/setup: interrupted; run it again to go on.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
