"""A real Chromium for every browser test; without one they are skipped.

A page is strict: an error in it, or a request that leaves this machine, fails the test that opened
it, so every test also shows that what it looks at works offline.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
PATIENCE_MS = 60_000
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OWN = (
    "http://127.0.0.1",
    "http://localhost",
    "ws://127.0.0.1",
    "file:",
    "data:",
    "blob:",
    "about:",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this folder drives a browser."""
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for a module's tests: `$CHROMIUM`, one on the PATH, or Playwright's own.

    It runs an event loop on this thread, which must not outlive the tests that need it.
    """
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    with api.sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        except api.Error as error:
            pytest.skip(f"no Chromium starts here: {str(error).splitlines()[0]}")
        yield chromium
        chromium.close()


class Faults:
    """What went wrong in the pages of a test."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def watch(self, page: Any) -> None:
        """Note errors and foreign or failed requests of `page` from now on."""
        page.on("pageerror", lambda error: self.found.append(f"page error: {error}"))
        page.on("request", self._note_foreign)
        page.on("requestfailed", self._note_failed)

    def _note_foreign(self, request: Any) -> None:
        if not request.url.startswith(OWN):
            self.found.append(f"request off this machine: {request.url}")

    def _note_failed(self, request: Any) -> None:
        if "ERR_ABORTED" not in (request.failure or ""):  # left behind by closing a page
            self.found.append(f"failed request: {request.url}: {request.failure}")


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """`open_page(**context)` gives a strict page in a context of its own.

    Its `faults` may be emptied by a test that provokes some.
    """
    contexts: list[Any] = []
    faults = Faults()

    def open_strictly(**settings: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **settings})
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.faults = faults.found
        faults.watch(page)
        return page

    yield open_strictly
    for context in contexts:
        with suppress(Exception):
            context.close()
    assert faults.found == []


@pytest.fixture
def page(open_page: Callable[..., Any]) -> Any:
    """One strict page of 1280 x 800."""
    return open_page()
