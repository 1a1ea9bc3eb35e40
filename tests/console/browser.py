"""What a browser does for a person at the console, over the raw client: cookies, forms, and what it says of
where a request comes from. It follows no redirect, so that tests see it."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

from tests.console.client import Client, Reply
from tests.signin.memory import OWNER_TOKEN, VIEWER_TOKEN

HTML = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
FORM = "application/x-www-form-urlencoded"
TOKENS = {"owner": OWNER_TOKEN, "viewer": VIEWER_TOKEN}


class Browser:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.cookies: dict[str, str] = {}
        self.csrf = ""

    async def get(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        reply = await self._ask("GET", path, None, {"Sec-Fetch-Site": "same-origin"} | (headers or {}))
        if found := re.search(rb'name="csrf" value="([^"]+)"', reply.body):
            self.csrf = found[1].decode()
        return reply

    async def post(
        self, path: str, fields: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> Reply:
        """Send a form of our own page, with the form token of the last page seen unless `fields` has one."""
        body = urlencode({"csrf": self.csrf} | (fields or {})).encode()
        given = {"Content-Type": FORM, "Sec-Fetch-Site": "same-origin"} | (headers or {})
        return await self._ask("POST", path, body, given)

    async def sign_in(self, role: str = "owner") -> Browser:
        reply = await self.post("/sign-in", {"key": TOKENS[role]})
        assert reply.status == 303, reply
        await self.get("/sign-in")
        return self

    async def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Reply:
        fields = {"Accept": HTML} | headers
        if self.cookies:
            fields.setdefault("Cookie", "; ".join(f"{k}={v}" for k, v in self.cookies.items()))
        reply = await self.client.ask(method, path, body, fields, token=None)
        if line := reply.headers.get("set-cookie"):
            name, _, value = line.partition(";")[0].partition("=")
            if value:
                self.cookies[name] = value
            else:
                self.cookies.pop(name, None)
        return reply
