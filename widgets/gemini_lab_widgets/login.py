"""Access to pages: a password, a link that carries it, and a signed cookie afterwards."""

import asyncio
import hashlib
import hmac
import os
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from ipaddress import IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode
from weakref import WeakValueDictionary

from bokeh.server.auth_provider import AuthProvider
from bokeh.server.views.ws import WSHandler
from bokeh.util.token import check_token_signature
from tornado.web import OutputTransform, RequestHandler, create_signed_value, decode_signed_value

KEY_BYTES: Final = 32
OWNERS: Final = 0o600

COOKIE_DAYS: Final = 7
PAUSE_S: Final = 1.0
"""A wrong password is answered only after this long, and the next one is looked at only then."""
MOST_TRIES: Final = 5
"""From one address at once; more are not even looked at."""
MOST_NAMES: Final = 100
"""Under which visitors may have come."""

LOGIN_PAGE: Final = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>gemini_lab</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<style>
  :root { color-scheme: light dark; }
  body { margin: 0; min-height: 100vh; display: grid; place-items: center;
    font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
    background: light-dark(#f5f6f8, #14171c); color: light-dark(#1b1f24, #e8eaed); }
  form { box-sizing: border-box; width: min(26rem, 92vw); padding: 2rem; border-radius: 12px;
    background: light-dark(#fff, #1d2127); border: 1px solid light-dark(#dfe2e7, #333942); }
  h1 { margin: 0 0 .25rem; font-size: 1.25rem; }
  p { margin: 0 0 1.25rem; color: light-dark(#57606a, #a2abb5); font-size: .9rem; }
  label { display: block; font-size: .85rem; margin-bottom: .35rem; }
  input, button { box-sizing: border-box; width: 100%; font: inherit; padding: .6rem .75rem;
    border-radius: 8px; border: 1px solid light-dark(#c4c9d0, #454c56); }
  input { background: light-dark(#fff, #14171c); color: inherit; }
  button { margin-top: 1rem; border: 0; background: #0072b2; color: #fff; font-weight: 600;
    cursor: pointer; }
  :focus-visible { outline: 3px solid #56b4e9; outline-offset: 2px; }
  [role=alert] { margin: .75rem 0 0; color: light-dark(#b3400a, #ff9d5c); }
</style></head><body>
<main><form method="post">
  <h1>gemini_lab</h1>
  <p>The password stands in the terminal or notebook that serves this page.</p>
  <label for="password">Password</label>
  <input id="password" name="password" type="password" required autofocus
    autocomplete="current-password">
  <button>Look at the run</button>MESSAGE
</form></main></body></html>
"""
TOO_MANY: Final = "Too many tries wait to be answered. Wait some seconds, then try again."


def whose(address: str) -> str:
    """Return who guesses from an address: one guesser may have many, and is to wait as one does.

    Anybody on this machine has all 16 million of 127.0.0.0/8, and a machine with IPv6 a /64.
    """
    try:
        one = ip_address(address)
    except ValueError:
        return address
    if isinstance(one, IPv6Address) and one.ipv4_mapped is not None:
        one = one.ipv4_mapped
    if one.is_loopback:
        return "this machine"
    is_v6 = isinstance(one, IPv6Address)
    return str(IPv6Network((int(one), 64), strict=False)) if is_v6 else str(one)


# Not Panel's own basic auth: it compares with `==`, lets a guesser try without a pause, has one
# cookie name for all ports of a host, and lets in cookies alone, which a notebook's frame drops.
class LoginGuard(AuthProvider):  # type: ignore[misc]
    """Lets in who knows the password.

    One door asks for it: the form, and the link `login?token=PASSWORD`, which leave a signed cookie
    and no password in the address bar. A notebook has a ticket instead, so that no password is
    saved with it: `?token=TICKET` opens the page itself in a frame, where browsers drop cookies. A
    websocket comes in with the token that a page got from this server, or with the cookie.

    What signs cookies is made from the password and a key, so that a server that is started again
    with the same ones, on the same port, knows its visitors. From the password alone nobody could
    sign one: else who guesses would sign a cookie with each guess, and no door would make him wait.

    Args:
        password: What visitors have to know.
        port: Where the server listens: browsers mix the cookies of a host's ports.
        key: A secret that cannot be guessed.
        pause: What a wrong password waits for.

    Attributes:
        secret: What this server signs cookies and session tokens with.
        ticket: Opens the page, too, until the server ends.
    """

    def __init__(
        self,
        password: str,
        *,
        port: int,
        key: bytes,
        pause: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(PAUSE_S),
    ) -> None:
        self._password = password.encode()
        self.secret = hmac.new(key, self._password, hashlib.sha256).hexdigest()
        self.ticket = secrets.token_urlsafe(24)
        self._cookie = f"gemini_lab_{port}"
        self._pause = pause
        self._doors: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tries: Counter[str] = Counter()
        super().__init__()

    def knows(self, word: str | None) -> bool:
        """Return whether `word` is the password or the ticket, in constant time."""
        told = (word or "").encode()
        is_ticket = hmac.compare_digest(told, self.ticket.encode())
        return hmac.compare_digest(told, self._password) or is_ticket

    async def admits(self, word: str, *, address: str) -> bool | None:
        """Return whether `word` is right; `None` where too many tries of this address wait already.

        Tries of one address are looked at one after another, a right one after the wrong ones
        before it: else a visitor who tries many at once would find the right one without a wait.
        """
        address = whose(address)
        if self._tries[address] >= MOST_TRIES:
            return None
        self._tries[address] += 1
        door = self._doors.setdefault(address, asyncio.Lock())
        try:
            async with door:
                if not self.knows(word):
                    await self._pause()
                    return False
                return True
        finally:
            self._tries[address] -= 1
            self._tries += Counter()  # forgets addresses without a try

    def greet(self, handler: RequestHandler) -> None:
        """Set the cookie, and redirect to the page as it was asked for."""
        value = create_signed_value(self.secret, self._cookie, "visitor")
        handler.set_cookie(
            self._cookie,
            value,
            path="",  # the page's own: behind a hub, others serve on the same host
            expires_days=COOKIE_DAYS,
            httponly=True,
            samesite="Lax",
            secure=handler.request.protocol == "https",
        )
        handler.redirect(page_of(handler.get_query_argument("next", "")))

    @property
    def get_user(self) -> Any:
        return self._visitor

    @property
    def login_url(self) -> str:
        return "/login"

    @property
    def login_handler(self) -> type[RequestHandler]:
        return _login_handler(self)

    def _visitor(self, handler: RequestHandler) -> str | None:
        if isinstance(handler, WSHandler):
            is_known = self._has_cookie(handler) or self._has_session(handler)
            return "visitor" if is_known else None
        ticket = handler.get_query_argument("token", "").encode()
        if not (self._has_cookie(handler) or hmac.compare_digest(ticket, self.ticket.encode())):
            return None
        served: Any = handler.application  # Bokeh's
        names, name = served.websocket_origins, handler.request.host.lower()
        if len(names) < MOST_NAMES and "*" not in name:
            # Under this name, a proxy's or a tunnel's, somebody came who knows the password, so
            # the page's own websocket may come under it, too.
            names.add(name)
        return "visitor"

    def _has_cookie(self, handler: RequestHandler) -> bool:
        cookie = handler.get_cookie(self._cookie)
        return bool(
            cookie
            and decode_signed_value(self.secret, self._cookie, cookie, max_age_days=COOKIE_DAYS)
        )

    def _has_session(self, handler: RequestHandler) -> bool:
        _, _, token = handler.request.headers.get("Sec-WebSocket-Protocol", "").partition(",")
        try:
            return bool(check_token_signature(token.strip(), self.secret.encode(), signed=True))
        except ValueError:  # no token at all
            return False


def page_of(asked: str) -> str:
    """Return the page as an address asked for it that was shown the door, from the door on.

    Only what the address says after its `?` counts, so no address leads to another server, and one
    behind a proxy that takes a part of the path away stays there. A ticket is not handed on.
    """
    said = parse_qsl(asked.partition("?")[2])
    query = urlencode([(name, value) for name, value in said if name != "token"])
    return f"./?{query}" if query else "./"


def _login_handler(guard: LoginGuard) -> type[RequestHandler]:
    """Return a handler class that knows its guard; Bokeh makes the instances."""

    class LoginHandler(RequestHandler):
        async def get(self) -> None:
            await self._answer(self.get_query_argument("token", None))

        async def post(self) -> None:
            await self._answer(self.get_body_argument("password", ""))

        async def _answer(self, word: str | None) -> None:
            if word is None:
                self.finish(LOGIN_PAGE.replace("MESSAGE", ""))
                return
            is_right = await guard.admits(word, address=self.request.remote_ip or "")
            if is_right:
                guard.greet(self)
                return
            self.set_status(403 if is_right is False else 429)
            why = "That is not the password." if is_right is False else TOO_MANY
            message = f'<p role="alert">{why}</p>'
            self.finish(LOGIN_PAGE.replace("MESSAGE", message))

    return LoginHandler


POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self' blob:; object-src 'none'; base-uri 'self'; form-action 'self'"
)
"""Nothing leaves for another host. Bokeh itself needs inline scripts and `new Function`."""


def headers_for(frame_ancestors: str) -> type[OutputTransform]:
    """Return headers for every answer; `frame_ancestors` may show the page in a frame."""

    class Headers(OutputTransform):
        def transform_first_chunk(
            self,
            status_code: int,
            headers: Any,
            chunk: bytes,
            finishing: bool,  # noqa: ARG002, FBT001
        ) -> tuple[int, Any, bytes]:
            headers["X-Content-Type-Options"] = "nosniff"
            headers["Referrer-Policy"] = "no-referrer"
            headers["Content-Security-Policy"] = f"{POLICY}; frame-ancestors {frame_ancestors}"
            return status_code, headers, chunk

    return Headers


def state_folder() -> Path:
    """Return where a user's programs keep what lasts (XDG Base Directory Specification)."""
    told = os.environ.get("XDG_STATE_HOME")
    return (Path(told) if told else Path.home() / ".local" / "state") / "gemini_lab"


def kept_key(folder: Path | None = None) -> bytes:
    """Return the user's key, the same at every start; a new one if none can be saved."""
    with suppress(OSError, RuntimeError):  # nowhere to write, or no home
        path = (folder or state_folder()) / "cookies.key"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished = path.with_suffix(f".{secrets.token_hex(4)}")
        unfinished.touch(mode=OWNERS)
        unfinished.write_bytes(secrets.token_bytes(KEY_BYTES))
        with suppress(FileExistsError):
            os.link(unfinished, path)  # whole from the start, and of two at once the first
        unfinished.unlink()
        found = path.stat()
        is_own = found.st_uid == os.getuid() and not found.st_mode & 0o077
        key = path.read_bytes()
        if is_own and len(key) == KEY_BYTES:
            return key
    return secrets.token_bytes(KEY_BYTES)
