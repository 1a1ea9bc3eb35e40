"""The documentation is true where a machine can tell: commands, addresses, links and configuration."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest

from console.app import create_app
from swapd.config import LimitConfig
from swapd.config_file import parse_config

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
)
FENCE: Final = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"\]\((?P<target>[^)#\s]+)(?:#[^)]*)?\)")

# How each documented command is held true. A new one needs a line here, and a reason.
COMMANDS: Final = {
    "ops/setup": "tests/test_setup.py, and every other command calls it",
    "ops/quickstart": "tests/e2e",
    "ops/test": "it runs this test",
    "ops/check": "its parts run before each commit",
    "ops/rules": "tests/test_rules.py",
    ".venv/bin/swapd status": "tests of the command line",
    ".venv/bin/swapd generate": "tests of the command line",
    ".venv/bin/swapd sessions": "tests of the command line",
    ".venv/bin/swapd drain": "tests of the command line",
    ".venv/bin/swapd devices": "tests of the command line",
    ".venv/bin/swapd take-back": "tests of the command line",
    ".venv/bin/swapd lend": "tests of the command line",
    ".venv/bin/swapd plans": "tests/e2e/test_certificates.py",
    ".venv/bin/swapd revoke": "tests/e2e/test_certificates.py",
    ".venv/bin/swapd check-config": "tests of the command line",
    ".venv/bin/swapd serve": "tests/e2e",
    ".venv/bin/python -m swapd.models.smollm2": "tests/models",
    ".venv/bin/python ops/bench_handoff.py": "tests of the bench",
    ".venv/bin/python ops/bench_pressure.py": "tests of the bench",
    ".venv/bin/python ops/drill_restart.py": "tests/e2e/test_restart.py runs its parts",
    ".venv/bin/python ops/bench_giveback.py": "tests of the bench",
    ".venv/bin/python ops/bench_drain.py": "tests of the bench",
    ".venv/bin/python ops/bench_console.py": "tests/browser/test_bench_console.py runs it",
    ".venv/bin/swapd replay-readings": "tests/pressure/test_pressure_page.py runs it",
    "awk": "it makes the recording of that page, and the same test runs it",
    ".venv/bin/python ops/gpu_check.py": "tests/gpu_check",
    "curl": "its address is checked below",
    "SWAPD=http://127.0.0.1:8080": "the variables of the curl commands",
}


def blocks(page: Path, *languages: str) -> Iterator[str]:
    for match in FENCE.finditer(page.read_text(encoding="utf-8")):
        if match["language"] in languages:
            yield match["body"]


def commands() -> Iterator[tuple[str, str]]:
    """Yield (page, command) for every command shown; in `console` blocks those after a `$`."""
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        for body in blocks(page, "console"):
            for line in body.splitlines():
                if line.startswith("$ "):
                    yield name, line[2:]
        for body in blocks(page, "bash"):
            joined = body.replace("\\\n", " ")
            yield from ((name, line) for line in joined.splitlines() if line and not line.startswith("#"))


SHOWN: Final = list(commands())


@pytest.mark.parametrize(("page", "command"), SHOWN)
def test_every_command_shown_is_one_that_is_checked(page: str, command: str) -> None:
    words = shlex.split(command)
    assert any(words[: len(known.split())] == known.split() for known in COMMANDS), f"{page}: {command}"


def test_no_checked_command_has_left_the_documentation() -> None:
    for known in COMMANDS:
        assert any(shlex.split(command)[: len(known.split())] == known.split() for _, command in SHOWN), known


@pytest.mark.parametrize("command", [command for _, command in SHOWN if command.startswith("curl ")])
def test_every_address_shown_is_a_route_with_that_method(command: str) -> None:
    words = shlex.split(command)
    (address,) = [word for word in words if word.startswith("$SWAPD/")]
    method = "POST" if "-d" in words else "GET"
    if "-X" in words:
        method = words[words.index("-X") + 1]
    app = create_app(cast(Any, None), LimitConfig())
    path = address.removeprefix("$SWAPD").replace("$", "")
    assert app.url_map.bind("localhost").test(path, method), f"{method} {path}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    for match in LINK.finditer(page.read_text(encoding="utf-8")):
        if "://" not in match["target"]:
            assert (page.parent / match["target"]).exists(), match["target"]


@pytest.mark.parametrize(
    "body", [body for page in PAGES for body in blocks(page, "toml")], ids=lambda body: body.split()[0]
)
def test_every_configuration_shown_is_accepted(body: str) -> None:
    config = parse_config(body, folder=Path("/srv"), name="swapd.toml")
    assert len(config.workers) == 2


def test_every_fence_has_a_known_kind() -> None:
    kinds = {
        match["language"] for page in PAGES for match in FENCE.finditer(page.read_text(encoding="utf-8"))
    }
    assert kinds <= {"", "console", "bash", "toml", "python"}
    for page in PAGES:
        for body in blocks(page, "python"):
            compile(body, page.name, "exec")


def test_the_pages_are_all_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index
