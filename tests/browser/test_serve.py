"""Who gets in, who does not, and what a visitor is told."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("panel", reason="panel is not installed")

from bokeh.protocol import Protocol
from bokeh.util.token import generate_jwt_token, generate_session_id, get_token_payload
from gemini_lab_widgets.dashboard import Dashboard, live_html
from gemini_lab_widgets.page import IDLE_MS
from gemini_lab_widgets.serve import log_of
from logs_of_runs import PASSWORD, lines_of_a_run, write
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from gemini_lab.errors import ConfigError, LaunchError
from gemini_lab.lab.pages import serve_log

SHOWN = "() => window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("runs") / "a-run" / "events.jsonl", lines_of_a_run())


@pytest.fixture(scope="module")
def dashboard(log: Path) -> Iterator[Dashboard]:
    with Dashboard(lambda: log, password=PASSWORD) as served:
        yield served


def ask(url: str, *, form: str | None = None) -> tuple[int, Any, str]:
    """Status, headers and text of an answer, redirects followed, without any cookie."""
    try:
        with urllib.request.urlopen(url, data=form and form.encode(), timeout=60) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def session_token(dashboard: Dashboard, *, host: str = "") -> str:
    """What a page brings that a browser got, perhaps under another name of the server."""
    assert dashboard._guard is not None
    url = f"{dashboard.url}?token={dashboard._guard.ticket}"
    with urllib.request.urlopen(
        urllib.request.Request(url, headers={"Host": host} if host else {}), timeout=60
    ) as answer:
        text = answer.read().decode()
    found = re.search(r'"token":"([^"]+)"', text)
    assert found is not None
    return found[1]


def connect(dashboard: Dashboard, *, token: str, origin: str) -> str:
    """Open the page's websocket as a browser would; returns all that its views are made of."""

    async def opened() -> str:
        url = dashboard.url.replace("http", "ws") + "ws"
        request = HTTPRequest(url, headers={"Origin": origin}, follow_redirects=False)
        socket = await websocket_connect(request, subprotocols=["bokeh", token])
        said = [await socket.read_message() for _ in range(3)]  # header, metadata, content
        asked = Protocol().create("PULL-DOC-REQ")
        for part in (asked.header_json, asked.metadata_json, asked.content_json):
            await socket.write_message(part)
        while '"PULL-DOC-REPLY"' not in (said[-1] or "close"):
            assert said[-1] is not None
            said.append(await socket.read_message())
        said = [await socket.read_message() for _ in range(2)]
        socket.close()
        return str(said[-1])

    with ThreadPoolExecutor(1) as aside:  # Playwright's loop runs in this thread
        return aside.submit(asyncio.run, opened()).result()


def test_a_page_whose_session_was_let_go_before_its_websocket_came_asks_no_other_host(
    dashboard: Dashboard,
) -> None:
    """As of a browser that takes long: after 15 s a session without one is let go."""
    assert dashboard._guard is not None
    key = dashboard._guard.secret.encode()
    known = session_token(dashboard)
    gone = generate_session_id(secret_key=key, signed=True)
    token = generate_jwt_token(
        gone, secret_key=key, signed=True, extra_payload=get_token_payload(known)
    )
    for one in (known, token):
        text = connect(dashboard, token=one, origin=dashboard.url.rstrip("/"))
        assert "static/extensions/panel/css/loading.css" in text
        assert "cdn.holoviz.org" not in text


def test_without_the_password_there_is_only_the_form(dashboard: Dashboard) -> None:
    _, _, text = ask(dashboard.url)
    assert 'type="password"' in text
    assert "a-run" not in text


def test_a_wrong_password_is_refused_in_every_way(dashboard: Dashboard) -> None:
    for url, form in (
        (f"{dashboard.url}login", "password=wrong"),
        (f"{dashboard.url}login?token=wrong", None),
    ):
        status, headers, text = ask(url, form=form)
        assert status == 403
        assert "Set-Cookie" not in headers
        assert "That is not the password" in text
    for word in ("wrong", PASSWORD.replace(" ", "%20")):  # only the form asks for a password
        assert 'type="password"' in ask(f"{dashboard.url}?token={word}")[2]


def test_a_websocket_needs_a_token_that_this_server_signed(dashboard: Dashboard) -> None:
    token = session_token(dashboard)
    connect(dashboard, token=token, origin=dashboard.url.rstrip("/"))
    for forged in (token[:-4] + "AAAA", token.partition(".")[0], "x"):
        with pytest.raises(HTTPClientError):
            connect(dashboard, token=forged, origin=dashboard.url.rstrip("/"))


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1"])
def test_a_foreign_origin_is_refused_even_with_a_token(dashboard: Dashboard, origin: str) -> None:
    with pytest.raises(HTTPClientError) as refused:
        connect(dashboard, token=session_token(dashboard), origin=origin)
    assert refused.value.code == 403


def test_every_answer_forbids_foreign_frames_and_requests(dashboard: Dashboard) -> None:
    for path in ("", "login", "static/js/bokeh.min.js", "nothing-here"):
        headers = ask(dashboard.url + path)[1]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "frame-ancestors 'self'" in headers["Content-Security-Policy"]
        assert "connect-src 'self'" in headers["Content-Security-Policy"]


def test_the_link_leaves_a_cookie_and_no_password_in_the_address_bar(
    dashboard: Dashboard, page: Any
) -> None:
    page.goto(dashboard.link)
    page.wait_for_function(SHOWN)
    assert page.url == dashboard.url
    (cookie,) = page.context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Lax"
    assert PASSWORD not in cookie["value"]


def test_the_form_lets_in_who_knows_the_password(dashboard: Dashboard, page: Any) -> None:
    page.goto(dashboard.url)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button").click()
    page.wait_for_function(SHOWN)
    page.get_by_role("heading", name="Who keeps whose replica").wait_for()


def test_who_logs_in_comes_to_what_the_link_showed(dashboard: Dashboard, page: Any) -> None:
    """After a wrong password, too: the run, the moment, and what only the browser knows."""
    page.goto(f"{dashboard.url}?beside=-&at=1.000#t=0~2")
    for word in ("wrong", PASSWORD):
        page.get_by_label("Password").fill(word)
        page.get_by_role("button").click()
    page.wait_for_function(SHOWN)
    page.get_by_text("looking back").wait_for()
    assert page.url.startswith(f"{dashboard.url}?")
    assert "at=1.000" in page.url
    assert "#t=0" in page.url


def test_a_notebook_of_another_host_name_shows_the_page_in_a_frame(
    log: Path, page: Any, tmp_path: Path
) -> None:
    """To a browser, `localhost` and `127.0.0.1` are two sites: no cookie comes through.

    Where nobody serves the page any more, a picture of the run stands there.
    """
    with serve_log(lambda: log, password=PASSWORD) as dashboard, serving(tmp_path) as port:
        assert dashboard._guard is not None
        saved = "<p>a picture</p>"
        html = live_html(dashboard.url, dashboard._guard.ticket, saved)
        assert PASSWORD not in html
        (tmp_path / "notebook.html").write_text(html)
        page.goto(f"http://localhost:{port}/notebook.html")
        frame = page.frame_locator("iframe")
        frame.get_by_role("heading", name="Who keeps whose replica").wait_for()
        assert page.get_by_text("a picture").count() == 0
        (tmp_path / "later.html").write_text(live_html("http://127.0.0.1:1/", "", saved))
        page.goto(f"http://localhost:{port}/later.html")
        page.get_by_text("a picture").wait_for()
        assert page.locator("iframe").count() == 0
        page.faults.clear()  # nobody answers there


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_frame_follows_jupyterlabs_theme_whatever_the_systems(
    log: Path, open_page: Callable[..., Any], tmp_path: Path, theme: str
) -> None:
    """JupyterLab says on its body whether its theme is a light one, then and when it changes."""
    other = {"light": "dark", "dark": "light"}[theme]
    page = open_page(color_scheme=other)
    with serve_log(lambda: log, password=PASSWORD) as dashboard, serving(tmp_path) as port:
        assert dashboard._guard is not None
        html = live_html(dashboard.url, dashboard._guard.ticket, "<p>a picture</p>")
        is_light = str(theme == "light").lower()
        (tmp_path / "lab.html").write_text(f'<body data-jp-theme-light="{is_light}">{html}</body>')
        page.goto(f"http://localhost:{port}/lab.html")
        shown = page.frame_locator("iframe")
        shown.locator(f"html[data-theme={theme}]").wait_for(state="attached")
        shown.get_by_role("heading", name="Who keeps whose replica").wait_for()
        page.evaluate("said => { document.body.dataset.jpThemeLight = said }", theme == "dark")
        shown.locator(f"html[data-theme={other}]").wait_for(state="attached")
        page.goto("about:blank")


def test_a_frame_says_that_its_page_is_loading_until_it_is_there(
    log: Path, page: Any, tmp_path: Path
) -> None:
    with serve_log(lambda: log, password=PASSWORD) as dashboard, serving(tmp_path) as port:
        assert dashboard._guard is not None
        (tmp_path / "lab.html").write_text(
            live_html(dashboard.url, dashboard._guard.ticket, "<p>a picture</p>")
        )
        held: list[Any] = []
        page.route("**/?token=*", partial(list.append, held))
        page.goto(f"http://localhost:{port}/lab.html", wait_until="commit")
        loading = page.get_by_text("The dashboard is loading")
        loading.wait_for()
        while not held:
            page.wait_for_timeout(50)
        held[0].continue_()
        loading.wait_for(state="detached")
        page.goto("about:blank")


def test_a_server_that_is_started_again_knows_its_visitors(log: Path, page: Any) -> None:
    with Dashboard(lambda: log, password=PASSWORD) as first:
        page.goto(first.link)
        page.wait_for_function(SHOWN)
        url, port = first.url, first.port
    with Dashboard(lambda: log, password=PASSWORD, port=port):
        page.goto(url)
        page.wait_for_function(SHOWN)
    with Dashboard(lambda: log, password="another one", port=port):
        page.goto(url)
        page.get_by_label("Password").wait_for()
    page.faults.clear()  # it was away in between


def test_a_page_is_live_under_any_name_that_somebody_with_the_password_came_by(
    dashboard: Dashboard,
) -> None:
    """Such as that of a hub's proxy, which passes on what the browser said."""
    hub = "http://hub.example:1234"
    with pytest.raises(HTTPClientError):
        connect(dashboard, token=session_token(dashboard), origin=hub)
    connect(dashboard, token=session_token(dashboard, host="hub.example:1234"), origin=hub)


def test_one_visitor_too_many_is_told_so(log: Path, open_page: Callable[..., Any]) -> None:
    with Dashboard(lambda: log, visitors=1) as dashboard:
        first, second = open_page(), open_page()
        first.goto(dashboard.link)
        first.wait_for_function(SHOWN)
        second.goto(dashboard.link)
        second.get_by_role("heading", name="All 1 places are taken").wait_for()


def test_a_finished_run_is_looked_at_seldom_for_a_viewer_that_never_says_a_word(log: Path) -> None:
    with Dashboard(lambda: log, password=PASSWORD) as dashboard:
        connect(dashboard, token=session_token(dashboard), origin=dashboard.url.rstrip("/"))
        (document,) = dashboard._present
        assert [each.period for each in document.session_callbacks] == [IDLE_MS]


def test_an_address_of_the_network_needs_a_second_yes(log: Path) -> None:
    with pytest.raises(ConfigError, match="--public"):
        Dashboard(lambda: log, address="0.0.0.0")
    with Dashboard(lambda: log, address="0.0.0.0", public=True) as dashboard:
        assert 'type="password"' in ask(f"http://127.0.0.1:{dashboard.port}/")[2]


def test_impossible_settings_are_refused_before_anything_listens(log: Path) -> None:
    with pytest.raises(ConfigError, match="8"):
        Dashboard(lambda: log, password="short")
    with pytest.raises(ConfigError, match="not an IPv4 address"):
        Dashboard(lambda: log, address="nowhere")
    with pytest.raises(ConfigError, match="visitor"):
        Dashboard(lambda: log, visitors=0)
    with pytest.raises(ConfigError, match="no run"):
        log_of(str(log.parent / "missing"))


def test_the_newest_run_is_looked_for_in_the_folder_that_is_named(log: Path) -> None:
    assert log_of("latest", below=log.parent.parent)() == log
    assert log_of(log.parent.name, below=log.parent.parent)() == log


def test_a_port_that_is_taken_is_said_to_be(dashboard: Dashboard, log: Path) -> None:
    with pytest.raises(LaunchError, match=str(dashboard.port)):
        Dashboard(lambda: log, port=dashboard.port).start()


def test_the_command_serves_a_run_and_shows_its_password_to_nobody_else(log: Path) -> None:
    """What `ps` shows of a process is its arguments: the password comes by standard input."""
    command = [sys.executable, "-m", "gemini_lab.cli.main", "serve", str(log.parent), "--port", "0"]
    with subprocess.Popen(
        [*command, "--password"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(PASSWORD + "\n")
            process.stdin.flush()
            assert str(log) in process.stdout.readline()
            link = process.stdout.readline().split(maxsplit=1)[1].strip()
            assert " " not in link, "a terminal must take all of it for the link"
            assert ask(link)[0] == 200
            said = process.stdout.readline()
            assert "the one that you chose" in said
            assert PASSWORD not in said + link
            assert PASSWORD.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        finally:
            process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    """A plain web server of `folder`, in the place of a notebook's."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()
