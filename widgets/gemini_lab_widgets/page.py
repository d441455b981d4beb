"""The live page: pulls the log, draws what is new, and never gets ahead of the browser."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import ClassVar, Final

import panel as pn
import param
from bokeh.document import Document
from panel.custom import JSComponent
from panel.io.resources import LOCAL_DIST

from gemini_lab.report.moments import Moments, MomentSearch
from gemini_lab.report.tables import Tables
from gemini_lab.units import format_seconds
from gemini_lab_widgets.library import Library, ShownRun
from gemini_lab_widgets.modules import joined
from gemini_lab_widgets.page_layout import PageLayout, looking_back
from gemini_lab_widgets.pictures.palette import FONT
from gemini_lab_widgets.store import tables_at
from gemini_lab_widgets.timeline import ENTRY, Pump
from gemini_lab_widgets.tools import Tools
from gemini_lab_widgets.views import StatusView

AHEAD: Final = 2
"""Beats without an answer, at most; with more, the server sends nothing."""
LATE_STYLE: Final = """
p { margin: 0 0 12px; padding: .6rem 1rem; border-radius: 8px; background: #d55e00; color: #fff;
    font: 600 15px/1.4 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
"""

TICK_MS: Final = 100
"""Between two pushes to the timeline."""
IDLE_MS: Final = 2_000
"""Between two looks for news where a run is over and all of it is drawn."""
VIEWS_S: Final = 0.5
"""Between two drawings of all other views."""
SLIDING_S: Final = 0.1
"""The same while a visitor moves the slider."""
RESTS_S: Final = 0.2
"""A slider that was not moved for this long rests, and the figures follow it."""
UNANSWERED: Final = 100
"""Ticks without an answer from the page, such as in a tab behind others, until there are fewer."""
MOST_BESIDE: Final = 5
"""Runs to compare with at once: a plot has colours for so many."""
OFFER_S: Final = 2.0
"""Between two looks for runs to choose from."""
SHARE: Final = 10
"""The tables may take one part in this many of the server's time."""
QUIET_S: Final = 15.0
"""The page calls a run silent if it had no event for this long."""
BEHIND_S: Final = 2.0
"""The page calls itself late if it takes this long to draw."""
FULL: Final = """
{% block postamble %}<meta name="color-scheme" content="light dark">
<style>body { min-height: 90vh; display: grid; place-items: center; text-align: center;
  font: 17px/1.5 FONT; }</style>{% endblock %}
{% block contents %}<main><h1>All MOST places are taken</h1>
<p>So many visitors are looking at this run already.<br>
Try again when a visitor has left, or ask the page's owner for more <code>--visitors</code>.</p>
</main>{% endblock %}
""".replace("FONT", FONT)


class Page:
    """One visitor's page.

    Attributes:
        pace: Called with these where they change.
    """

    def __init__(self, library: Library, document: Document) -> None:
        self.pace: Callable[[int], None] = lambda _: None
        self.period_ms = TICK_MS
        self._unanswered = 0
        self._library, self._shown = library, library.latest
        self._beside: list[ShownRun] = []
        self._log: Path | None = None
        self._missing = ""  # the name of a run that was asked for and is not there
        self._at_s: float | None = None  # since the run's start; None for the newest moment
        self._way: tuple[Moments, MomentSearch] | None = None
        # Panel says where its style sheets are when a page is asked for. A websocket that comes
        # after its session was let go gets another one, which would take them from another host.
        document.template_variables["dist_url"] = LOCAL_DIST
        self._sheet = PageLayout(is_late=True)
        self._pulse, self._timeline = Pulse(margin=0), Timeline(sizing_mode="stretch_width")
        self._document = document
        self._pulse.sizing_mode = "stretch_width"
        self._pulse.param.watch(self._go_on, "seen")
        self._tools = Tools(run=self._choose_run, beside=self._choose_beside, move=self._move)
        self._drawn: tuple[object, bool] = None, False  # what, and whether only in words
        self._rests_at_s = 0.0
        self._offered: object = None
        self._due_s = self._offer_due_s = 0.0
        self._shown.pull()
        self._status = self._shown.tables().status
        self._open(_asked(document))
        self.tick()
        moving = pn.Column(self._pulse, self._timeline, sizing_mode="stretch_width", margin=0)
        with document.models.freeze():  # or every root makes it look through all models
            moving.server_doc(document, location=False)
            document.roots[0].name = "timeline"
            document.add_root(self._tools.root)
            self._sheet.put_on(document, title=self._pulse.title)
        status = self._sheet.views["status"]
        assert isinstance(status, StatusView)
        document.template_variables.update(
            is_live=True, apple_icon="", first_words=status.first_words
        )

    # -- what the visitor chooses; the address says it, so that a link shows the same --------

    def _open(self, asked: Mapping[str, Sequence[str]]) -> None:
        """Show what an address asks for, and remember the name of a run that is not there."""
        for run in asked.get("run", ())[:1]:
            self._choose_run(run)
            self._missing = "" if run in self._library.names() else run
        self._pull()
        if beside := asked.get("beside", ()):
            logs = [self._library.names().get(name) for name in beside]
            self._put_beside([one for one in logs if one is not None])
        with suppress(ValueError):
            at_s = float([*asked.get("at", ()), "nan"][0])
            self._at_s = max(0.0, at_s) if isfinite(at_s) else None

    def _tell_address(self) -> None:
        is_latest = self._shown is self._library.latest
        beside = [] if self._log is None else self._library.partners(self._log)
        is_usual = beside == [one.log for one in self._beside]
        self._pulse.address = {
            "run": [] if is_latest else [self._shown.name],
            "beside": [] if is_usual else [one.name for one in self._beside] or ["-"],
            "at": [] if self._at_s is None else [f"{self._at_s:.3f}"],
        }

    def _choose_run(self, name: str) -> None:
        log = self._library.names().get(name)
        self._shown = self._library.latest if log is None else self._library.follower(log)
        self._at_s, self._offered, self._missing = None, None, ""
        self._keep_pace(TICK_MS)

    def _choose_beside(self, name: str) -> None:
        """Compare with a run, or not any more; with none for an empty name."""
        log, now = self._library.names().get(name), [one.log for one in self._beside]
        if log is None:
            self._put_beside([])
        else:
            self._put_beside([one for one in now if one != log] if log in now else [*now, log])
        self._keep_pace(TICK_MS)

    def _put_beside(self, logs: Sequence[Path | None]) -> None:
        others = [one for one in dict.fromkeys(logs) if one is not None and one != self._log]
        self._beside = [self._library.follower(one) for one in others[-MOST_BESIDE:]]
        for one in self._beside:
            one.pull()  # it knows its log from then on
        self._offer_due_s, self._offered = 0.0, None

    def _move(self, at_s: float | None) -> None:
        self._at_s = at_s
        self._due_s = 0.0
        self._rests_at_s = time.monotonic() + RESTS_S
        self._keep_pace(TICK_MS)

    # -- again and again -----------------------------------------------------------------------

    def tick(self) -> None:
        """Read on, and send what is new unless the browser has yet to draw earlier news."""
        self._pull()
        if self._pulse.is_behind:
            self._unanswered += 1
            if self._unanswered > UNANSWERED:
                self._keep_pace(IDLE_MS)
            return
        self._unanswered = 0
        store = self._shown.store
        now_s = time.monotonic()
        if self._pulse.seen:  # the page is on the screen: now what takes long
            self._timeline.pump.update(store.traffic, moment_s=self._moment_s)
            tables = self._tables()
            if tables is not None and self._sheet.make_next(self._document, tables):
                self._pulse.send()
        is_drawn = self._is_drawn and (now_s < self._rests_at_s or not self._drawn[1])
        if not is_drawn and now_s >= self._due_s:
            self._draw(now_s)
        if now_s >= self._offer_due_s:
            self._offer_due_s = now_s + OFFER_S
            self._offer()
        self._sheet.say(*self._line())
        self._keep_pace(IDLE_MS if self._is_idle else TICK_MS)

    @property
    def _is_idle(self) -> bool:
        """Return whether only another run can bring news, or a browser that answers at last."""
        is_over = self._shown.store.run.course.is_over and not self._shown.is_catching_up
        is_whole = self._sheet.is_whole or not self._pulse.seen
        return is_over and is_whole and self._drawn == (self._state(), False)

    @property
    def _is_drawn(self) -> bool:
        """Return whether at least the words of what is to be shown are."""
        return self._drawn[0] == self._state()

    def _keep_pace(self, period_ms: int) -> None:
        if self.period_ms != period_ms:
            self.period_ms = period_ms
            self.pace(period_ms)

    def _go_on(self, _: object) -> None:
        """Make the views that are still missing, because the browser has answered."""
        if not self._sheet.is_whole:
            self._keep_pace(TICK_MS)

    @property
    def _moment_s(self) -> float | None:
        if self._at_s is None:
            return None
        return self._shown.store.run.course.started_at_s + self._at_s

    def _pull(self) -> None:
        self._library.latest.pull()
        self._shown.pull()
        if self._shown.log != self._log:
            self._log, self._at_s = self._shown.log, None
            self._put_beside([] if self._log is None else self._library.partners(self._log))
        for one in self._beside:
            one.pull()
        if self._at_s is not None and not self._shown.is_catching_up and self._at_s > self._end_s:
            self._at_s = None  # past the end there is nothing but the end

    @property
    def _end_s(self) -> float:
        run = self._shown.store.run
        return (run.newest_s or run.course.started_at_s) - run.course.started_at_s

    def _state(self) -> object:
        """Return what the views are to show."""
        beside = [(one.log, one.state) for one in self._beside]
        return self._log, self._shown.state if self._at_s is None else self._at_s, beside

    def _draw(self, now_s: float) -> None:
        """Draw all views, if what they are to show has been read."""
        state, tables = self._state(), self._tables()
        if tables is None:
            return
        is_moving = now_s < self._rests_at_s
        self._sheet.update(tables, is_moving=is_moving)
        self._drawn, self._status = (state, is_moving), tables.status
        self._pulse.title = f"{self._shown.name or 'no run yet'} · gemini_lab"
        self._reach()
        self._tell_address()
        took_s = time.monotonic() - now_s
        every_s = VIEWS_S if self._at_s is None else SLIDING_S
        self._due_s = now_s + max(every_s, SHARE * took_s if self._at_s is None else 0.0)
        self._pulse.send()

    def _tables(self) -> Tables | None:
        """Return what to draw; `None` until the moment that is looked for is reached."""
        moment_s, moments = self._moment_s, self._shown.moments
        if moment_s is None or moments is None:
            return self._shown.tables(self._beside)
        if self._way is None or self._way[0] is not moments or self._way[1].at_s != moment_s:
            after = self._way[1] if self._way and self._way[0] is moments else None
            self._way = moments, moments.way(moment_s, after=after)
        if not self._way[1].go():
            return None
        beside = [one.store for one in self._beside]
        return tables_at(self._way[1].run, moment_s, beside=beside)

    def _reach(self) -> None:
        run = self._shown.store.run
        failures = [one.noticed_s - run.course.started_at_s for one in run.spans.outages()]
        self._tools.reach(self._end_s, failures, at_s=self._at_s)

    def _offer(self) -> None:
        is_latest = self._shown is self._library.latest
        names = tuple(self._library.names())
        run = "" if is_latest else self._shown.name
        beside = tuple(one.name for one in self._beside)
        offer = names, self._shown.name, run, beside
        if self._offered != offer:
            self._offered = offer
            self._tools.offer(names, drawn=self._shown.name, run=run, beside=beside)

    # -- words ---------------------------------------------------------------------------------

    def _line(self) -> tuple[str, str, str]:
        """Return kind, mark and words for the line at the top."""
        kind, mark, words = self._news()
        words = "; ".join(filter(None, (words, self._shown.trouble)))
        if not self._missing:
            return kind, mark, words
        instead = f"{self._shown.name}, the newest, is shown" if self._shown.name else "none is yet"
        return "late", "no such run", f"no run here is called {self._missing}; {instead} ({mark})"

    def _news(self) -> tuple[str, str, str]:
        """Return the same, whatever run was asked for."""
        shown, status = self._shown, self._status
        if shown.log is None:
            return "late", "waiting", "no run has begun yet"
        if shown.is_catching_up:
            return "late", "reading the log", shown.progress
        if not shown.store.run.count:
            return _without_events(shown)
        if self._at_s is not None:
            return self._past(self._at_s)
        if status.phase == "finished":
            return "over", "finished", "this is the whole run"
        if status.phase == "stopped":
            return "over", "stopped", "this is all of it"
        if status.phase == "failed":
            return "failed", "failed", "this is all of it"
        if status.origin == "simulated":
            return "late", "not finished", "the log of this simulation ends before its run does"
        silent_s = time.time() - (shown.store.run.newest_s or 0.0)
        if silent_s > QUIET_S:
            return "late", "silent", f"no event for {format_seconds(round(silent_s))}"
        kind = "late" if self._pulse.behind_s > BEHIND_S else "live"
        return kind, "live", f"this page is {_delay(self._pulse.behind_s)} behind"

    def _past(self, at_s: float) -> tuple[str, str, str]:
        if not self._is_drawn:
            when = format_seconds(round(at_s, 1))
            return "late", "looking back", f"on the way to {when} after the start"
        return looking_back(at_s)


def _asked(document: Document) -> dict[str, list[str]]:
    """Return the arguments of a page's address, each with its values."""
    context = document.session_context
    arguments = {} if context is None else context.request.arguments
    return {name: [v.decode(errors="replace") for v in arguments[name]] for name in arguments}


def _without_events(shown: ShownRun) -> tuple[str, str, str]:
    """Return the line at the top for a log in which there is no event."""
    if shown.store.run.unread:
        lines = f"none of its {shown.store.run.unread:,} lines could be read as events of this log"
        return "failed", "not readable", lines
    return "late", "waiting", f"no events yet in {shown.log.name if shown.log else 'the log'}"


def _delay(behind_s: float) -> str:
    """Return a delay to two digits at most, so that the line does not flicker."""
    return f"{max(20, round(behind_s * 1000, -1)):.0f} ms" if behind_s < 1 else f"{behind_s:.0f} s"


def visit(library: Library, present: set[Document], *, most: int) -> None:
    """Fill the current document for a new visitor, or say that all places are taken."""
    document = pn.state.curdoc
    if len(present) >= most:
        document.template = FULL.replace("MOST", str(most))
        document.title = "gemini_lab"
        return
    present.add(document)
    document.on_session_destroyed(lambda _: present.discard(document))
    page = Page(library, document)
    rhythm = pn.state.add_periodic_callback(page.tick, period=page.period_ms)
    page.pace = lambda period_ms: rhythm.param.update(period=period_ms)


class Pulse(JSComponent):  # type: ignore[misc]
    """A beat after every update, which the page answers when it has drawn it.

    Messages arrive in order, so an answered beat tells that all updates before it arrived, too.
    """

    beat = param.Integer(default=0, doc="Updates sent so far.")
    seen = param.Integer(default=0, doc="The newest beat that the page has drawn.")

    title = param.String(default="", doc="What the browser's tab says.")
    address = param.Dict(default={}, doc="Parts of the address that say what is looked at.")

    _esm = joined(Path(__file__).parent / "js" / "pulse.js")
    _stylesheets: ClassVar = [LATE_STYLE]

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self._sent_at_s: dict[int, float] = {}
        self.behind_s = 0.0
        self.param.watch(self._take_answer, "seen")

    @property
    def is_behind(self) -> bool:
        return bool(self.beat - self.seen > AHEAD)

    def send(self) -> None:
        self._sent_at_s[self.beat + 1] = time.monotonic()
        self.beat += 1

    def _take_answer(self, change: param.parameterized.Event) -> None:
        sent_at_s = self._sent_at_s.get(change.new)
        if sent_at_s is not None and change.old:  # the first one waits for the page to load
            self.behind_s = time.monotonic() - sent_at_s
        self._sent_at_s = {b: at_s for b, at_s in self._sent_at_s.items() if b > change.new}


class Timeline(JSComponent):  # type: ignore[misc]
    """The canvas of `js/timeline.js` on a page, and the pump that feeds it."""

    _esm = joined(ENTRY)

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self.pump = Pump(lambda meta, columns: self._send_msg({"meta": meta, "columns": columns}))
        self.on_msg(lambda event: self.pump.hear(getattr(event, "data", event)))
