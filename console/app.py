"""The HTTP interface: this file is the list of its routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from quart import Response, request, websocket
from quart_trio import QuartTrio

from console import auth, body, errors
from console.api.certificates import CertificateRoutes
from console.api.devices import DeviceRoutes
from console.api.diagnostics import DiagnosticsRoutes
from console.api.health import HealthRoutes
from console.api.operator import OperatorRoutes
from console.api.sessions import SessionRoutes
from console.api.socket import SocketRoutes
from console.live import LivePages
from console.pages.away import AwayPage
from console.pages.device import DevicePage
from console.pages.diagnostics import DiagnosticsPage
from console.pages.drain import DrainPage
from console.pages.drains import DrainsPage
from console.pages.layout import SECURITY_HEADERS, Layout, folder
from console.pages.overview import OverviewPage
from console.pages.problem import ProblemPage
from console.pages.sessions import SessionsPage
from console.pages.settings import SettingsPage
from console.pages.sign_in import SignInPage
from console.routing import ConsoleApp
from console.static_files import PREFIX, StaticFiles
from console.streams import StreamTimers
from swapd.api import Service
from swapd.config import LimitConfig

BODY_TIMEOUT_S: Final = 30
RESPONSE_TIMEOUT_S: Final = 60

Handler = Callable[..., Awaitable[Response]]


def create_app(
    service: Service,
    limits: LimitConfig,
    *,
    host_names: frozenset[str] = frozenset(),
    timers: StreamTimers | None = None,
) -> QuartTrio:
    """The application over `service`. `host_names`: names beside `localhost` that clients may use."""
    app = ConsoleApp("swapd.console", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = limits.max_body_bytes
    app.config["BODY_TIMEOUT"] = BODY_TIMEOUT_S
    app.config["RESPONSE_TIMEOUT"] = RESPONSE_TIMEOUT_S
    # A redirect would be an answer in another form than ours.
    app.url_map.merge_slashes = False
    _guard(app, frozenset(name.lower() for name in host_names))

    def route(method: str, path: str, handler: Handler) -> None:
        app.add_url_rule(path, f"{method} {path}", handler, methods=[method])

    streams = timers or StreamTimers()

    files = StaticFiles(folder("static"))
    route("GET", f"{PREFIX}<path:name>", files.send)

    layout = Layout(files)
    errors.install(app, ProblemPage(service, layout).answer)

    sign_in = SignInPage(service, layout)
    route("GET", "/sign-in", sign_in.view)
    route("POST", "/sign-in", sign_in.enter)
    route("POST", "/sign-out", sign_in.leave)
    route("POST", "/sign-out/everywhere", sign_in.leave_everywhere)

    away = AwayPage(service, layout)
    route("GET", "/away", away.view)

    diagnosing = DiagnosticsPage(service, layout)
    route("GET", "/diagnostics", diagnosing.view)
    route("GET", "/diagnostics/archive", diagnosing.archive)
    route("POST", "/diagnostics/debug", diagnosing.debug)

    overview = OverviewPage(service, layout, away)
    route("GET", "/", overview.view)
    route("POST", "/devices/<device>/take-back", overview.take_back)
    route("POST", "/devices/<device>/lend", overview.lend)

    settings = SettingsPage(service, layout)
    route("GET", "/settings", settings.view)
    route("POST", "/settings/preview", settings.preview)
    route("POST", "/settings/save", settings.save)

    device = DevicePage(service, layout)
    route("GET", "/devices/<device>", device.view)
    route("GET", "/devices/<device>/load", device.load)

    sessions_page = SessionsPage(service, layout)
    route("GET", "/sessions", sessions_page.view)
    route("GET", "/sessions/<session>/end", sessions_page.ask)
    route("POST", "/sessions/<session>/end", sessions_page.cancel)

    drains = DrainsPage(service, layout)
    route("GET", "/drains", drains.view)
    route("POST", "/drains", drains.start)
    route("GET", "/drains/new", drains.preflight)
    route("POST", "/switches/<switch>", drains.turn_switch)
    route("POST", "/workers/<worker>/trust", drains.clear_quarantine)

    drain = DrainPage(service, layout)
    route("GET", "/drains/<drain>", drain.view)
    route("POST", "/drains/<drain>/cancel", drain.cancel)

    live = LivePages(
        service,
        {
            "overview": overview.part,
            "device": device.part,
            "sessions": sessions_page.part,
            "drains": drains.part,
            "drain": drain.part,
            "preflight": drains.ahead,
            "diagnostics": diagnosing.part,
        },
    )
    route("GET", "/live/<page>", live.stream)
    route("GET", "/live/<page>/<name>", live.stream)

    health = HealthRoutes(service)
    route("GET", "/healthz", health.healthz)
    route("GET", "/readyz", health.readyz)

    sessions = SessionRoutes(service, limits, streams)
    route("POST", "/v1/sessions", sessions.create)
    route("GET", "/v1/sessions", sessions.index)
    route("GET", "/v1/sessions/<session>", sessions.view)
    route("DELETE", "/v1/sessions/<session>", sessions.cancel)
    route("GET", "/v1/sessions/<session>/events", sessions.events)

    socket = SocketRoutes(service, streams)
    app.add_websocket("/v1/sessions/<session>/stream", "stream", socket.stream)

    operator = OperatorRoutes(service)
    route("GET", "/status", operator.status)
    route("GET", "/metrics", operator.metrics)
    route("GET", "/v1/limits", operator.limits)
    route("GET", "/v1/workers", operator.workers)
    route("DELETE", "/v1/workers/<worker>/quarantine", operator.clear_quarantine)
    route("POST", "/v1/workers/<worker>/drains", operator.start_drain)
    route("GET", "/v1/drains", operator.drains)
    route("POST", "/v1/drains", operator.start_drains)
    route("GET", "/v1/drains/<drain>", operator.drain)
    route("DELETE", "/v1/drains/<drain>", operator.cancel_drain)

    route("GET", "/v1/switches", operator.switches)
    route("PUT", "/v1/switches/<switch>", operator.turn_switch)
    route("GET", "/v1/reconciliation", operator.reconciliation)

    certificates = CertificateRoutes(service)
    route("GET", "/v1/plans", certificates.plans)
    route("POST", "/v1/certificates/<certificate>/revoke", certificates.revoke)

    devices = DeviceRoutes(service)
    route("GET", "/v1/devices", devices.index)
    route("GET", "/v1/devices/<device>", devices.view)
    route("POST", "/v1/devices/<device>/take-back", devices.take_back)
    route("DELETE", "/v1/devices/<device>/take-back", devices.lend)
    route("GET", "/v1/devices/<device>/samples", devices.samples)
    route("GET", "/v1/devices/<device>/events", devices.events)

    diagnostics = DiagnosticsRoutes(service)
    route("GET", "/v1/diagnostics", diagnostics.view)
    route("GET", "/v1/diagnostics/archive", diagnostics.archive)
    route("PUT", "/v1/diagnostics/debug", diagnostics.debug)
    return app


def _guard(app: QuartTrio, host_names: frozenset[str]) -> None:
    """What holds for every request, before its route and after it."""

    async def before_request() -> None:
        auth.check_host(request.headers, host_names)
        auth.check_origin(request.headers, request.method)
        if request.method not in body.BODY_METHODS:
            body.check_no_body(request.headers)

    async def before_websocket() -> None:
        auth.check_host(websocket.headers, host_names)
        auth.check_origin(websocket.headers, "GET", is_websocket=True)

    async def after_request(response: Response) -> Response:
        for name, value in SECURITY_HEADERS.items():
            response.headers.setdefault(name, value)
        if not request.path.startswith(PREFIX):
            response.headers.setdefault("Cache-Control", "no-store")
        return response

    app.before_request(before_request)
    app.before_websocket(before_websocket)
    app.after_request(after_request)
