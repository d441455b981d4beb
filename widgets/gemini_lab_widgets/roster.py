"""The nodes of a lab: who is there, who waits, who was lost."""

from collections.abc import Sequence
from typing import Final

from gemini_lab_widgets.tables import NodeHealth, NodeRow

MOST: Final = 100_000
LOST_SHOWN: Final = 8


class Roster:
    """Names of nodes, in the order in which they came.

    Attributes:
        root: The node with the root agent.
        lost_count: Nodes that were lost, all told.
    """

    def __init__(self) -> None:
        self.root = ""
        self.lost_count = 0
        self._names: dict[str, None] = {}
        self._lost: dict[str, None] = {}

    @property
    def names(self) -> list[str]:
        """All names that were told."""
        return list(self._names)

    def joined(self, name: str) -> None:
        """A node is there."""
        if len(self._names) < MOST:
            self._names[name] = None
        self._lost.pop(name, None)

    def lost(self, name: str) -> None:
        """A node is gone."""
        if name not in self._lost and len(self._lost) < MOST:
            self.lost_count += 1
            self._lost[name] = None

    def seated(
        self, members: Sequence[str | None], gone: set[int], busy: NodeHealth
    ) -> tuple[NodeRow, ...]:
        """The nodes on positions, in order; those that live are all `busy` alike."""
        return tuple(
            NodeRow(
                name=name or "no node",
                position=position,
                health="lost" if position in gone else busy,
                is_root=name == self.root,
            )
            for position, name in enumerate(members)
        )

    def standbys(self, members: Sequence[str | None]) -> tuple[NodeRow, ...]:
        """Nodes that have no position, and were not lost."""
        seated = set(members)
        return tuple(
            NodeRow(name=name, position=None, health="standby", is_root=name == self.root)
            for name in self._names
            if name not in seated and name not in self._lost
        )

    def gone(self, members: Sequence[str | None]) -> tuple[NodeRow, ...]:
        """The nodes that were lost last and have been replaced."""
        seated = set(members)
        lost = [name for name in self._lost if name not in seated][-LOST_SHOWN:]
        return tuple(NodeRow(name=name, position=None, health="lost") for name in lost)
