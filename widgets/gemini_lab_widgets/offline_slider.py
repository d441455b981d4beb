"""The slider of a saved page: what its views show at some moments is kept in the page itself.

The views are drawn at each moment, one after the other, and what that changes in them is written
down: which property of which model has which value from which moment on. `js/moments.js` sets these
values in the browser, as the server of a live page does.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

from bokeh.document import Document
from bokeh.model import Model
from bokeh.models import CustomJS

from gemini_lab.report.moments import Moments
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.tables import Tables
from gemini_lab_widgets.modules import joined
from gemini_lab_widgets.page_layout import PageLayout, looking_back
from gemini_lab_widgets.standalone import zipped
from gemini_lab_widgets.store import EventStore, tables_at
from gemini_lab_widgets.timeline import ENTRY
from gemini_lab_widgets.tools import AFTER_S, MomentParts

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
        size_bytes: Of the values.
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
        tracks = [
            [ids[name], attribute, track]
            for (name, attribute), track in self.tracks.items()
            if len(track) > 1
        ]
        named = f'"ids":{json.dumps(list(ids))},"tracks":{json.dumps(tracks)}'
        return f'{named},"pool":[{",".join(self.pool)}]'


def _values(model: Model) -> dict[str, Any]:
    values = model.properties_with_values(include_defaults=True, include_undefined=True)
    return {name: dict(v) if isinstance(v, Mapping) else v for name, v in values.items()}


def plain(value: Any) -> Any:
    """A property's value as JSON has it; what is no number in a column is nothing.

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
    """A piece of HTML that lets the views show the run as it was; they show its end from here on.

    Args:
        store: The run, whose moments are known.
        sheet: The views.
        document: They are on it; the slider is put there, too.
        state: What the sheet says of the end.
    """
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
    """Which moments are kept, in seconds since the run's start, without its end.

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
