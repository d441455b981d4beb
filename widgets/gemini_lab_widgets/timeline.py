"""The traffic timeline, to look at: in a notebook, on a Panel page, and in a saved file.

All three run the modules in `js/`, joined. The live ones are fed by a `Pump` each, which sends what
is new in packed columns and holds back while the browser has not drawn what it was sent.
"""

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from math import isinf
from pathlib import Path
from typing import Any, Final

from gemini_lab.report.reducers.traffic import TrafficBars
from gemini_lab_widgets.modules import joined
from gemini_lab_widgets.timeline_query import TimelineQuery, seen

ENTRY: Final = Path(__file__).parent / "js" / "hosts.js"
MAX_UNDRAWN: Final = 2
"""Messages that may be under way; while there are this many, nothing is sent."""

MAX_ROWS: Final = 100_000
"""Bars in one message: 4 MB, well below what a websocket lets through."""

COSTS_S: Final = 2.0
"""Between two tellings of what training felt on each node."""

Send = Callable[[dict[str, Any], bytes], None]


class Pump:
    """Brings one viewer up to date with a `TrafficBars`, message by message.

    A viewer says `{"ready": true}` when it starts, also when it starts anew, and `{"drawn": seq}`
    after each message that it has drawn. Nothing is sent before the first. What it wants to see
    beyond the newest bars it asks for (`gemini_lab_widgets.timeline_query`).

    Args:
        send: Sends a message: plain values and packed columns.
        clock: Seconds, for how far the viewer is behind.
    """

    def __init__(self, send: Send, clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._seq = itertools.count(1)
        self._is_ready = False
        self._is_fresh = True
        self._traffic: TrafficBars | None = None
        self._row = self._lanes = self._names = self._marks = 0
        self._changes = -1
        self._costs_due_s = 0.0
        self._moment_s: float | None = None
        self._sent_moment_s: float | None = None
        self._was_known_s: float | None = None
        self._undrawn: dict[int, float] = {}
        self._source_behind_s = 0.0
        self.behind_s = 0.0
        """From when what was drawn last was known until it was drawn."""

    def hear(self, message: object) -> None:
        """Take in a message of the viewer, and send on if there is more."""
        if not isinstance(message, Mapping):
            return
        if message.get("ready"):
            self._is_ready = self._is_fresh = True
            self._undrawn.clear()
            self._was_known_s = None  # what a viewer is behind counts from its start
        drawn = message.get("drawn")
        if isinstance(drawn, int) and drawn in self._undrawn:
            self.behind_s = self._clock() - self._undrawn.pop(drawn)
        if "look" in message:
            self._show(message["look"])
        self._flow()

    def _show(self, said: object) -> None:
        """Answer a query, unless it makes no sense or comes before there is a run."""
        traffic = self._traffic
        if traffic is None or not self._is_ready or self._is_fresh:
            return
        look = TimelineQuery.read(said, lanes=len(traffic.lanes))
        answer = None if look is None else seen(traffic, look)
        if answer is not None:
            self._send({"look": answer[0]}, answer[1])

    def update(
        self, traffic: TrafficBars, *, behind_s: float = 0.0, moment_s: float | None = None
    ) -> None:
        """Show `traffic`, of which everything may be known for some time without being sent.

        Args:
            traffic: The run's; another one than before replaces it.
            behind_s: How far the traffic itself is behind the run.
            moment_s: The moment on the log's clock that the page shows; `None` for the newest.
        """
        self._moment_s = moment_s
        if traffic is not self._traffic:
            self._traffic, self._is_fresh = traffic, True
        self._source_behind_s = behind_s
        if self._was_known_s is None and self._has_news():
            self._was_known_s = self._clock()
        self._flow()

    def _has_news(self) -> bool:
        traffic = self._traffic
        return traffic is not None and (
            self._is_fresh
            or self._row < traffic.bars.end
            or self._changes != traffic.changes
            or self._moment_s != self._sent_moment_s
        )

    def _flow(self) -> None:
        while self._is_ready and len(self._undrawn) < MAX_UNDRAWN and self._has_news():
            assert self._traffic is not None
            seq = next(self._seq)
            self._undrawn[seq] = self._was_known_s or self._clock()
            meta, columns = self._take(self._traffic)
            self._was_known_s = self._clock() if self._has_news() else None
            self._send({"seq": seq, **meta}, columns)

    def _take(self, traffic: TrafficBars) -> tuple[dict[str, Any], bytes]:
        """Return what the viewer lacks, or as much of it as fits a message."""
        if self._is_fresh:
            self._row = self._lanes = self._names = 0
            self._marks = -1
        first = max(self._row, traffic.bars.first)
        end = min(traffic.bars.end, first + MAX_ROWS)
        meta = {
            **state(traffic),
            "reset": self._is_fresh,
            "first": first,
            "count": end - first,
            "more": end < traffic.bars.end,
            "lanes": traffic.lanes[self._lanes :],
            "names": traffic.names[self._names :],
            "behind_s": self.behind_s + self._source_behind_s,
            "moment_s": self._moment_s,
        }
        if self._is_fresh or self._lanes < len(traffic.lanes):
            meta["racks"] = traffic.racks
        if self._is_fresh or self._clock() >= self._costs_due_s:
            self._costs_due_s = self._clock() + COSTS_S
            meta["costs_s"] = [round(cost_s, 3) for cost_s in traffic.costs_s]
        if self._is_fresh or self._changes != traffic.changes:
            meta["marks"] = [asdict(mark) for mark in traffic.marks]
            meta["comings"] = traffic.comings
        self._row, self._lanes, self._names = end, len(traffic.lanes), len(traffic.names)
        self._changes, self._is_fresh = traffic.changes, False
        self._sent_moment_s = self._moment_s
        return meta, traffic.bars.packed(first, end)


def state(traffic: TrafficBars) -> dict[str, Any]:
    """Return what every message says of a run, beside its bars and names."""
    return {
        "limit": traffic.bars.limit,
        "total": traffic.bars.end,
        "whole_s": [None if isinf(traffic.bars.gone_s) else traffic.bars.gone_s, None],
        "is_deep": traffic.pyramid is not None,
        "origin_s": traffic.origin_s,
        "newest_s": traffic.newest_s,
        "is_over": traffic.is_over,
        "is_simulated": traffic.is_simulated,
        "basis": traffic.basis,
        "hidden_bytes": traffic.hidden_bytes,
        "exposed_bytes": traffic.exposed_bytes,
        "open_bytes": traffic.open_bytes,
        "replicas": traffic.replicas,
    }


class Timeline:
    """The timeline of one run in as many places as are asked for.

    `widget()` gives one for a notebook cell, `panel()` one for a Panel page; `update` brings all of
    them up to date and never waits for a browser.
    """

    def __init__(self) -> None:
        self._pumps: list[Pump] = []
        self._newest: TrafficBars | None = None

    def update(
        self, traffic: TrafficBars, *, behind_s: float = 0.0, moment_s: float | None = None
    ) -> None:
        """Show what is new in `traffic`; call it about 10 times a second while a run goes on."""
        self._newest = traffic
        for pump in self._pumps:
            pump.update(traffic, behind_s=behind_s, moment_s=moment_s)

    @property
    def behind_s(self) -> float:
        return max((pump.behind_s for pump in self._pumps), default=0.0)

    def widget(self) -> Any:
        import anywidget  # noqa: PLC0415 - only notebooks need it

        class NotebookTimeline(anywidget.AnyWidget):  # type: ignore[misc]
            """The canvas of `js/timeline.js` in a notebook."""

            _esm = joined(ENTRY)

        view = NotebookTimeline()
        pump = self._pump(lambda meta, columns: view.send({"meta": meta}, [columns]))
        view.on_msg(lambda _, message, __: pump.hear(message))
        return view

    def panel(self) -> Any:
        view = _panel_class()(sizing_mode="stretch_width")
        pump = self._pump(
            lambda meta, columns: view._send_msg(  # noqa: SLF001 - Panel's documented way
                {"meta": meta, "columns": columns}
            )
        )
        view.on_msg(lambda event: pump.hear(getattr(event, "data", event)))
        return view

    def _pump(self, send: Send) -> Pump:
        pump = Pump(send)
        self._pumps.append(pump)
        if self._newest is not None:
            pump.update(self._newest)
        return pump


@cache
def _panel_class() -> Any:
    from panel.custom import JSComponent  # noqa: PLC0415 - only pages need it

    class PanelTimeline(JSComponent):  # type: ignore[misc]
        """The canvas of `js/timeline.js` on a Panel page."""

        _esm = joined(ENTRY)

    return PanelTimeline
