"""A run as one HTML file that opens anywhere: no server, no network."""

import re
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bokeh.document import Document
from bokeh.embed import file_html
from bokeh.resources import INLINE

from gemini_lab.errors import ConfigError
from gemini_lab.log.entry import Entry, encode_entry
from gemini_lab.log.file import LOG_FILE, LogFeed, log_of
from gemini_lab.report.moments import Moments
from gemini_lab_widgets.library import Library
from gemini_lab_widgets.offline_slider import script_of
from gemini_lab_widgets.page_layout import PageLayout
from gemini_lab_widgets.standalone import Window, standalone_html
from gemini_lab_widgets.store import EventStore

STATES: Final = {
    "finished": ("over", "finished", "saved: this is the whole run"),
    "failed": ("failed", "failed", "saved: this is all of it"),
    "stopped": ("over", "stopped", "saved: this is all of it"),
}
UNFINISHED: Final = ("late", "unfinished", "saved while the run was under way")

SHIM: Final = re.compile(r'<script[^>]* src="[^"]*/es-module-shims[^"]*"[^>]*></script>')
"""What an imported Panel adds to every page, inline or not; nothing here needs it."""


def save(
    run: Path | str | Iterable[Entry], path: Path | str, *, window: Window | None = None
) -> Path:
    """Write all views of a run to one file, beside the newest earlier run of the same job.

    Args:
        run: Its folder, its log, or its entries, such as a simulation's.
        path: The file to write.
        window: From when to when, in seconds since the run's start, each bar of the timeline is in
            the page; by default the newest quarter of a million. The rest is there in bins of time.

    Returns:
        `path`.

    Raises:
        ConfigError: There is no log, the file cannot be written, or the window has too many bars.
    """
    path = Path(path)
    with TemporaryDirectory() as folder:
        if isinstance(run, str | Path):
            store = _loaded(log_of(Path(run)))
        else:
            store = _store(run, Path(folder) / LOG_FILE)
        text = page(store, window=window)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the page {path}: {error.strerror}") from error
    return path


def page(store: EventStore, *, window: Window | None = None) -> str:
    """All views of a run as a page that needs nothing beside itself."""
    sheet, document = PageLayout(), Document()
    sheet.put_on(document, title=f"{store.name or 'run'} · gemini_lab")
    state = STATES.get(store.run.course.phase, UNFINISHED)
    moments = script_of(store, sheet, document, state=state)
    timeline = standalone_html(store.traffic, window=window)
    document.template_variables.update(is_live=False, timeline=timeline, moments=moments)
    html = file_html(
        document, INLINE, template=document.template, template_variables=document.template_variables
    )
    return SHIM.sub("", html)


def _loaded(log: Path) -> EventStore:
    partner = Library(lambda: log).partner(log)
    return EventStore.load(log, earlier=[EventStore.load(partner)] if partner else ())


def _store(entries: Iterable[Entry], log: Path) -> EventStore:
    entries = list(entries)
    with log.open("wb") as file:
        file.writelines(encode_entry(entry) + b"\n" for entry in entries)
    store = EventStore(moments=Moments(LogFeed(log)))
    store.extend(entries)
    return store
