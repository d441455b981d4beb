"""The live page: pulls the log, draws what is new, and never gets ahead of the browser."""

import time
from typing import Final

import panel as pn
from bokeh.document import Document

from gemini_lab.units import format_bytes, format_seconds
from gemini_lab_widgets.follow import Follower
from gemini_lab_widgets.pulse import Pulse
from gemini_lab_widgets.sheet import Sheet
from gemini_lab_widgets.timeline import Timeline

TICK_MS: Final = 100
"""Between two pushes to the timeline."""
VIEWS_S: Final = 0.5
"""Between two drawings of all other views."""
SHARE: Final = 10
"""The tables may take one part in this many of the server's time."""
QUIET_S: Final = 15.0
"""A run without an event for this long is said to be silent."""
BEHIND_S: Final = 2.0
"""A page that takes this long to draw is said to be late."""
FULL: Final = """
{% block postamble %}<meta name="color-scheme" content="light dark">
<style>body { min-height: 90vh; display: grid; place-items: center; text-align: center;
  font: 17px/1.5 system-ui, sans-serif; }</style>{% endblock %}
{% block contents %}<main><h1>All MOST places are taken</h1>
<p>So many visitors are looking at this run already.<br>
Try again when somebody has closed the page, or ask its owner for more <code>--visitors</code>.</p>
</main>{% endblock %}
"""


class Page:
    """One visitor's page.

    Args:
        follower: The run that is shown; all visitors share it.
        document: The visitor's.
    """

    def __init__(self, follower: Follower, document: Document) -> None:
        self._follower = follower
        follower.pull()
        self._sheet = Sheet()
        self._pulse = Pulse(sizing_mode="stretch_width", margin=0)
        self._timeline = Timeline()
        self._drawn = (-1, -1)
        self._due_s = 0.0
        self._status = follower.tables().status
        self.tick()
        moving = pn.Column(
            self._pulse, self._timeline.panel(), sizing_mode="stretch_width", margin=0
        )
        moving.server_doc(document, location=False)
        document.roots[0].name = "timeline"
        self._sheet.put_on(document, title=self._pulse.title)
        document.template_variables.update(is_live=True, apple_icon="")

    def tick(self) -> None:
        """Read on, and send what is new, unless the browser has yet to draw earlier news."""
        self._follower.pull()
        if self._pulse.is_behind:
            return
        store = self._follower.store
        self._timeline.update(store.traffic)
        now_s = time.monotonic()
        if self._follower.state != self._drawn and now_s >= self._due_s:
            tables = self._follower.tables()
            self._sheet.update(tables)
            self._drawn, self._status = self._follower.state, tables.status
            self._pulse.title = f"{self._follower.name or 'no run yet'} · gemini_lab"
            took_s = time.monotonic() - now_s
            self._due_s = now_s + max(VIEWS_S, SHARE * took_s)
            self._pulse.send()
        self._sheet.say(*self._state())

    def _state(self) -> tuple[str, str, str]:
        """Kind, mark and words for the line at the top."""
        follower, store = self._follower, self._follower.store
        status = self._status
        if follower.log is None:
            return "late", "waiting", "no run has begun yet"
        if follower.is_catching_up:
            return "late", "reading the log", f"{format_bytes(follower.behind_bytes)} to go"
        if status.phase == "finished":
            return "over", "finished", "this is the whole run"
        if status.phase == "failed":
            return "failed", "failed", "this is all of it"
        silent_s = time.time() - (store.newest_s or 0.0)
        if status.origin != "simulated" and silent_s > QUIET_S:
            return "late", "silent", f"no event for {format_seconds(round(silent_s))}"
        kind = "late" if self._pulse.behind_s > BEHIND_S else "live"
        return kind, "live", f"this page is {_delay(self._pulse.behind_s)} behind"


def _delay(behind_s: float) -> str:
    """A delay to two digits at most, so that the line does not flicker."""
    return f"{max(20, round(behind_s * 1000, -1)):.0f} ms" if behind_s < 1 else f"{behind_s:.0f} s"


def visit(follower: Follower, present: set[Document], *, most: int) -> None:
    """Fill the current document for a new visitor, or say that all places are taken.

    Args:
        follower: The run to show.
        present: The visitors' documents; this one's is added, and leaves with its session.
        most: How many may look at once.
    """
    document = pn.state.curdoc
    if len(present) >= most:
        document.template = FULL.replace("MOST", str(most))
        document.title = "gemini_lab"
        return
    present.add(document)
    document.on_session_destroyed(lambda _: present.discard(document))
    page = Page(follower, document)
    pn.state.add_periodic_callback(page.tick, period=TICK_MS)
