"""Who may look: a password, a link that carries it, and a signed cookie afterwards."""

import asyncio
import hmac
import secrets
from typing import Any, Final

from bokeh.server.auth_provider import AuthProvider
from bokeh.server.views.ws import WSHandler
from bokeh.util.token import check_token_signature
from tornado.web import OutputTransform, RequestHandler, create_signed_value, decode_signed_value

COOKIE_DAYS: Final = 7
PAUSE_S: Final = 1.0
"""A wrong password is answered only after this long, one at a time."""

LOGIN_PAGE: Final = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>gemini_lab</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<style>
  :root { color-scheme: light dark; }
  body { margin: 0; min-height: 100vh; display: grid; place-items: center;
    font: 16px/1.5 system-ui, sans-serif;
    background: light-dark(#f5f6f8, #14171c); color: light-dark(#1b1f24, #e8eaed); }
  form { width: min(22rem, 86vw); padding: 2rem; border-radius: 12px;
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
<form method="post">
  <h1>gemini_lab</h1>
  <p>The password stands in the terminal or notebook that serves this page.</p>
  <label for="password">Password</label>
  <input id="password" name="password" type="password" required autofocus
    autocomplete="current-password">
  <button>Look at the run</button>MESSAGE
</form></body></html>
"""


# Not Panel's own basic auth: it compares with `==`, lets a guesser try without a pause, has one
# cookie name for all ports of a host, and lets in cookies alone, which a notebook's frame drops.
class Guard(AuthProvider):  # type: ignore[misc]
    """Lets in who knows the password.

    Three ways lead in: the form, which leaves a signed cookie; the link `login?token=PASSWORD`,
    which leaves the same cookie and takes the password out of the address bar; and
    `?token=PASSWORD` on the page itself, for a frame in a notebook, where browsers drop cookies.
    A websocket comes in with the token that a page got from this server, or with the cookie.

    Attributes:
        secret: What this server signs cookies and session tokens with; it ends with the server.
    """

    def __init__(self, password: str) -> None:
        self.secret = secrets.token_urlsafe(32)
        self._password = password.encode()
        self._cookie = f"gemini_lab_{secrets.token_hex(4)}"  # browsers mix the ports of a host
        self._wrong = asyncio.Lock()
        super().__init__()

    def knows(self, password: str | None) -> bool:
        """Whether `password` is right; takes the same time wherever it differs."""
        return hmac.compare_digest((password or "").encode(), self._password)

    def greet(self, handler: RequestHandler) -> None:
        """Give the cookie, and go to the page."""
        value = create_signed_value(self.secret, self._cookie, "visitor")
        handler.set_cookie(
            self._cookie,
            value,
            expires_days=COOKIE_DAYS,
            httponly=True,
            samesite="Lax",
            secure=handler.request.protocol == "https",
        )
        handler.redirect("./")

    async def dawdle(self) -> None:
        """Let wrong passwords wait for one another."""
        async with self._wrong:
            await asyncio.sleep(PAUSE_S)

    @property
    def get_user(self) -> Any:
        """The function that Bokeh asks who comes with a request."""
        return self._visitor

    @property
    def login_url(self) -> str:
        """Where those go who are not known."""
        return "/login"

    @property
    def login_handler(self) -> type[RequestHandler]:
        """Answers there."""
        return _login_handler(self)

    def _visitor(self, handler: RequestHandler) -> str | None:
        cookie = handler.get_cookie(self._cookie)
        if cookie and decode_signed_value(
            self.secret, self._cookie, cookie, max_age_days=COOKIE_DAYS
        ):
            return "visitor"
        if isinstance(handler, WSHandler):
            return "visitor" if self._has_session(handler) else None
        return "visitor" if self.knows(handler.get_query_argument("token", None)) else None

    def _has_session(self, handler: RequestHandler) -> bool:
        """Whether a websocket shows a session token that this server signed."""
        _, _, token = handler.request.headers.get("Sec-WebSocket-Protocol", "").partition(",")
        try:
            return bool(check_token_signature(token.strip(), self.secret.encode(), signed=True))
        except ValueError:  # no token at all
            return False


def _login_handler(guard: Guard) -> type[RequestHandler]:
    """A handler class that knows its guard; Bokeh makes the instances."""

    class LoginHandler(RequestHandler):
        async def get(self) -> None:
            await self._answer(self.get_query_argument("token", None))

        async def post(self) -> None:
            await self._answer(self.get_body_argument("password", ""))

        async def _answer(self, password: str | None) -> None:
            if password is None:
                self.finish(LOGIN_PAGE.replace("MESSAGE", ""))
            elif guard.knows(password):
                guard.greet(self)
            else:
                await guard.dawdle()
                self.set_status(403)
                message = '<p role="alert">That is not the password.</p>'
                self.finish(LOGIN_PAGE.replace("MESSAGE", message))

    return LoginHandler


POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self' blob:; object-src 'none'; base-uri 'self'; form-action 'self'"
)
"""Nothing leaves for another host. Bokeh itself needs inline scripts and `new Function`."""


def headers_for(frame_ancestors: str) -> type[OutputTransform]:
    """Headers for every answer; `frame_ancestors` may show the page in a frame."""

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
