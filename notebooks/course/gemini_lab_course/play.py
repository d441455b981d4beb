"""Things to play with in labs: a ring of machines that clicks kill, sliders, and kills drawn."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Final

import anywidget
import traitlets
from gemini_lab_widgets.cell_output import CellOutput
from gemini_lab_widgets.pictures import palette, view
from ipywidgets import FloatSlider, IntSlider, SelectionSlider, interactive
from matplotlib import pyplot as plt

from gemini_lab.lab.run import Run
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Injected, Iteration, RecoveryFinished, VersionComplete
from gemini_lab.placement import Placement, loss_probability, plan_placement
from gemini_lab.profiler.profile import Profile
from gemini_lab.simulator import Workload
from gemini_lab.units import format_bytes

SCRIPT: Final = Path(__file__).with_name("placement_ring.js")
MOST: Final = 16
"""Machines on the ring."""
WIDE: Final = {
    "style": {"description_width": "16em"},
    "layout": {"width": "36em", "max_width": "100%"},
}
"""A slider with room for its words, on a phone too."""


def play_placement(*, nodes: int = 4, replicas: int = 2, racks: int = 2) -> "PlacementRing":
    """Return a ring of machines; the package's own planner places their shards."""
    return PlacementRing(nodes=nodes, replicas=replicas, racks=racks)


def planned(*, nodes: int, replicas: int, racks: int, layout: str) -> tuple[Placement, list[int]]:
    """Return the placement for what a reader has chosen, and the rack of each machine."""
    nodes = min(max(nodes, 1), MOST)
    replicas, racks = min(max(replicas, 1), nodes), min(max(racks, 1), nodes)
    rack_of = [node * racks // nodes for node in range(nodes)]
    if layout == "racks":
        names = [f"rack-{rack}" for rack in rack_of]
        return plan_placement(nodes=nodes, replicas=replicas, racks=names), rack_of
    strategy = "ring" if layout == "ring" else "auto"
    return plan_placement(nodes=nodes, replicas=replicas, strategy=strategy), rack_of


class Ring(anywidget.AnyWidget):  # type: ignore[misc]
    """The state that the ring's script reads and changes."""

    _esm = SCRIPT.read_text(encoding="utf-8")
    nodes = traitlets.Int().tag(sync=True)
    replicas = traitlets.Int().tag(sync=True)
    racks = traitlets.Int().tag(sync=True)
    strategy = traitlets.Unicode("group").tag(sync=True)
    holders = traitlets.List().tag(sync=True)
    rack_of = traitlets.List().tag(sync=True)


class PlacementRing:
    """The ring below a cell; a saved notebook has the placement's picture in its place.

    Args:
        nodes, replicas, racks: What it begins with.
    """

    def __init__(self, *, nodes: int, replicas: int, racks: int) -> None:
        self.ring = Ring(nodes=nodes, replicas=replicas, racks=racks)
        self._plan()
        self.ring.observe(lambda _: self._plan(), names=["nodes", "replicas", "racks", "strategy"])

    @property
    def placement(self) -> Placement:
        """The placement that is shown."""
        return self._planned()[0]

    def _planned(self) -> tuple[Placement, list[int]]:
        ring = self.ring
        asked = {"nodes": ring.nodes, "replicas": ring.replicas, "racks": ring.racks}
        return planned(**asked, layout=ring.strategy)

    def _plan(self) -> None:
        placement, rack_of = self._planned()
        self.ring.rack_of = rack_of
        self.ring.holders = [list(kept) for kept in placement.holders]

    def _ipython_display_(self) -> None:
        shown: dict[str, Any] = view(self.placement).bundle()
        CellOutput().show({**shown, **self.ring._repr_mimebundle_()[0]})


STATIC: Final = """
const plans = PLANS, now = NOW;
let changed;
const plan = () => plans[`${now.nodes} ${now.replicas} ${now.racks} ${now.strategy}`];
const model = {
  get: (name) => now[name] ?? plan()[name],
  set: (name, value) => { now[name] = value; },
  save_changes: () => changed?.(),
  on: (_, act) => { changed = act; },
};
render({ model, el: document.getElementById("PLACE") });
"""


def ring_html(*, nodes: int = 4, replicas: int = 2, racks: int = 2) -> str:
    """Return the ring for a page without a kernel: every plan that its sliders reach is in it."""
    plans = {}
    for asked in product(range(4, MOST + 1), range(2, 5), range(2, 5), ("group", "ring", "racks")):
        placement, rack_of = planned(
            nodes=asked[0], replicas=asked[1], racks=asked[2], layout=asked[3]
        )
        plans[" ".join(map(str, asked))] = {"holders": placement.holders, "rack_of": rack_of}
    first = {"nodes": nodes, "replicas": replicas, "racks": racks, "strategy": "group"}
    place = f"gl-ring-{nodes}-{replicas}-{racks}"
    told = STATIC.replace("PLANS", json.dumps(plans, separators=(",", ":")))
    told = told.replace("NOW", json.dumps(first)).replace("PLACE", place)
    script = SCRIPT.read_text(encoding="utf-8")
    return f'<div id="{place}"></div><script type="module">{script}{told}</script>'


# -- Eq. (1) ---------------------------------------------------------------------------------------


def play_wasted_time(workload: Workload) -> Any:
    """Return sliders over Eq. (1): what one failure wastes, and what that is of a day."""

    def slider(name: str, value: float, *values: float) -> SelectionSlider:
        return SelectionSlider(options=values, value=value, description=name, **WIDE)

    return interactive(
        lambda interval, store, failures: _draw_eq_1(workload, interval, store, failures),
        interval=slider(
            "a checkpoint every ... minutes", 180, 1, 2, 4, 8, 15, 30, 60, 120, 180, 360
        ),
        store=slider("the store takes ... Gbit/s", 20, 5, 10, 20, 50, 100, 200, 500, 1000, 2000),
        failures=slider("failures a day", 1, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50),
    )


def eq_1_minutes(workload: Workload, *, interval: float, store: float) -> dict[str, float]:
    """Return Eq. (1)'s terms in minutes; Eq. (2) bounds the interval from below."""
    store_min = workload.checkpoint_bytes * 8e-9 / store / 60
    shortest = max(store_min, workload.iteration_s / 60)
    return {"t_ckpt": store_min, "1/(2f)": max(interval, shortest) / 2, "t_rtvl": store_min}


def _draw_eq_1(workload: Workload, interval: float, store: float, failures: float) -> None:
    terms = eq_1_minutes(workload, interval=interval, store=store)
    wasted = sum(terms.values())
    figure, axes = _panel(8, 1.9)
    left = 0.0
    for number, (name, minutes) in enumerate(terms.items()):
        axes.barh(0, minutes, left=left, color=f"C{number}", label=f"{name}: {minutes:.3g} min")
        left += minutes
    day = min(1.0, failures * wasted / (24 * 60))
    axes.set(yticks=[], xlabel="minutes wasted by a failure (model)", xlim=(0, max(120.0, left)))
    told = f"{wasted:.3g} min a failure, {day:.1%} of each day"
    if 2 * terms["1/(2f)"] > interval:
        told += f"; by Eq. (2) at most every {2 * terms['1/(2f)']:.3g} min"
    axes.set_title(told, loc="left", fontsize=11)
    figure.legend(frameon=False, ncols=3, loc="outside lower left")
    plt.show()


# -- a profile's idle spans ------------------------------------------------------------------------


def play_spans(profile: Profile, *, shard_bytes: int, link_bytes_per_s: float) -> Any:
    """Return sliders that fill a profile's idle spans with a checkpoint."""
    link = round(link_bytes_per_s / 1e6)
    return interactive(
        lambda size, link, copies: _draw_spans(profile, shard_bytes * size * copies, link * 1e6),
        size=FloatSlider(1, min=0.1, max=4, description="times its size", **WIDE),
        link=IntSlider(link, min=5, max=200, description="link, MB/s", **WIDE),
        copies=IntSlider(1, min=1, max=3, description="copies at peers", **WIDE),
    )


def filled_s(profile: Profile, *, size_bytes: float, link_bytes_per_s: float) -> list[float]:
    """Return for each idle span how long a checkpoint uses it; the last is what does not fit."""
    left_s, used_s = size_bytes / link_bytes_per_s, []
    for span in profile.idle_spans:
        used_s.append(min(left_s, span.duration_s) if span.before_update else 0.0)
        left_s -= used_s[-1]
    return [*used_s, left_s]


def _draw_spans(profile: Profile, size_bytes: float, link_bytes_per_s: float) -> None:
    *used_s, over_s = filled_s(profile, size_bytes=size_bytes, link_bytes_per_s=link_bytes_per_s)
    _, axes = _panel(9, 1.9)
    for span, taken_s in zip(profile.idle_spans, used_s, strict=True):
        start_ms = 1e3 * span.start_s
        axes.broken_barh([(start_ms, 1e3 * span.duration_s)], (0, 1), color=palette.IDLE)
        axes.broken_barh([(start_ms, 1e3 * taken_s)], (0, 1), color=palette.REPLICAS[0])
    end_ms = 1e3 * profile.iteration_s
    axes.broken_barh([(end_ms, 1e3 * over_s)], (0, 1), color=palette.FAILURE)
    axes.set(yticks=[], xlabel="ms since the iteration began (model)", ylim=(0, 1))
    axes.set_xlim(0, end_ms + max(1e3 * over_s, 0.05 * end_ms))
    fits = f"does not fit: {1e3 * over_s:.0f} ms late" if over_s > 0 else "fits"
    axes.set_title(f"{format_bytes(int(size_bytes))}: {fits}", loc="left", fontsize=11)
    plt.show()


# -- how likely memory is enough -------------------------------------------------------------------


def play_chances() -> Any:
    """Return sliders over the chance that memory does not suffice, with and without racks."""
    chances = [(f"1 in {10**power:,}", 10.0**-power) for power in range(6, 0, -1)]

    def chance(name: str, value: float) -> SelectionSlider:
        return SelectionSlider(options=chances, value=value, description=name, **WIDE)

    return interactive(
        _draw_chances,
        nodes=IntSlider(64, min=16, max=512, step=16, description="machines, N", **WIDE),
        replicas=IntSlider(2, min=2, max=4, description="copies, m", **WIDE),
        machine=chance("a machine dies, chance", 1e-3),
        rack=chance("a rack dies, chance", 1e-4),
    )


def losses(*, nodes: int, replicas: int, machine: float, rack: float) -> dict[str, float]:
    """Return the chance of a loss in a window, by how groups are placed in eight racks."""
    racks = [f"rack-{node * 8 // nodes}" for node in range(nodes)]
    chance = partial(loss_probability, node_chance=machine, rack_chance=rack, racks=racks)
    placed = {
        "groups as listed": plan_placement(nodes=nodes, replicas=replicas),
        "groups across racks": plan_placement(nodes=nodes, replicas=replicas, racks=racks),
    }
    return {name: float(chance(one)) for name, one in placed.items()}


def _draw_chances(nodes: int, replicas: int, machine: float, rack: float) -> None:
    found = losses(nodes=nodes, replicas=replicas, machine=machine, rack=rack)
    _, axes = _panel(8, 1.6)
    bars = axes.barh([*found], [*found.values()], color=["C1", "C0"])
    axes.bar_label(bars, [f"{chance:.2g}" for chance in found.values()], padding=4)
    axes.set(xscale="log", xlim=(1e-9, 10), xlabel="chance that memory does not suffice (model)")
    plt.show()


# -- a kill's place within its iteration -----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """The iteration that a failure interrupted, in shares of a usual one of rank 0.

    Attributes:
        iteration: Its number.
        resumed: The version from which training resumed; `None` if it never did.
        at: When the failure struck.
        whole_at: When the version before is usually whole on all nodes; `None` if that is unknown.
    """

    iteration: int
    resumed: int | None
    at: float
    whole_at: float | None


def strike_of(entries: Iterable[Entry]) -> Strike | None:
    """Return the place of a run's first failure; `None` if the log does not say."""
    ended: list[tuple[float, Iteration]] = []
    whole_s: dict[int, float] = {}
    found: Strike | None = None
    for entry in entries:
        match entry.event:
            case RecoveryFinished(version=version) if found is not None:
                return replace(found, resumed=version)
            case _ if found is not None:
                continue
            case Injected() if ended:
                begun_s, last = ended[-1]
                usual_s = median(one.duration_s for _, one in ended)
                whole_at = median(whole_s.values()) / usual_s if whole_s else None
                at = (entry.at_s - begun_s) / usual_s
                found = Strike(iteration=last.iteration + 1, resumed=None, at=at, whole_at=whole_at)
            case Iteration(rank=0) as one if not one.restored:
                ended.append((entry.at_s, one))
            case VersionComplete(version=version) as one:
                until_s = one.duration_s if one.whole_s is None else one.whole_s
                whole_s[version] = max(until_s, whole_s.get(version, 0.0))
    return found


def show_strikes(runs: Mapping[str, Run]) -> None:
    """Draw for each run the iteration that its first failure interrupted."""
    found = {name: strike for name, run in runs.items() if (strike := strike_of(run.events()))}
    _, axes = _panel(8, 0.45 * len(found) + 1)
    rows = [f"{n}: in {s.iteration}, resumed after {s.resumed}" for n, s in found.items()]
    axes.set_yticks(range(len(found)), rows)
    for row, strike in enumerate(found.values()):
        axes.barh(row, 1, 0.5, color=palette.IDLE)
        if strike.whole_at is not None and strike.whole_at < 1:
            axes.barh(row, 1 - strike.whole_at, 0.5, strike.whole_at, color=palette.REPLICAS[0])
        axes.plot(strike.at, row, "X", color=palette.FAILURE, markersize=11)
    axes.set(xlabel="share of an iteration (blue: the version before is whole; cross: the kill)")
    axes.set_xlim(0, max([1.02, *(1.05 * strike.at for strike in found.values())]))
    axes.invert_yaxis()
    plt.show()


def _panel(wide: float, tall: float) -> Any:
    """Return a figure and its axes, readable on light and on dark pages."""
    plt.style.use("gemini_lab_widgets.labs")  # for the notebook, whose pictures look the same
    return plt.subplots(figsize=(wide, tall), layout="constrained")
