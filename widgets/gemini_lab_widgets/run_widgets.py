"""A run as the controls show it: a strip, and below it its traffic and replica map, folded."""

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import anywidget
import ipywidgets

from gemini_lab.errors import GeminiError
from gemini_lab.lab.run import Run
from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.report.follower import LogFollower
from gemini_lab.report.recovery import STEPS
from gemini_lab.report.reducer import FOR_DASHBOARD
from gemini_lab.report.reducers.traffic_bars import TrafficBars
from gemini_lab.report.tables import tables_of
from gemini_lab.report.tables.replica_map import ReplicaTable
from gemini_lab.units import format_seconds
from gemini_lab_widgets import replica_layout
from gemini_lab_widgets.modules import joined
from gemini_lab_widgets.pictures.palette import (
    BLUE,
    DARK,
    FONT,
    GREEN,
    GREY,
    LIGHT,
    MARK,
    ORANGE,
    RED,
    SKY,
    esc,
)
from gemini_lab_widgets.timeline import ENTRY, Pump
from gemini_lab_widgets.views import answers
from gemini_lab_widgets.views.replica_map import GRID, RING, columns_html, ring_svg

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


# -- folded views ---------------------------------------------------------------------------------

TITLES: Final = ("Traffic", "Who keeps whose replica")
MAP_STYLE: Final = (
    f"<style>.gl-map {{ {LIGHT.variables} }}"
    f"@media (prefers-color-scheme: dark) {{ .gl-map {{ {DARK.variables} }} }}"
    # JupyterLab and VS Code have themes of their own, which need not be the system's.
    f'[data-jp-theme-light="true"] .gl-map, .vscode-light .gl-map {{ {LIGHT.variables} }}'
    f'[data-jp-theme-light="false"] .gl-map, .vscode-dark .gl-map {{ {DARK.variables} }}'
    # Nested, so that these rules meet nothing else of the notebook.
    f".gl-map {{ max-width: 580px; font-family: {FONT}; {RING} {GRID} }}</style>"
)


class TrafficWidget(anywidget.AnyWidget):  # type: ignore[misc]
    """The canvas of `js/timeline.js` in a notebook, fed from any thread."""

    _esm = joined(ENTRY)

    def __init__(self) -> None:
        super().__init__()
        self._turn = threading.RLock()  # the kernel hears the browser while another thread feeds
        self._pump = Pump(lambda meta, columns: self.send({"meta": meta}, [columns]))
        self.on_msg(self._hear)

    def show(self, traffic: TrafficBars) -> None:
        """Show what is new of a run's traffic; another run's replaces it."""
        with self._turn:
            self._pump.update(traffic)

    def _hear(self, _widget: object, message: Any, _buffers: object) -> None:
        with self._turn:
            self._pump.hear(message)


class RunWidgets:
    """Two folded views of a run. Its log is read only while one of them is open."""

    def __init__(self) -> None:
        self.traffic, self.replicas = TrafficWidget(), ipywidgets.HTML()
        self.root = ipywidgets.Accordion(
            [self.traffic, self.replicas], titles=TITLES, selected_index=None
        )
        self._run: Run | None = None
        self._log: LogFollower | None = None
        self._turn = threading.Lock()

    def refresh(self, run: Run | None) -> None:
        """Show how a run is now, in the view that is open; return at once if another thread does.

        Args:
            run: The one to show.
        """
        if self.root.selected_index is None or not self._turn.acquire(blocking=False):
            return
        try:
            if run is not self._run:
                self._run, self.replicas.value = run, ""
                self._log = None
                if run is not None:
                    self._log = LogFollower.of(run.name, run.log, keep=FOR_DASHBOARD)
            if self._log is not None:
                with suppress(OSError, GeminiError):  # the log has not begun
                    self._show(self._log)
        finally:
            self._turn.release()

    def _show(self, log: LogFollower) -> None:
        while log.read():
            pass
        self.traffic.show(log.run.traffic)
        if self.root.selected_index == 1:
            self.replicas.value = map_html(tables_of(log.run).replicas)


def map_html(table: ReplicaTable) -> str:
    """Return the replica map as HTML that brings its own style."""
    is_round = len(table.nodes) <= replica_layout.RING_NODES
    drawn = ring_svg(table) if is_round else columns_html(table)[0]
    words = answers.describe(table)
    return (
        f'{MAP_STYLE}<p>{words}</p><div class="gl-map"><div class="bk-clearfix">{drawn}</div></div>'
    )
