"""A run's traffic timeline and replica map as ipywidgets, below the buttons of a notebook."""

import threading
from contextlib import suppress
from typing import Any, Final

import anywidget
import ipywidgets

from gemini_lab.errors import GeminiError
from gemini_lab.lab.run import Run
from gemini_lab.report.follower import LogFollower
from gemini_lab.report.reducer import FOR_DASHBOARD
from gemini_lab.report.reducers.traffic_bars import TrafficBars
from gemini_lab.report.tables import tables_of
from gemini_lab.report.tables.replica_map import ReplicaTable
from gemini_lab_widgets import replica_layout
from gemini_lab_widgets.modules import joined
from gemini_lab_widgets.pictures.palette import DARK, FONT, LIGHT
from gemini_lab_widgets.timeline import ENTRY, Pump
from gemini_lab_widgets.views import answers
from gemini_lab_widgets.views.replica_map import GRID, RING, columns_html, ring_svg

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
