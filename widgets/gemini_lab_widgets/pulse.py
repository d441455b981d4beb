"""How far a page is behind what it was sent, told by the page itself."""

import time
from pathlib import Path
from typing import ClassVar, Final

import param
from panel.custom import JSComponent

from gemini_lab_widgets.modules import joined

AHEAD: Final = 2
"""Beats that may be on their way; with more, the page is sent nothing."""
STYLE: Final = """
p { margin: 0 0 12px; padding: .6rem 1rem; border-radius: 8px; background: #d55e00; color: #fff;
    font: 600 15px/1.4 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
"""


class Pulse(JSComponent):  # type: ignore[misc]
    """A beat after every update, which the page answers when it has drawn it.

    Messages arrive in order, so an answered beat tells that all updates before it arrived, too.
    """

    beat = param.Integer(default=0, doc="Updates sent so far.")
    seen = param.Integer(default=0, doc="The newest beat that the page has drawn.")

    title = param.String(default="", doc="What the browser's tab says.")
    address = param.Dict(default={}, doc="Parts of the address that say what is looked at.")

    _esm = joined(Path(__file__).parent / "js" / "pulse.js")
    _stylesheets: ClassVar = [STYLE]

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self._sent_at_s: dict[int, float] = {}
        self.behind_s = 0.0
        self.param.watch(self._take_answer, "seen")

    @property
    def is_behind(self) -> bool:
        """Whether the page has yet to draw what it was sent."""
        return bool(self.beat - self.seen > AHEAD)

    def send(self) -> None:
        """Beat; called after an update was sent."""
        self._sent_at_s[self.beat + 1] = time.monotonic()
        self.beat += 1

    def _take_answer(self, change: param.parameterized.Event) -> None:
        sent_at_s = self._sent_at_s.get(change.new)
        if sent_at_s is not None and change.old:  # the first one waits for the page to load
            self.behind_s = time.monotonic() - sent_at_s
        self._sent_at_s = {b: at_s for b, at_s in self._sent_at_s.items() if b > change.new}
