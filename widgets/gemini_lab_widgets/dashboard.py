"""The dashboard's server: in a thread of the notebook's kernel, or of `gemini-lab serve`.

Below a notebook's cell it is live while it is served. A notebook saves a picture of the run as it
was, or a line of text, and a script that puts the live page in its place if its server answers.
Neither holds a password.
"""

import asyncio
import json
import os
import secrets
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from html import escape
from ipaddress import IPv4Address
from pathlib import Path
from string import Template
from typing import Final, Self, Unpack
from urllib.parse import quote, urlsplit

import psutil
from bokeh.document import Document
from panel.io.server import get_server
from panel.io.state import state
from tornado.ioloop import IOLoop

from gemini_lab.display import picture
from gemini_lab.errors import ConfigError, GeminiError, LaunchError
from gemini_lab.lab.pages import PageSettings
from gemini_lab.report.build import load_report
from gemini_lab_widgets.cell_output import CellOutput
from gemini_lab_widgets.library import Library, ShownRun
from gemini_lab_widgets.login import KEY_BYTES, LoginGuard, headers_for, kept_key
from gemini_lab_widgets.page import visit

LONGEST_BYTES: Final = 32 << 20
"""Of a log from which a picture is made: some seconds."""
LIVE: Final = Template("""
<div id="$place">
<p><a href="$link" target="_blank" rel="noopener">Open the dashboard</a> in a tab of its own</p>
<div class="saved">$saved</div>
<script>
(async () => {
  try {  // of another host one learns only that somebody answers
    const told = await fetch($there, { mode: "no-cors", cache: "no-store" })
    if (!told.ok && told.type !== "opaque") return
  } catch { return }
  const box = document.createElement("div"), line = document.createElement("p")
  const frame = document.createElement("iframe"), page = new URL($page, location)
  const notebook = document.body.dataset  // JupyterLab says here how it looks; others do not
  const theme = () => ({ true: "light", false: "dark" })[notebook.jpThemeLight]
  if (theme()) page.searchParams.set("theme", theme())
  new MutationObserver(() => {
    if (theme()) frame.contentWindow?.postMessage({ theme: theme() }, page.origin)
  }).observe(document.body, { attributeFilter: ["data-jp-theme-light"] })
  frame.src = page.href
  frame.title = "Dashboard of the run"
  frame.style.cssText = "grid-area:1/1;width:100%;height:760px;border:1px solid #8884;"
    + "border-radius:8px"
  frame.addEventListener("load", () => line.remove())
  line.textContent = "The dashboard is loading \\u2026"
  line.style.cssText = "grid-area:1/1;place-self:center"
  box.style.cssText = "display:grid"
  box.append(line, frame)
  document.getElementById("$place")?.querySelector(".saved").replaceWith(box)
})()
</script>
</div>
""")
NOTHING: Final = (
    "The dashboard shows a run while its lab lives. <code>gemini-lab serve</code> shows it again."
)


class NotebookEmbed:
    """The cells that show one dashboard."""

    def __init__(self) -> None:
        self._below = CellOutput()

    def show(self, url: str, ticket: str, run: ShownRun) -> None:
        """Show a page below the cell that runs."""
        live = live_html(url, ticket, saved_html(run))
        self._below.show(_bundle(live if ticket else saved_html(run), url))

    def end(self, run: ShownRun) -> None:
        """Put a picture of the run in the place of its page."""
        self._below.put(_bundle(saved_html(run), "a dashboard that has ended"))
        self._below = CellOutput()


def live_html(url: str, ticket: str, saved: str) -> str:
    """Return the page in a frame, with what stands there where its server does not answer."""
    return LIVE.substitute(
        place=f"gl-frame-{secrets.token_hex(4)}",
        link=escape(f"{url}login?token={ticket}"),
        there=_quoted(f"{url}login"),
        page=_quoted(f"{url}?token={ticket}"),
        saved=saved,
    )


def saved_html(run: ShownRun) -> str:
    """Return a picture of the run so far with a line on how to see more of it."""
    if run.log is None:
        return f"<p>No run has begun yet. {NOTHING}</p>"
    more = f"<p>{NOTHING.replace('serve', f'serve {escape(run.name)}')}</p>"
    try:
        if run.log.stat().st_size > LONGEST_BYTES:
            return more
        return picture(load_report(run.log.parent)).html() + more
    except (OSError, GeminiError):  # the log has no run yet, or matplotlib is not installed
        return more


def _quoted(text: str) -> str:
    return json.dumps(text).replace("<", "\\u003c")


def _bundle(html: str, plain: str) -> dict[str, str]:
    return {"text/html": html, "text/plain": f"<Dashboard on {plain}>"}


LOOPBACK: Final = "127.0.0.1"
EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - refused unless asked for twice
TEMPLATE: Final = "GEMINI_LAB_DASHBOARD_LINK"
"""The variable by which an administrator of notebook servers sets the address of pages."""
BEHIND_A_HUB: Final = "{JUPYTERHUB_SERVICE_PREFIX}/proxy/{port}/"
"""Through jupyter-server-proxy."""
FAR: Final = ("192.0.2.1", 9)
"""An unused address (RFC 5737): nothing is sent, but the system names the route to it."""

VISITORS: Final = 20
STARTED_WITHIN_S: Final = 60.0
SHORTEST_PASSWORD: Final = 8
LAST_PORT: Final = 2**16 - 1
LARGEST_MESSAGE_BYTES: Final = 1 << 20
"""From a visitor: acknowledgements and views' settings are far smaller."""
TIDY_MS: Final = 3000
"""Between two looks for places that became free."""
NOTEBOOKS: Final = "'self' http://localhost:* http://127.0.0.1:* vscode-webview:"
"""Who may show the page in a frame: notebooks on this machine or behind the same proxy."""
WHY_LOOPBACK: Final = (
    "The page is served on 127.0.0.1, to this machine alone: it speaks plain HTTP, so on a network "
    "anyone in between could read the password and the run. From elsewhere, use a tunnel (ssh "
    "-N -L PORT:127.0.0.1:PORT HOST) or a proxy with TLS. Where the network itself is trusted, "
    "--public lifts this."
)


def for_notebook(
    newest: Callable[[], Path | None], **settings: Unpack[PageSettings]
) -> "Dashboard":
    """Return a dashboard that listens, and that notebooks of this machine may show in a frame."""
    with_frames: PageSettings = {"frame_ancestors": NOTEBOOKS, **settings}
    return Dashboard(newest, **with_frames).start()


class Dashboard:
    """A page about a run, served from a thread; visitors can change nothing.

    It listens from `start`, or the `with` statement, to `close`. The page only reads the run's log:
    it holds no reference to a lab and no control at all.

    Args:
        newest: Gives the log to show, or None while there is none.
        port: Where to listen; 0 takes a free port.
        address: On which of this machine's addresses; other than loopback only if `public`.
        password: What visitors have to know; by default a new one.
        visitors: How many may look at once.
        origins: Further `host[:port]`s under which browsers reach the page, such as a proxy's.
        frame_ancestors: Pages that may show this one in a frame, as in the header of that name.
        public: Listen beyond loopback although the page speaks plain HTTP.
        link: Under which address browsers reach the page, where that is another one than the
            server's own; see `PageSettings`.
        beside: Logs of the runs to compare with; by default the newest earlier run of the same job.
        is_open: Whether visitors may choose the other runs of the same folder, too.

    Attributes:
        port: Where it listens, once it does.

    Raises:
        ConfigError: The address is not loopback, the password is too short, or `link` names
            something that is not known here.
    """

    def __init__(
        self,
        newest: Callable[[], Path | None],
        *,
        port: int = 0,
        address: str = LOOPBACK,
        password: str | None = None,
        visitors: int = VISITORS,
        origins: Sequence[str] = (),
        frame_ancestors: str = "'self'",
        public: bool = False,
        link: str | None = None,
        beside: Sequence[Path] = (),
        is_open: bool = True,
    ) -> None:
        _check(address, port, password, visitors, public=public)
        self.address = address
        self.password = password or secrets.token_urlsafe(16)
        # With a password of its own it is not started again, so it leaves no file behind.
        self._key = kept_key() if password else secrets.token_bytes(KEY_BYTES)
        self.port = port
        self._link = link
        self.url = link_of(address, port, link)
        """The address of the page, for visitors with a cookie or the password."""
        self._guard: LoginGuard | None = None
        self._frame = NotebookEmbed()
        self._library = Library(newest, beside=beside, is_open=is_open)
        self._visitors = visitors
        self._present: set[Document] = set()
        self._origins = origins
        self._frame_ancestors = frame_ancestors
        self._error: BaseException | None = None
        self._loop: IOLoop | None = None
        self._is_settled = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="gemini-dashboard", daemon=True)

    def start(self) -> Self:
        """Serve the page, unless that was done; returns when it listens.

        Raises:
            LaunchError: The port is taken.
        """
        if self._loop is None:
            self.port = self.port or _free_port(self.address)
            self.url = link_of(self.address, self.port, self._link)
            self._guard = LoginGuard(self.password, port=self.port, key=self._key)
            self._thread.start()
            self._wait_until_it_listens()
        return self

    @property
    def link(self) -> str:
        """Return the page's address with the password, which a cookie then replaces."""
        return f"{self.url}login?token={quote(self.password)}"

    def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.add_callback(loop.stop)
            self._thread.join(timeout=10)
            self._frame.end(self._library.latest)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Dashboard on {self.url}, {'open' if self._loop else 'closed'}>"

    def _ipython_display_(self) -> None:
        ticket = "" if self._guard is None or self._loop is None else self._guard.ticket
        self._frame.show(self.url, ticket, self._library.latest)

    # -- the server's thread -----------------------------------------------------------------

    def _serve(self) -> None:
        loop = IOLoop(make_current=False)
        asyncio.set_event_loop(loop.asyncio_loop)
        server_id, guard = uuid.uuid4().hex, self._guard
        assert guard is not None, "it is made before this thread"
        try:
            server = get_server(
                {"/": lambda: visit(self._library, self._present, most=self._visitors)},
                port=self.port,
                address=self.address,
                loop=loop,
                title="gemini_lab",
                websocket_origin=[*origins_of(self.address, self.port), *self._origins],
                server_id=server_id,
                location=False,
                auth_provider=guard,
                sign_sessions=True,
                secret_key=guard.secret.encode(),
                include_headers=[],
                include_cookies=[],
                websocket_max_message_size=LARGEST_MESSAGE_BYTES,
                check_unused_sessions_milliseconds=TIDY_MS,
            )
            server._tornado.add_transform(headers_for(self._frame_ancestors))  # noqa: SLF001
        except BaseException as error:  # noqa: BLE001 - `start` raises it
            self._error = error
            self._is_settled.set()
            loop.close(all_fds=True)
            return
        self._loop = loop
        self._is_settled.set()
        server.start()
        loop.start()
        state._servers.pop(server_id, None)  # noqa: SLF001 - or Panel stops it a second time
        server.stop(wait=False)
        loop.close(all_fds=True)
        self._library.close()

    def _wait_until_it_listens(self) -> None:
        """Wait until the server listens: a frame that is shown before that stays empty."""
        if self._is_settled.wait(STARTED_WITHIN_S) and self._error is None:
            return
        reason = self._error or f"nothing listens after {STARTED_WITHIN_S:.0f} s"
        raise LaunchError(
            f"the dashboard cannot be served on {self.address}:{self.port} ({reason}); name "
            "another port, or 0 for a free one"
        )


def _check(address: str, port: int, password: str | None, visitors: int, *, public: bool) -> None:
    if not 0 <= port <= LAST_PORT:
        raise ConfigError(
            f"there is no port {port}; name one up to {LAST_PORT}, or 0 for a free one"
        )
    try:
        is_loopback = IPv4Address(address).is_loopback
    except ValueError as error:
        raise ConfigError(
            f"{address!r} is not an IPv4 address; use one such as 127.0.0.1"
        ) from error
    if not is_loopback and not public:
        raise ConfigError(f"{address} is reachable from other machines. {WHY_LOOPBACK}")
    if password is not None and len(password) < SHORTEST_PASSWORD:
        raise ConfigError(
            f"the password has {len(password)} characters, fewer than {SHORTEST_PASSWORD}; choose "
            "a longer one, or none to get a random one"
        )
    if visitors < 1:
        raise ConfigError(f"at least one visitor has to be allowed in (got {visitors})")


def _free_port(address: str) -> int:
    """Return a free port; the origin check has to know it before the start."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def link_of(address: str, port: int, template: str | None = None) -> str:
    """Return the address of a server's page for browsers; it ends with a slash.

    Args:
        address: Where the server listens.
        port: Likewise.
        template: Where it is reached, with `{host}`, `{port}` and variables of the environment in
            braces; by default what `$GEMINI_LAB_DASHBOARD_LINK` says, the hub's proxy in a notebook
            that a JupyterHub started, or else the server itself.

    Raises:
        ConfigError: The template names something that is not known here.
    """
    if template is None:
        behind_a_hub = BEHIND_A_HUB if os.environ.get("JUPYTERHUB_SERVICE_PREFIX") else ""
        template = os.environ.get(TEMPLATE) or behind_a_hub or "http://{host}:{port}/"
    host = next(iter(reached_at()), socket.gethostname()) if address == EVERYWHERE else address
    known = {name: value.rstrip("/") for name, value in os.environ.items()}
    try:
        link = template.format_map(known | {"host": host, "port": str(port)})
    except (LookupError, ValueError) as error:
        raise ConfigError(
            f"the link {template!r} names {error}, which is not known here; it may have {{host}}, "
            "{port}, and variables of the environment in braces"
        ) from error
    return f"{link.rstrip('/')}/"


def reached_at() -> list[str]:
    """Return this machine's addresses for others, the one of its default route first."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(FAR)
        return list(dict.fromkeys([probe.getsockname()[0], *_own_addresses()]))
    return _own_addresses()


def origins_of(address: str, port: int) -> list[str]:
    """Return the `host[:port]`s that a page may come from.

    Further names, a proxy's for example, are learned when a visitor with the password comes there.
    """
    names = {address, "localhost"}
    if address == EVERYWHERE:
        names = {"localhost", socket.gethostname(), LOOPBACK, *_own_addresses()}
    hub = (os.environ.get(name, "") for name in ("JUPYTERHUB_PUBLIC_URL", "JUPYTERHUB_HOST"))
    behind = {urlsplit(url).netloc for url in hub} - {""}
    return [*(f"{name}:{port}" for name in sorted(names)), *sorted(behind)]


def _own_addresses() -> list[str]:
    """Return the addresses of all interfaces that are up, without loopback."""
    up = {name for name, told in psutil.net_if_stats().items() if told.isup}
    return [
        each.address
        for name, interface in psutil.net_if_addrs().items()
        for each in interface
        if name in up and each.family == socket.AF_INET and not each.address.startswith("127.")
    ]
