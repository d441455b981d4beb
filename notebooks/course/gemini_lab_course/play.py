"""A placement to play with: sliders, and machines that a click kills."""

from pathlib import Path
from typing import Any, Final

from gemini_lab_widgets.cell_output import CellOutput
from gemini_lab_widgets.pictures import view

from gemini_lab.placement import Placement, plan_placement

SCRIPT: Final = Path(__file__).with_name("placement_ring.js")
MOST: Final = 16
"""Machines on the ring."""


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


class PlacementRing:
    """The ring below a cell; a saved notebook has the placement's picture in its place.

    Args:
        nodes, replicas, racks: What it begins with.
    """

    def __init__(self, *, nodes: int, replicas: int, racks: int) -> None:
        import anywidget  # noqa: PLC0415 - only notebooks have it
        import traitlets  # noqa: PLC0415 - as above

        class Ring(anywidget.AnyWidget):  # type: ignore[misc]
            """What the script of the ring reads, and what it asks for."""

            _esm = SCRIPT.read_text(encoding="utf-8")
            nodes = traitlets.Int().tag(sync=True)
            replicas = traitlets.Int().tag(sync=True)
            racks = traitlets.Int().tag(sync=True)
            strategy = traitlets.Unicode("group").tag(sync=True)
            holders = traitlets.List().tag(sync=True)
            rack_of = traitlets.List().tag(sync=True)

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
