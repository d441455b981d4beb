"""A run as one HTML file that opens anywhere: no server, no network.

Its timeline is there in full for a window, and as bins of time for the whole run. For its slider
the views are drawn at some moments, one after the other, and the page keeps what that changes:
which property of which model has which value from which moment on. `js/moments.js` sets these
values in the browser, as the server of a live page does.
"""

import base64
import gzip
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from bokeh.document import Document
from bokeh.embed import file_html
from bokeh.model import Model
from bokeh.models import CustomJS
from bokeh.resources import INLINE

from gemini_lab.errors import ConfigError
from gemini_lab.log.entry import Entry, encode_entry
from gemini_lab.log.file import LOG_FILE, LogFeed, log_of
from gemini_lab.report.bars import LAYERS, Rows, in_columns
from gemini_lab.report.moments import Moments
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.reducers.traffic_bars import TrafficBars
from gemini_lab.report.tables import Tables
from gemini_lab_widgets.library import Library
from gemini_lab_widgets.modules import joined
from gemini_lab_widgets.page_layout import LIVE, PageLayout, looking_back
from gemini_lab_widgets.store import EventStore, tables_at
from gemini_lab_widgets.timeline import ENTRY, TimelineQuery, coverage_of, shades, state
from gemini_lab_widgets.tools import AFTER_S, MomentParts

MOST_BARS: Final = 1_000_000
"""In a saved window: 12 MB of a page."""
CELLS_BYTES: Final = 1 << 24
"""Of the whole run's bins, before they are compressed; most of them are empty."""
MOST_BINS: Final = 1 << 15
SCALE: Final = 4
"""A pyramid may give so many times the bins that are asked for."""

Window = tuple[float, float]
"""From when to when, in seconds since the run's start."""

_ids = itertools.count(1)


def standalone_html(
    traffic: TrafficBars, *, window: Window | None = None, most_bars: int = MOST_BARS
) -> str:
    """Return HTML that shows `traffic` in any page, with no server and no request.

    About 12 bytes a bar, compressed. The browser must know `DecompressionStream` (since 2023 all
    do); one without says so in place of the timeline.

    Args:
        traffic: What to show.
        window: From when to when each bar is in the page, by default the newest bars; the rest of a
            run that has more is there in bins of time.
        most_bars: So many may be in the window.

    Raises:
        ConfigError: The window has too many bars.
    """
    rows, first, whole_s = _window(traffic, window, most_bars)
    cells, shading = (None, "") if whole_s == (None, None) else _bins(traffic)
    meta = {
        **state(traffic),
        "reset": True,
        "is_recorded": True,
        "first": first,
        "count": len(rows),
        "whole_s": whole_s,
        "is_deep": cells is not None,
        "cells": cells,
        "limit": max(len(rows), 1),
        "lanes": traffic.lanes,
        "names": traffic.names,
        "racks": traffic.racks,
        "comings": traffic.nodes.comings,
        "costs_s": [round(cost_s, 3) for cost_s in traffic.costs_s],
        "marks": [asdict(mark) for mark in traffic.marks],
    }
    bars = zipped(in_columns(rows))
    place = f"gl-timeline-{next(_ids)}"
    told = json.dumps(meta).replace("<", "\\u003c").replace("\u2028", "\\u2028")
    return (
        f'<div id="{place}"></div>\n<script type="module">\n{joined(ENTRY)}\n'
        f'const place = document.getElementById("{place}");\n'
        f'mountSaved(place, {told}, "{bars}", "{shading}").catch((error) => {{\n'
        "  place.textContent = `The timeline cannot be shown in this browser: ${error.message}`;\n"
        "});\n</script>\n"
    )


def _window(
    traffic: TrafficBars, window: Window | None, most_bars: int
) -> tuple[Rows, int, tuple[float | None, float | None]]:
    """Return the bars that are saved one by one, and the first one's number.

    Then between which moments they are all there are; `None` for no end.
    """
    bars, pyramid = traffic.bars, traffic.pyramid
    lasted_s = (traffic.newest_s or 0.0) - (traffic.origin_s or 0.0)
    if window is not None and window[0] > lasted_s:
        raise ConfigError(
            f"the window begins {window[0]:g} s after the run's start, and its timeline ends after "
            f"{lasted_s:.1f} s; name an earlier one"
        )
    if window is None or pyramid is None or not pyramid.end:
        since_s = bars.gone_s if bars.first else None
        return bars.between(bars.first, bars.end), bars.first, (since_s, None)
    from_s, to_s = (at_s + (traffic.origin_s or 0.0) for at_s in window)
    rows, numbers = pyramid.rows(from_s, to_s, fresh=bars.between(pyramid.end, bars.end))
    if len(rows) > most_bars:
        raise ConfigError(
            f"from {window[0]:g} to {window[1]:g} s the run has {len(rows):,} bars, and a page "
            f"takes {most_bars:,}; name a shorter window"
        )
    return rows, int(numbers[0]) if len(numbers) else 0, (from_s, to_s)


def _bins(traffic: TrafficBars) -> tuple[dict[str, Any] | None, str]:
    """Return how much of each bin of the whole run each lane was covered."""
    pyramid, bars = traffic.pyramid, traffic.bars
    if pyramid is None:
        return None, ""
    lanes = len(traffic.lanes)
    from_s = traffic.origin_s or 0.0
    look = TimelineQuery(
        number=0,
        from_s=from_s,
        to_s=max(traffic.newest_s or from_s, from_s + 1e-3),
        bins=min(max(CELLS_BYTES // (lanes * LAYERS * SCALE), 256), MOST_BINS // SCALE),
        row_of=np.arange(lanes),
        is_bars=False,
    )
    covered = coverage_of(pyramid, look, bars.between(pyramid.end, bars.end))
    window = {"from_s": covered.from_s, "to_s": covered.to_s, "upto": bars.end}
    size = {"rows": lanes, "bins": covered.seconds.shape[2]}
    return window | size, zipped(shades(covered, np.ones(lanes, np.int64)))


def zipped(data: bytes) -> str:
    """Return bytes as `js/packed.js` reads them."""
    return base64.b64encode(gzip.compress(data, mtime=0)).decode()


EVENLY: Final = 48
"""Moments, evenly over the run."""
FEWEST: Final = 8
LARGEST_BYTES: Final = 32 << 20
"""Of what moments differ in, before it is compressed to about a tenth."""
LONG: Final = 300_000
"""Entries of a log whose moments are those that were kept while it was read."""
SHORT: Final = 3_000_000
"""Entries of one that is read again for its failures."""
State = tuple[str, str, str]
SCRIPT: Final = ENTRY.with_name("moments.js")


@dataclass(slots=True)
class Tape:
    """The changes of a document's models from moment to moment.

    Attributes:
        pool: Values, each once, as JSON.
        tracks: By model's id and property: the moments from which it has another value.
    """

    document: Document
    pool: dict[str, int] = field(default_factory=dict)
    tracks: dict[tuple[str, str], list[tuple[int, Any]]] = field(default_factory=dict)
    size_bytes: int = 0
    _changed: dict[tuple[str, str], Model] = field(default_factory=dict)
    _first: dict[str, dict[str, Any]] = field(default_factory=dict)

    def start(self, *, from_blank: bool = False) -> None:
        """Record changes from now on; `from_blank` if the values before are of no use."""
        if not from_blank:
            self._first = {model.id: _values(model) for model in self.document.models}
        self.document.on_change(self._note)

    def stop(self) -> None:
        self.document.remove_on_change(self._note)

    def _note(self, event: Any) -> None:
        if isinstance(model := getattr(event, "model", None), Model):
            self._changed[model.id, event.attr] = model

    def take(self, place: int) -> None:
        """Record that what changed since the last moment holds from this one on."""
        for (name, attribute), model in self._changed.items():
            track = self.tracks.setdefault((name, attribute), [])
            if place and not track:
                track.append((0, self._pooled(self._first[name][attribute])))
            value = self._pooled(getattr(model, attribute))
            if not track or track[-1][1] != value:
                track.append((place, value))
        self._changed.clear()

    def _pooled(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(name): self._number(column) for name, column in value.items()}
        return self._number(value)

    def _number(self, value: Any) -> int:
        text = json.dumps(plain(value), separators=(",", ":"))
        if text not in self.pool:
            self.size_bytes += len(text)
        return self.pool.setdefault(text, len(self.pool))

    def told(self) -> str:
        ids = {name: number for number, name in enumerate(dict.fromkeys(n for n, _ in self.tracks))}
        roots = self.document.roots
        view = {model.id: place for place, root in enumerate(roots) for model in root.references()}
        tracks = [
            [ids[name], attribute, track, view[name]]
            for (name, attribute), track in self.tracks.items()
            if len(track) > 1
        ]
        parts = {
            "ids": list(ids),
            "tracks": tracks,
            "views": [root.id for root in roots],
            "live": [place for place, root in enumerate(roots) if root.name in LIVE],
        }
        return f'{json.dumps(parts)[1:-1]},"pool":[{",".join(self.pool)}]'


def _values(model: Model) -> dict[str, Any]:
    values = model.properties_with_values(include_defaults=True, include_undefined=True)
    return {name: dict(v) if isinstance(v, Mapping) else v for name, v in values.items()}


def plain(value: Any) -> Any:
    """Return a property's value as JSON has it; what is no number in a column is nothing.

    Raises:
        TypeError: It is none that JSON has.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return float(value) if isfinite(value) else None
        case list() | tuple():
            return [plain(each) for each in value]
        case Mapping():
            return {str(name): plain(each) for name, each in value.items()}
    raise TypeError(f"a saved page cannot keep a {type(value).__name__}")


def script_of(store: EventStore, sheet: PageLayout, document: Document, *, state: State) -> str:
    """Return HTML with which the views show the run as it was; now they show its end."""
    parts, run, moments = _parts_on(document), store.run, store.moments
    assert moments is not None
    start_s = run.course.started_at_s
    end_s = max((run.newest_s or start_s) - start_s, 0.001)
    tables = store.tables()
    most = _room_for(sheet, document, tables)
    chosen = choose(run, moments, end_s, most=most)
    tape = Tape(document)
    tape.start()
    for place, (at_s, then) in enumerate(_along(moments, chosen, start_s)):
        sheet.update(tables_at(then, start_s + at_s, beside=store.earlier))
        sheet.say(*looking_back(at_s))
        tape.take(place)
    sheet.update(tables)
    sheet.say(*state)
    tape.take(len(chosen))
    tape.stop()
    parts.reach(end_s, at_s=None)
    failed = [one.noticed_s - start_s + AFTER_S for one in run.spans.outages()]
    places = [place for place, at_s in enumerate(chosen) if at_s in failed]
    parts.before.disabled, parts.after.disabled = not places, True
    head = f'"at_s":{json.dumps([*chosen, end_s])},"failures":{json.dumps(places)}'
    packed = zipped(f"{{{head},{tape.told()}}}".encode())
    hands = {
        "slider": parts.slider.id,
        "before": parts.before.id,
        "after": parts.after.id,
        "newest": parts.newest.id,
    }
    return (
        f'<script type="module">\n{joined(SCRIPT)}\nmountMoments("{packed}", {json.dumps(hands)})'
        "\n</script>\n"
    )


def choose(run: RunReducer, moments: Moments, end_s: float, *, most: int) -> list[float]:
    """Return the moments to keep, in seconds since the run's start, without its end.

    The newest failures have their own, and the others lie evenly. Those of a long run are moments
    that were kept while its log was read.
    """
    start_s = run.course.started_at_s
    failed = [one.noticed_s - start_s + AFTER_S for one in run.spans.outages()][-most // 2 :]
    evenly = [end_s * place / most for place in range(most)]
    if run.count > LONG:
        known = [max(0.0, copy.newest_s - start_s) for copy in moments.copies[1:]]
        evenly = known[:: -(-len(known) // most)] if known else []
        failed = failed if run.count < SHORT else []
    return sorted({at_s for at_s in (0.0, *evenly, *failed) if at_s < end_s})


def _along(
    moments: Moments, chosen: Iterable[float], start_s: float
) -> Iterator[tuple[float, RunReducer]]:
    way = None
    for at_s in chosen:
        way = moments.way(start_s + at_s, after=way)
        while not way.go():
            pass
        yield at_s, way.run


def _room_for(sheet: PageLayout, document: Document, tables: Tables) -> int:
    """Return how many moments a page can take, by the size of what the views hold at the end."""
    tape = Tape(document)
    tape.start(from_blank=True)
    sheet.update(tables)
    tape.take(0)
    tape.stop()
    return max(FEWEST, min(EVENLY, LARGEST_BYTES // max(1, tape.size_bytes)))


def _parts_on(document: Document) -> MomentParts:
    parts = MomentParts()
    parts.slider.js_on_change("value", _told("gemini-slide", "cb_obj.value"))
    parts.before.js_on_click(_told("gemini-jump", "-1"))
    parts.after.js_on_click(_told("gemini-jump", "1"))
    parts.newest.js_on_click(_told("gemini-newest", "null"))
    document.add_root(parts.in_row())
    return parts


def _told(event: str, detail: str) -> CustomJS:
    code = f'document.dispatchEvent(new CustomEvent("{event}", {{ detail: {detail} }}))'
    return CustomJS(code=code)


STATES: Final = {
    "finished": ("over", "finished", "saved: this is the whole run"),
    "failed": ("failed", "failed", "saved: this is all of it"),
    "stopped": ("over", "stopped", "saved: this is all of it"),
}
UNFINISHED: Final = ("late", "unfinished", "saved while the run was under way")

SHIM: Final = re.compile(r'<script[^>]* src="[^"]*/es-module-shims[^"]*"[^>]*></script>')
"""What an imported Panel adds to every page, inline or not; nothing here needs it."""


def save(
    run: Path | str | Iterable[Entry],
    path: Path | str,
    *,
    window: Window | None = None,
    beside: Sequence[Path] = (),
) -> Path:
    """Write all views of a run to one file, compared with other runs.

    Args:
        run: Its folder, its log, or its entries, such as a simulation's.
        path: The file to write.
        window: From when to when, in seconds since the run's start, each bar of the timeline is in
            the page; by default the newest quarter of a million. The rest is there in bins of time.
        beside: Logs of the runs to compare with; by default the newest earlier run of the same job.

    Returns:
        `path`.

    Raises:
        ConfigError: There is no log, the file cannot be written, or the window has too many bars.
    """
    path = Path(path)
    with TemporaryDirectory() as folder:
        if isinstance(run, str | Path):
            store = _loaded(log_of(Path(run)), beside)
        else:
            store = _store(run, Path(folder) / LOG_FILE)
        text = page(store, window=window)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the page {path}: {error.strerror}") from error
    return path


def page(store: EventStore, *, window: Window | None = None) -> str:
    """Return all views of a run as a page that needs nothing beside itself."""
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


def _loaded(log: Path, beside: Sequence[Path]) -> EventStore:
    partners = Library(lambda: log, beside=beside).partners(log)
    return EventStore.load(log, earlier=[EventStore.load(one) for one in partners])


def _store(entries: Iterable[Entry], log: Path) -> EventStore:
    entries = list(entries)
    with log.open("wb") as file:
        file.writelines(encode_entry(entry) + b"\n" for entry in entries)
    store = EventStore(moments=Moments(LogFeed(log)))
    store.extend(entries)
    return store
