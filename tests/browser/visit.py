"""People who look at the console: each a browser profile of their own, and what their pages complain of."""

from __future__ import annotations

import re
from typing import Any, Final, Self

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Response

from tests.browser.machine import WAIT_S, Machine

DESK: Final = {"width": 1280, "height": 800}
PHONE: Final = {"width": 360, "height": 740}


class Visit:
    """Opens pages. At its end nothing may have gone wrong in any but what was allowed (`allow`)."""

    def __init__(self, browser: Browser, machine: Machine) -> None:
        self._browser = browser
        self.machine = machine
        self._contexts: list[BrowserContext] = []
        self._complaints: list[str] = []
        self._allowed: list[re.Pattern[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for context in self._contexts:
            context.close()
        # What failed first is what the test shall tell.
        assert error is not None or not self.complaints(), "\n".join(self.complaints())

    def allow(self, pattern: str) -> None:
        """From now on, and for what was already seen, no complaint that this expression finds counts."""
        self._allowed.append(re.compile(pattern))

    def complaints(self) -> list[str]:
        """Console errors, exceptions, requests that failed, and answers of 400 and above."""
        return [each for each in self._complaints if not any(known.search(each) for known in self._allowed)]

    def page(self, role: str | None = "owner", *, on: Any = None, **options: Any) -> Page:
        """A page of somebody new, signed in as `role` or not at all. `options` are those of a context."""
        context = self._browser.new_context(
            **{
                "base_url": self.machine.url,
                "viewport": DESK,
                "locale": "en-GB",
                "timezone_id": "UTC",
                "accept_downloads": True,
                **options,
            }
        )
        context.set_default_timeout(WAIT_S * 1000)
        context.set_default_navigation_timeout(WAIT_S * 1000)
        self._contexts.append(context)
        context.on("console", self._said)
        context.on("weberror", lambda error: self._complain(f"exception: {error.error}"))
        context.on("requestfailed", self._failed)
        context.on("response", self._answered)
        if role is not None:
            self.sign_in(context, role)
        return context.new_page()

    def sign_in(self, context: BrowserContext, role: str) -> None:
        """Without the page for it, which has tests of its own."""
        answer = context.request.post(
            "/sign-in", form={"key": self.machine.key(role), "next": "/healthz"}, max_redirects=0
        )
        assert answer.status == 303, answer.text()

    def _complain(self, text: str) -> None:
        self._complaints.append(text)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._complain(f"console {message.type}: {message.text} ({message.location.get('url')})")

    def _failed(self, request: Request) -> None:
        # A page that is left ends its stream, and what it was still fetching.
        if request.failure != "net::ERR_ABORTED":
            self._complain(f"failed: {request.method} {request.url}: {request.failure}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self._complain(f"status {response.status}: {response.request.method} {response.url}")
