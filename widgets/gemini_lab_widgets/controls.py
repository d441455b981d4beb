"""Buttons for a lab or a run, in the notebook of its owner and nowhere else.

The panel is drawn from a thread, so that it goes on while a cell computes. The kernel hears buttons
only between cells: while a cell runs, a click waits.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from html import escape, unescape
from itertools import islice
from typing import Final, Self

import ipywidgets

from gemini_lab.display import last_lines
from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.injector.failures import FAILURES, NodesLoss, read_failure
from gemini_lab.injector.scenario import Scenario
from gemini_lab.job import Job
from gemini_lab.lab.lab import Lab
from gemini_lab.lab.pages import Decide
from gemini_lab.lab.progress_bars import describe
from gemini_lab.lab.run import Run
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Protected, RunStarted, StacksTaken
from gemini_lab.log.file import read_log
from gemini_lab.settings import SettingValue
from gemini_lab_widgets.cell_output import CellOutput
from gemini_lab_widgets.run_widgets import LiveStrip, RunWidgets

DRAIN: Final = "drain a node"
REWIND: Final = "rewind, iterations"
RESIZE: Final = "resize, to nodes"
STACKS: Final = "stacks, of rank"
WIDTH: Final = "150px"

REFRESH_S: Final = 0.25
LINES: Final = 12
"""Lines of what happened that stay in sight."""
HEAD: Final = 500
"""Entries at a log's start that name racks and groups, if the run has come so far."""
PRE: Final = (
    "line-height:1.35;margin:0;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere;"
    "overflow:hidden"
)
BETWEEN: Final = " + "


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelState:
    """A run as the panel shows it, with the buttons that work.

    Attributes:
        text: The run in one line.
        places: Where something can fail, by kind of failure; kinds without any are left out.
        can_start, can_fail, can_stop, can_close: Which buttons work.
    """

    text: str
    iteration: int = 0
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    can_start: bool = False
    can_fail: bool = False
    can_stop: bool = False
    can_close: bool = False


@dataclass(slots=True)
class Layout:
    """Which nodes go down together: told by the log, when workers begin.

    Attributes:
        groups: Positions that keep one another's replicas.
    """

    groups: tuple[tuple[int, ...], ...] = ()
    racks: tuple[str, ...] = ()

    def take(self, entry: Entry) -> None:
        match entry.event:
            case RunStarted(racks=racks):
                self.racks = tuple(dict.fromkeys(racks or ()))
            case Protected(placement=placement) if placement is not None:
                self.groups = placement.groups


def layout_of(run: Run) -> Layout:
    """Return the groups and racks that the start of a run's log names."""
    found = Layout()
    with suppress(OSError, GeminiError):  # the log has not begun
        for entry in islice(read_log(run.log), HEAD):
            found.take(entry)
    return found


def places(members: Sequence[str], layout: Layout) -> dict[str, tuple[str, ...]]:
    """Return where each kind of failure can strike; one of no place has an empty one."""
    one = (*dict.fromkeys(members), "root")
    groups = tuple(
        BETWEEN.join(members[position] for position in group)
        for group in layout.groups
        if len(group) > 1 and max(group) < len(members)
    )
    found: dict[str, tuple[str, ...]] = {}
    for kind, failure in FAILURES.items():
        names = {each.name for each in fields(failure)}
        if "nodes" in names:
            found[kind] = groups
        elif "rack" in names:
            found[kind] = layout.racks
        else:
            found[kind] = one if "node" in names else ("",)
    return {kind: where for kind, where in found.items() if where}


def sight(
    run: Run | None, *, has_job: bool, is_closed: bool = False, layout: Layout | None = None
) -> PanelState:
    """Return what the panel shows of `run`, and whether a job could be started after it."""
    if run is None:
        text = "no run yet" if has_job else "no run yet; lab.controls(job) has a job to start"
        text = "the lab is closed" if is_closed else text
        return PanelState(text=text, can_start=has_job and not is_closed, can_close=not is_closed)
    nodes = ", ".join(f"{node} (root)" if node == run.root else node for node in run.members)
    text = f"{run.folder.name}: {run.phase}, iteration {run.iteration}"
    if run.failure:
        text += f"; {run.failure}"
    elif nodes and not run.is_over:
        text += f", on {nodes}"
    if is_closed:
        text += "; the lab is closed"
    return PanelState(
        text=text,
        iteration=run.iteration,
        places=places(run.members, layout or Layout()) if run.members else {},
        can_start=has_job and run.is_over and not is_closed,
        can_fail=bool(run.members) and not run.is_over and not is_closed,
        can_stop=not run.is_over and not is_closed,
        can_close=not is_closed,
    )


def for_notebook(
    target: Lab | Run,
    job: Job | None = None,
    *,
    total: int | None = None,
    scenario: Scenario | None = None,
    root: Decide | None = None,
    **settings: SettingValue,
) -> "Controls":
    """Return a panel that keeps itself fresh."""
    return Controls(target, job, total=total, scenario=scenario, root=root, **settings).follow()


class Controls:
    """A panel to start a job, break something, ask for a drain, stop the run, hold the view.

    A rewind or another size is asked for likewise. It shows what happens from `follow` to `close`,
    and after each `refresh`.

    Args:
        target: A lab, whose newest run it shows, or one run.
        job: What the start button starts; by default the newest run's job again.
        total: Iterations of the job, the bar's full length.
        scenario: Failures to inject into what the button starts.
        root: Decides what is done after a failure of it, as for `Lab.train`.
        settings: For `Lab.train`.
    """

    def __init__(
        self,
        target: Lab | Run,
        job: Job | None = None,
        *,
        total: int | None = None,
        scenario: Scenario | None = None,
        root: Decide | None = None,
        **settings: SettingValue,
    ) -> None:
        self._lab = None if isinstance(target, Run) else target
        self._run = target if isinstance(target, Run) else None
        self._job, self._scenario, self._decides, self._settings = job, scenario, root, settings
        self._below = CellOutput()
        self._said: deque[str] = deque(maxlen=LINES)
        self._watched: Run | None = None
        self._layout, self._strip = Layout(), LiveStrip()
        self._places: Mapping[str, tuple[str, ...]] = {}
        self._end_watch: Callable[[], None] = lambda: None
        self._is_closed = threading.Event()
        self._build(total)
        self.refresh()

    def follow(self) -> Self:
        """Keep what is shown fresh, from a thread, until `close` or the end of the lab."""
        threading.Thread(target=self._keep_fresh, name="gemini-controls", daemon=True).start()
        return self

    @property
    def run(self) -> Run | None:
        return self._run if self._lab is None else self._lab.run

    def start(self) -> None:
        run = self.run
        job = self._job or (run.job if run else None)
        if self._lab is None or job is None:
            raise ConfigError("there is nothing to start; make the panel with lab.controls(job)")
        self._lab.train(
            job,
            scenario=self._scenario,
            name=None,
            resume=False,
            placement=None,
            root=self._decides,
            hold_at=(),
            **self._settings,
        )

    def fail(self) -> None:
        run = self.run
        if run is None or not run.members:
            raise ConfigError("nothing can fail now: no workers run")
        kind, place = self.kind.value, self.place.value or ""
        words = place.split(BETWEEN) if kind == NodesLoss.kind else [place]
        run.inject(read_failure(kind, [word for word in words if word]))

    def stop(self) -> None:
        if self.run is not None:
            self.run.stop()

    def close_lab(self) -> None:
        """End the lab with all its processes; its runs' logs stay."""
        if self._lab is not None:
            self._lab.close()

    def refresh(self, *, anyway: bool = False) -> None:
        """Show how things are, unless the view is paused."""
        run = self.run
        if run is not self._watched:
            self._watch(run)
        if self.pause.value and not anyway:
            return
        is_closed = self._lab is not None and self._lab.is_closed
        seen = sight(run, has_job=self._has_job(), is_closed=is_closed, layout=self._layout)
        self.status.value = escape(seen.text)
        self.bar.value = min(seen.iteration, self.bar.max)
        self.strip.value = self._drawn(run)
        self.views.refresh(run)
        self._places = seen.places
        _offer(self.kind, tuple((kind.replace("_", " "), kind) for kind in seen.places or FAILURES))
        self._want_place()
        self.start_button.disabled = not seen.can_start
        self.fail_button.disabled = not seen.can_fail
        self.stop_button.disabled = not seen.can_stop
        self.close_button.disabled = self._lab is None or not seen.can_close
        self.asking.offer(run.members if run else (), is_open=seen.can_fail)
        self.log.value = f"<pre style='{PRE}'>{escape(self._text())}</pre>"

    def close(self) -> None:
        """Close the panel; the run goes on."""
        self._is_closed.set()
        self._end_watch()
        self.root.close()

    def _ipython_display_(self) -> None:
        self._below.show({**self.root._repr_mimebundle_(), **self._as_text()})

    def __repr__(self) -> str:
        return f"<Controls of {self._lab or self._run}>"

    # -- inside --------------------------------------------------------------------------------

    def _build(self, total: int | None) -> None:
        button = ipywidgets.Button
        self.status, self.log = ipywidgets.HTML(), ipywidgets.HTML()
        self.strip = ipywidgets.HTML()
        for text in (self.status, self.strip, self.log):
            text.layout.overflow = "hidden"  # a line that ends at the edge needs no scrollbar
        length = ipywidgets.Layout(width="100%", display=None if total else "none")
        self.bar = ipywidgets.IntProgress(min=0, max=total or 1, layout=length)
        self.start_button = button(description="Start", icon="play", button_style="success")
        self.stop_button = button(description="Stop", icon="stop")
        self.close_button = button(
            description="Close lab",
            icon="power-off",
            tooltip="ends all processes of the lab, and gives their memory back",
        )
        self.pause = ipywidgets.ToggleButton(
            value=False,
            description="Pause view",
            icon="pause",
            tooltip="holds this panel still; training goes on",
        )
        self.kind = ipywidgets.Dropdown(
            description="Break",
            options=[(kind.replace("_", " "), kind) for kind in FAILURES],
            value="node_loss",
        )
        self.place = ipywidgets.Dropdown(description="on", options=[])
        self.fail_button = button(description="Fail now", icon="bolt", button_style="danger")
        self.asking, self.views = Asking(lambda: self.run, self._try), RunWidgets()
        for pressed, act in (
            (self.start_button, self.start),
            (self.fail_button, self.fail),
            (self.stop_button, self.stop),
            (self.close_button, self.close_lab),
        ):
            pressed.on_click(lambda _, act=act: self._try(act))
        self.pause.observe(lambda _: self.refresh(anyway=True), "value")
        self.views.root.observe(lambda _: self.views.refresh(self.run), "selected_index")
        self.kind.observe(lambda _: self._want_place(), "value")
        wraps = {"flex_flow": "row wrap"}  # on a phone
        buttons = self.start_button, self.stop_button, self.pause, self.close_button
        lines = [
            self.status,
            self.bar,
            self.strip,
            ipywidgets.HBox(buttons, layout=wraps),
            ipywidgets.HBox([self.kind, self.place, self.fail_button], layout=wraps),
            self.asking.row,
            self.log,
            self.views.root,
        ]
        self.root = ipywidgets.VBox(
            lines, layout=ipywidgets.Layout(max_width="760px", overflow="hidden")
        )

    def _watch(self, run: Run | None) -> None:
        """Watch another run from now on, and forget what happened in the one before."""
        self._end_watch()
        self._watched = run
        self._said.clear()
        self._layout = Layout() if run is None else layout_of(run)
        self._strip = LiveStrip()
        self._end_watch = run.watch(self._hear) if run is not None else lambda: None

    def _want_place(self) -> None:
        where = self._places.get(self.kind.value, ())
        _offer(self.place, tuple((place, place) for place in where))
        self.place.disabled = not any(where)

    def _try(self, act: Callable[[], None]) -> None:
        """Do what a button asks; an error of ours becomes a line of the panel."""
        try:
            act()
        except GeminiError as error:
            self._said.append(f"! {error}")
        self.refresh(anyway=True)

    def _hear(self, entry: Entry) -> None:
        self._layout.take(entry)
        self._strip.take(entry)
        if told := describe(entry):
            self._said.append(told.strip())
        if isinstance(one := entry.event, StacksTaken):
            self._said.append("\n".join([f"rank {one.rank}, {one.how}", *last_lines(one.lines)]))

    def _drawn(self, run: Run | None) -> str:
        if run is None:
            return ""
        return self._strip.html(members=run.members, standbys=run.standbys, root=run.root)

    def _text(self) -> str:
        pause = ["the view is paused"] if self.pause.value else []
        return "\n".join([*list(self._said), *pause]) or "nothing has happened yet"

    def _as_text(self) -> dict[str, str]:
        """Return what a saved notebook shows in place of the panel."""
        html = f"<p>{self.status.value}</p>{self.log.value}"
        return {"text/html": html, "text/plain": f"{unescape(self.status.value)}\n{self._text()}"}

    def _has_job(self) -> bool:
        return self._lab is not None and (self._job is not None or self._lab.run is not None)

    def _keep_fresh(self) -> None:
        while not self._is_closed.wait(REFRESH_S):
            self.refresh()
            is_over = self.run is None or self.run.is_over
            if is_over and (self._lab is None or self._lab.is_closed):
                self.refresh(anyway=True)
                self._below.put(self._as_text())
                return


def _offer(box: ipywidgets.Dropdown, options: tuple[tuple[str, str], ...]) -> None:
    """Offer other options; the chosen one stays while it is among them."""
    if tuple(box.options) != options:
        kept, values = box.value, [value for _, value in options]
        box.options = options
        box.value = kept if kept in values else next(iter(values), None)


class Asking:
    """A row of the controls: what to ask for, of which node or how many, and a button.

    The run answers a request between two iterations, and reports if it cannot; stacks come at once,
    also from a rank that hangs.

    Args:
        run: Gives the run that is asked, if there is one.
        attempt: Does what a button does, and says what goes wrong.
    """

    def __init__(
        self, run: Callable[[], Run | None], attempt: Callable[[Callable[[], None]], None]
    ) -> None:
        self._run = run
        self.what = ipywidgets.Dropdown(
            description="Ask for", options=[DRAIN, REWIND, RESIZE, STACKS]
        )
        self.node = ipywidgets.Dropdown(description="of", options=[])
        self.count = ipywidgets.BoundedIntText(
            value=1, min=1, max=1_000_000, layout=ipywidgets.Layout(width=WIDTH, display="none")
        )
        self.button = ipywidgets.Button(description="Ask now", icon="share")
        self.button.on_click(lambda _: attempt(self.ask))
        self.what.observe(lambda _: self._want(), "value")
        self.row = ipywidgets.HBox(
            [self.what, self.node, self.count, self.button], layout={"flex_flow": "row wrap"}
        )

    def ask(self) -> None:
        """Ask the run for what is chosen.

        Raises:
            ConfigError: No workers run, or the run cannot do that.
        """
        run = self._run()
        if run is None or not run.members:
            raise ConfigError("nothing can be asked for now: no workers run")
        if self.what.value == DRAIN:
            run.drain(self.node.value or "")
        elif self.what.value == REWIND:
            run.rewind(self.count.value)
        elif self.what.value == STACKS:
            run.stacks(self.count.value)
        else:
            run.resize(self.count.value)

    def offer(self, members: Sequence[str], *, is_open: bool) -> None:
        """Offer the nodes that there are; the chosen one stays while it is among them."""
        self.button.disabled = not is_open
        nodes = tuple(dict.fromkeys(members))
        if self.node.options != nodes:
            kept = self.node.value
            self.node.options = nodes
            self.node.value = kept if kept in nodes else next(iter(nodes), None)

    def _want(self) -> None:
        is_drain = self.what.value == DRAIN
        self.node.layout.display = None if is_drain else "none"
        self.count.layout.display = "none" if is_drain else None
        self.count.min = 0 if self.what.value == STACKS else 1
        counts = {RESIZE: max(1, len(self.node.options)), STACKS: 0}
        self.count.value = counts.get(self.what.value, 1)
