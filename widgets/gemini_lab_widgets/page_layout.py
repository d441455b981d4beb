"""All views of a run on one page: the same sheet when it is live, replayed or saved."""

import re
from pathlib import Path
from typing import Any, Final

from bokeh.document import Document
from bokeh.layouts import column
from bokeh.models import CustomJS, Div, InlineStyleSheet, Toggle
from bokeh.models.ui import UIElement

from gemini_lab.report.tables import Tables
from gemini_lab.units import format_seconds
from gemini_lab_widgets.pictures.palette import FONT, esc
from gemini_lab_widgets.views import VIEWS, View
from gemini_lab_widgets.views.view import WAITS, switch

TEMPLATE: Final = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
"""What surrounds the views; Jinja."""
LIVE: Final = ("state", "status", "spent")
"""Parts that follow the slider while it moves: they are text, so a browser needs a millisecond for
each. The figures take longer together, so they follow when the slider rests."""
STATE_STYLE: Final = """
:host { font: 14px/1.35 FONT; color: light-dark(#565656, #bdbdbd); }
b { color: light-dark(#1b1b1b, #f2f2f2); font-weight: 600; }
b::before { content: "●"; margin-right: .4em; color: light-dark(#8c8c8c, #a6a6a6); }
b.live::before { color: light-dark(#009e73, #2fc79b); }
b.late::before { content: "▲"; color: light-dark(#e69f00, #f0b030); }
b.over::before { content: "■"; color: light-dark(#0072b2, #4aa8e0); }
b.failed::before { content: "✕"; color: light-dark(#d55e00, #f0793a); }
""".replace("FONT", FONT)
TOGGLE_STYLE: Final = """
.bk-btn { font: 13px FONT; padding: 4px 12px; border-radius: 14px; cursor: pointer;
  border: 1px solid light-dark(#9a9a9a, #7d7d7d) !important; box-shadow: none !important;
  background: transparent !important; color: light-dark(#1b1b1b, #f2f2f2) !important; }
.bk-btn:focus-visible { outline: 3px solid #56b4e9 !important; outline-offset: 2px; }
""".replace("FONT", FONT)
CHOOSE: Final = """
    const asked = new URLSearchParams(location.search).get("theme")
    const system = matchMedia("(prefers-color-scheme: dark)").matches
    toggle.active = asked ? asked == "dark" : system
    addEventListener("message", ({data}) => {
        if (data?.theme === "dark" || data?.theme === "light") toggle.active = data.theme === "dark"
    })
"""
"""Dark where the address asks for it with `?theme=dark`, or else where the system does.

Afterwards as a notebook says that shows the page in a frame, with `{theme: "dark"}`.
"""
SKIP_CANVASES: Final = """
    const visit = (root) => {
        for (const element of root.querySelectorAll("*")) {
            if (element.matches(".bk-events")) element.tabIndex = -1
            if (element.shadowRoot) visit(element.shadowRoot)
        }
    }
    visit(document)
    document.addEventListener("gemini-drawn", () => visit(document))
"""
"""Bokeh lets the Tab key stop at each figure, where no key does anything and nothing has a name.

A live page gets its figures later, and says when (`js/pulse.js`).
"""
IN_PLACE: Final = """
    const words = words_of.default_view?.prototype, whole = words?.rerender
    if (whole && !words.is_in_place) Object.assign(words, { is_in_place: true, rerender() {
        const { text, disable_math } = this.model
        if (!disable_math) whole.call(this)
        else if (this.text_now !== text) this.markup_el.innerHTML = this.text_now = text
    } })
"""
"""For each new text Bokeh builds a `Div` again, with its style sheets, and measures all of its root
three times: 10 ms. Here the text alone is replaced, as nothing else of our `Div`s changes but
`visible`, which Bokeh sees to elsewhere. Its own observer finds out if the size differs.
"""
TURN: Final = """
    const theme = toggle.active ? "dark" : "light"
    document.documentElement.style.colorScheme = theme
    document.documentElement.dataset.theme = theme
    document.dispatchEvent(new CustomEvent("gemini-theme"))
    toggle.label = toggle.active ? "Light" : "Dark"
"""


class PageLayout:
    """The views, a line on the page's state, and the switch between light and dark.

    The switch works in the browser, so it needs no server.

    Args:
        is_late: Make only the views in `LIVE` now, and one more at each `make_next`, because all of
            them take a server half a second.
    """

    def __init__(self, *, is_late: bool = False) -> None:
        self._roots: dict[str, Any] = {
            _slot(kind): column(name=_slot(kind), sizing_mode="stretch_width", css_classes=[WAITS])
            for kind in VIEWS
        }
        self.views: dict[str, View] = {}
        self.state = Div(
            name="state", disable_math=True, stylesheets=[InlineStyleSheet(css=STATE_STYLE)]
        )
        self._dark = Toggle(
            name="dark", label="Dark", stylesheets=[InlineStyleSheet(css=TOGGLE_STYLE)]
        )
        self._dark.js_on_change("active", CustomJS(args={"toggle": self._dark}, code=TURN))
        self._missing = [kind for kind in VIEWS if is_late and _slot(kind) not in LIVE]
        for kind in VIEWS:
            if kind not in self._missing:
                self._make(kind).attach()

    def _make(self, kind: type[View]) -> View:
        view = self.views[_slot(kind)] = kind(root=self._roots[_slot(kind)])
        return view

    @property
    def is_whole(self) -> bool:
        """Return whether all views are made."""
        return not self._missing

    def make_next(self, document: Document, tables: Tables) -> bool:
        """Make and draw the next view; return whether one was missing."""
        if self.is_whole:
            return False
        view = self._make(self._missing.pop(0))
        view.update(tables)
        view.join(document)
        view.root.js_on_change("children", switch(view))
        view.attach()
        return True

    @property
    def slots(self) -> list[str]:
        return [slot for slot in self._roots if slot != "status"]

    def update(self, tables: Tables, *, is_moving: bool = False) -> None:
        """Draw a snapshot; only the parts in `LIVE` while the slider is moving."""
        for slot, view in self.views.items():
            if slot in LIVE or not is_moving:
                view.update(tables)

    def say(self, kind: str, mark: str, text: str) -> None:
        """Show what state the page is in: live, late, over or failed, and words about it."""
        line = f'<b class="{esc(kind)}">{esc(mark)}</b>' + (f" · {esc(text)}" if text else "")
        if self.state.text != line:
            self.state.text = line

    def put_on(self, document: Document, *, title: str) -> None:
        """Add all of it to a document, with the page around it."""
        roots: list[UIElement] = [self.state, self._dark, *self._roots.values()]
        with document.models.freeze():
            for root in roots:
                document.add_root(root)
        document.js_on_event(
            "document_ready",
            CustomJS(
                args={"toggle": self._dark, "words_of": self.state},
                code=IN_PLACE + CHOOSE + TURN + SKIP_CANVASES,
            ),
        )
        for view in self.views.values():
            document.js_on_event("document_ready", switch(view))
            view.join(document)
        document.title = title
        document.template = TEMPLATE
        named = {*self._roots, "state", "dark", "timeline", "tools"}
        titles = {_slot(kind): kind.title for kind in VIEWS}
        document.template_variables.update(slots=self.slots, titles=titles, named=named)


def looking_back(at_s: float) -> tuple[str, str, str]:
    """Return the arguments of `PageLayout.say` while the views show a moment of the past."""
    when = format_seconds(round(at_s, 1))
    return "late", "looking back", f"everything here is as it was {when} after the start"


def _slot(kind: type[View]) -> str:
    return re.sub("View$", "", kind.__name__).lower()
