"""Controls for visitors: the run, the run beside it, and the moment that is shown.

A choice concerns this visitor's page alone, and nothing of it reaches the run.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from bokeh.layouts import row
from bokeh.models import Button, CustomJSTickFormatter, InlineStyleSheet, Select, Slider

from gemini_lab_widgets.pictures.palette import FONT, shown
from gemini_lab_widgets.views.view import stretch

STYLE: Final = """
:host { font: 13px FONT; color: light-dark(#1b1b1b, #f2f2f2); }
label, .bk-slider-title { font: 13px FONT; color: light-dark(#565656, #bdbdbd); }
.bk-input, .bk-btn { font: 13px FONT; border: 1px solid light-dark(#9a9a9a, #7d7d7d) !important;
  background: light-dark(#ffffff, #24292e) !important; box-shadow: none !important;
  color: light-dark(#1b1b1b, #f2f2f2) !important; border-radius: 6px; padding: 2px 10px; }
.bk-btn[disabled] { opacity: .45; }
.bk-btn:focus-visible, .bk-input:focus-visible { outline: 3px solid #56b4e9; outline-offset: 1px; }
""".replace("FONT", FONT)
CLOCK: Final = """
    const s = Math.max(0, tick), two = (text) => String(text).padStart(2, "0")
    const h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60
    if (h) return `${h}:${two(m)}:${two(Math.floor(s % 60))}`
    return `${m}:${(s % 60).toFixed(1).padStart(4, "0")}`
"""
WRAPS: Final = {"flex-wrap": "wrap", "gap": "4px 10px"}
NEWEST: Final = "the newest run"
NOTHING: Final = "nothing"
NONE: Final = "/"
"""The value of the entry that ends all comparisons; no run has such a name."""
STEPS: Final = 1_000
"""Places of the slider."""
AFTER_S: Final = 0.1
"""So long after a failure was noticed, the log has told of it."""


class MomentParts:
    """A slider of time, and buttons that go from failure to failure and back to the end."""

    def __init__(self) -> None:
        self.slider = Slider(
            title="Moment",
            start=0,
            end=1,
            value=1,
            step=0.001,
            format=CustomJSTickFormatter(code=CLOCK),
            min_width=280,
            sizing_mode="stretch_width",
        )
        self.before = Button(label="◀ failure", width=84)
        self.after = Button(label="failure ▶", width=84)
        self.newest = Button(label="newest ▶▏", width=100)
        self._buttons = (self.before, self.after, self.newest)

    def reach(self, end_s: float, *, at_s: float | None) -> None:
        """Set the slider's end, and its place: a moment, or the end for `None`."""
        end_s = max(end_s, 0.001)
        if self.slider.end != end_s:
            self.slider.update(end=end_s, step=end_s / STEPS)
        stretch(self.slider, 0, end_s)
        value = end_s if at_s is None else min(at_s, end_s)
        left_newest = at_s is not None and self.newest.disabled
        if self.slider.value != value:
            self.slider.value = value
        elif left_newest:  # the page may have been told of a newer end while it was left
            self.slider.trigger("value", value, value)
        self.newest.disabled = at_s is None

    def in_row(self, *others: Any) -> Any:
        """Return a row of `others`, and then these.

        Where there is no room for all, the slider takes the buttons with it to the next line.
        """
        sheet = InlineStyleSheet(css=STYLE)
        for part in (*others, self.slider, *self._buttons):
            part.stylesheets = [sheet]
        buttons = row(*self._buttons, spacing=10)
        buttons.styles = {"align-self": "flex-end"}
        moment = row(self.slider, buttons, sizing_mode="stretch_width")
        moment.styles = WRAPS | {"flex": "1 1 580px"}
        root: Any = row(*others, moment, sizing_mode="stretch_width", name="tools")
        root.styles = WRAPS
        return root


class Tools:
    """Two lists, a slider of time, and buttons that go from failure to failure.

    Args:
        run: Called with the name of the run that was chosen, empty for the newest.
        beside: Called with the name of a run, to compare with it or not any more; empty for no run
            at all.
        move: Called with the seconds since the run's start, `None` for the newest moment.
    """

    def __init__(
        self,
        *,
        run: Callable[[str], None],
        beside: Callable[[str], None],
        move: Callable[[float | None], None],
    ) -> None:
        self._move = move
        self._failures: Sequence[float] = ()
        self._is_ours = False
        self.run = Select(title="Run", options=[("", NEWEST)], value="")
        self.beside = Select(title="Compare with", options=[("", NOTHING)], value="")
        for select in (self.run, self.beside):
            select.sizing_mode = "stretch_width"
            select.styles = {"flex": "1 1 130px", "max-width": "220px"}  # side by side on a phone
        self._parts = parts = MomentParts()
        self.slider, self.newest = parts.slider, parts.newest
        self.before, self.after = parts.before, parts.after
        self.run.on_change("value", lambda _, __, value: self._choose(run, value))
        self.beside.on_change("value", lambda _, __, value: self._compare(beside, value))
        self.slider.on_change("value", lambda _, __, value: self._slide(value))
        self.before.on_click(lambda: self._jump(-1))
        self.after.on_click(lambda: self._jump(1))
        self.newest.on_click(lambda: self._slide(self.slider.end))
        self.root: Any = parts.in_row(self.run, self.beside)

    # -- what there is to choose ---------------------------------------------------------------

    def offer(self, names: Iterable[str], *, drawn: str, run: str, beside: Sequence[str]) -> None:
        """List runs by name, and show which are chosen; an empty `run` is the newest.

        The list of runs to compare with says which these are; choosing one of them again takes it
        away. The run that is `drawn` is not offered for a comparison with itself. A name that is
        chosen stays in the list, whatever became of the run.
        """
        names = list(names)
        listed = dict.fromkeys([*names, *filter(None, [run])])
        runs = [("", NEWEST), *((name, shown(name, longest=60)) for name in listed)]
        self._set(self.run, runs, run)
        others = dict.fromkeys(name for name in [*names, *beside] if name not in {"", drawn})
        now = " and ".join(shown(name, longest=30) for name in beside) or NOTHING
        marked = [(n, f"{'✓ ' * (n in beside)}{shown(n, longest=60)}") for n in others]
        none = [(NONE, NOTHING)] if beside else []
        self._set(self.beside, [("", now), *marked, *none], "")

    def _set(self, select: Select, options: list[tuple[str, str]], chosen: str) -> None:
        self._is_ours = True
        if select.options != options:
            select.options = options
        if select.value != chosen:
            select.value = chosen
        self._is_ours = False

    def reach(self, end_s: float, failures: Sequence[float], *, at_s: float | None) -> None:
        """Set the slider's end, and the seconds at which failures were noticed."""
        self._failures = failures
        self._is_ours = True
        self._parts.reach(end_s, at_s=at_s)
        self.before.disabled = self._next(-1) is None
        self.after.disabled = self._next(1) is None
        self._is_ours = False

    # -- what was chosen -----------------------------------------------------------------------

    def _choose(self, act: Callable[[str], None], name: str) -> None:
        if not self._is_ours:
            act(name)

    def _compare(self, act: Callable[[str], None], name: str) -> None:
        if not self._is_ours and name:
            self._set(
                self.beside, self.beside.options, ""
            )  # it shows the runs, not the last choice
            act("" if name == NONE else name)

    def _slide(self, value: float) -> None:
        if not self._is_ours:
            self._move(None if value >= self.slider.end else max(0.0, float(value)))

    def _jump(self, direction: int) -> None:
        found = self._next(direction)
        if found is not None:
            self._move(found)

    def _next(self, direction: int) -> float | None:
        """Return the moment just after the next failure, or the one before."""
        moments = [at_s + AFTER_S for at_s in self._failures]
        now_s = self.slider.value
        if direction < 0:
            place = bisect_left(moments, now_s - 1e-3)
            return moments[place - 1] if place else None
        place = bisect_right(moments, now_s + 1e-3)
        return moments[place] if place < len(moments) else None
