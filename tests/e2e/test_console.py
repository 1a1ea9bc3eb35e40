"""The console of a real service: the first sign-in, over a killed coordinator, and what is written where."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
import trio

from swapd.ops.client import open_ops
from swapd.signin.tokens import ROLES
from tests.console.browser import Browser
from tests.console.client import Client
from tests.e2e.deployment import Deployment


def browser(deployment: Deployment) -> Browser:
    return Browser(Client(urlsplit(str(deployment.announced())).port or 0))


@pytest.mark.each_python
async def test_a_first_sign_in_outlives_a_killed_coordinator_and_is_written_nowhere() -> None:
    """The code, the tokens and the cookie are in no log, and the cookie not in the store either."""
    deployment = Deployment("sim")
    try:
        deployment.launch()
        await deployment.announced_again()
        tokens = []
        for role in ROLES:
            path = deployment.folder / f"{role}-token"
            assert path.stat().st_mode & 0o777 == 0o600
            tokens.append(path.read_text().strip())
        async with open_ops(deployment.folder / "s") as ops:
            link = await ops.console_link()
        address, _, code = link.url.partition("#")
        assert address == f"{deployment.announced()}/sign-in"
        owner = browser(deployment)
        assert (await owner.get("/sign-in")).status == 200
        assert (await owner.post("/sign-in", {"key": code})).status == 303
        assert (await owner.get("/")).status == 200
        deployment.kill_coordinator()
        deployment.launch()
        await deployment.announced_again()
        assert (await owner.get("/")).status == 200
        assert (await browser(deployment).post("/sign-in", {"key": code})).status == 401
        assert (await browser(deployment).post("/sign-in", {"key": tokens[1]})).status == 303
        written = [path.read_bytes() for path in deployment.folder.glob("serve.*")]
        stored = [path.read_bytes() for path in deployment.folder.glob("swapd.db*")]
        cookies = list(owner.cookies.values())
        assert not [
            secret for secret in [*tokens, code, *cookies] for text in written if secret.encode() in text
        ]
        assert not [
            secret for secret in [*tokens, code, *cookies] for text in stored if secret.encode() in text
        ]
        assert b"`swapd console-link` makes a link" in b"".join(written)
        async with open_ops(deployment.folder / "s") as ops:
            await ops.console_link(new_tokens=True)
        assert (await owner.get("/")).status == 303
    finally:
        await trio.to_thread.run_sync(deployment.close)
