"""A run in one strip: its nodes, its loss, and the recovery under way; the controls carry it."""

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.report.recovery import STEPS
from gemini_lab.units import format_seconds
from gemini_lab_widgets.pictures.palette import BLUE, GREEN, GREY, MARK, ORANGE, RED, SKY, esc

MOST: Final = 200
"""Losses that are drawn."""
MOST_NODES: Final = 24
WIDE, TALL = 260, 44
STATES: Final = {"alive": GREEN, "stopped": GREY, "lost": RED, "waits": SKY}


class LiveStrip:
    """The newest state of a run for one glance; `take` receives every event, `html` draws."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=MOST)
        self._lost: dict[str, None] = {}
        self._began_s: float | None = None
        self._step, self._last = "", ""

    def take(self, entry: Entry) -> None:
        """Take in the log's next entry."""
        match entry.event:
            case events.Iteration(rank=0) as done:
                loss = done.value("loss")
                if loss is not None and math.isfinite(loss):
                    self._losses.append(loss)
            case events.NodeLost(name=name) if len(self._lost) < MOST_NODES:
                self._lost[name] = None
            case events.RecoveryStarted(failed_at_s=at_s, lost=lost):
                self._began_s, self._step = at_s, "detect"
                self._lost.update(dict.fromkeys(lost[:MOST_NODES]))
            case events.RecoveryStep(step=step):
                self._step = step
            case events.RecoveryFinished(duration_s=duration_s):
                self._last = f"last recovery: {format_seconds(duration_s)}"
                self._began_s = None
                self._lost.clear()

    def html(self, *, members: Sequence[str], standbys: Sequence[str], root: str | None) -> str:
        """Return the strip: nodes on the left, then the loss, then the recovery."""
        if not members:
            return ""
        names = [*dict.fromkeys(members), *standbys, *self._lost]
        nodes = "".join(
            self._node(name, is_member=name in members, is_root=name == root)
            for name in dict.fromkeys(names[:MOST_NODES])
        )
        said = self._last
        if self._began_s is not None:
            since = format_seconds(max(0.0, time.time() - self._began_s))
            step = STEPS.get(self._step, self._step)
            said = f'<b style="color:{ORANGE}">recovering for {since}: {esc(step)} is done</b>'
            said = said.replace("detection is done", "a failure was detected")
        return (
            '<div style="display:flex;flex-wrap:wrap;gap:1em;align-items:center">'
            f"<div>{nodes}</div>{self._curve()}<div>{said}</div></div>"
        )

    def _node(self, name: str, *, is_member: bool, is_root: bool) -> str:
        stopped = "stopped" if self._began_s is not None else "alive"
        state = "lost" if name in self._lost else stopped if is_member else "waits"
        colour = STATES[state]
        title = esc(f"{name}{', the root agent' if is_root else ''}: {state}")
        mark = "✕" if state == "lost" else esc(name.removeprefix("node-")[-3:])
        fill = "transparent" if state == "waits" else colour
        ink = "inherit" if state == "waits" else MARK
        ring = f"outline:2px solid {BLUE};outline-offset:2px;" if is_root else ""
        return (
            f'<span title="{title}" style="display:inline-block;min-width:26px;line-height:26px;'
            f"border-radius:13px;margin:4px;text-align:center;font-weight:600;background:{fill};"
            f'color:{ink};border:2px solid {colour};{ring}">{mark}</span>'
        )

    def _curve(self) -> str:
        """Return the newest losses as a line, with the last one in words."""
        if len(self._losses) < 2:
            return ""
        low, high = min(self._losses), max(self._losses)
        scale = (TALL - 6) / (high - low or 1.0)
        step = WIDE / (len(self._losses) - 1)
        points = " ".join(
            f"{step * number:.1f},{TALL - 3 - scale * (loss - low):.1f}"
            for number, loss in enumerate(self._losses)
        )
        line = f'<polyline points="{points}" fill="none" stroke="{BLUE}" stroke-width="1.6"/>'
        return (
            f'<svg width="{WIDE}" height="{TALL}" role="img" aria-label="loss">{line}</svg>'
            f"<span>loss {self._losses[-1]:.4g}</span>"
        )
