"""Failure rate of each machine: the expected one, corrected by what was observed."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gemini_lab.units import PerNode

DAY_S: Final = 86400.0
EXPECTED_DAYS: Final = 30.0
"""The expected rate of a machine weighs as much as so many days of observation."""
TOGETHER_S: Final = 60.0
"""A rack failed as a whole if all of its nodes are lost within this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Observed time and failures of a machine or a rack.

    Attributes:
        failures: How often it failed.
        days: So long it was there before `since_s`.
        since_s: The moment since when it is there; `None` while it is not.
        lost_s: The moment of its last failure.
    """

    failures: int = 0
    days: float = 0.0
    since_s: float | None = None
    lost_s: float | None = None

    def days_at(self, at_s: float) -> float:
        """Return the days for which it had been observed at `at_s`."""
        open_s = 0.0 if self.since_s is None else max(0.0, at_s - self.since_s)
        return self.days + open_s / DAY_S

    def per_day(self, at_s: float, *, expected: float) -> float:
        """Return the failure rate, the mean of a gamma distribution after all observations.

        Args:
            at_s: Now.
            expected: The rate before anything was seen, which weighs `EXPECTED_DAYS` days.
        """
        seen_days = self.days_at(at_s)
        return (expected * EXPECTED_DAYS + self.failures) / (EXPECTED_DAYS + seen_days)


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """Knowledge about machines: their failures, and their memory for copies.

    A machine is known by its node's name, which no other one gets in the same lab.

    Attributes:
        nodes: What was seen of each node.
        racks: What was seen of each rack, beyond what its nodes did one by one.
        memory_bytes: Of each node, where it is known.
    """

    nodes: Mapping[str, Exposure] = field(default_factory=dict)
    racks: Mapping[str, Exposure] = field(default_factory=dict)
    memory_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def failures(self) -> int:
        """Return all observations, of nodes and racks."""
        return sum(one.failures for one in (*self.nodes.values(), *self.racks.values()))

    def joined(self, node: str, at_s: float) -> "Risk":
        """Return the risk after a node joined."""
        known = self.nodes.get(node, Exposure())
        if known.since_s is not None:
            return self
        return self._with(node, replace(known, since_s=at_s))

    def left(self, node: str, at_s: float) -> "Risk":
        """Return the risk after a node left without a failure."""
        known = self.nodes.get(node)
        if known is None or known.since_s is None:
            return self
        return self._with(node, replace(known, days=known.days_at(at_s), since_s=None))

    def failed(self, node: str, at_s: float) -> "Risk":
        """Return the risk after a node failed that still exists: its worker was killed, or hung."""
        known = self.nodes.get(node, Exposure(since_s=at_s))
        return self._with(node, replace(known, failures=known.failures + 1, lost_s=at_s))

    def lost(self, node: str, at_s: float, *, rack_of: Mapping[str, str]) -> "Risk":
        """Return the risk after a node was lost.

        Where it is the last of its rack's nodes, and at least one other went shortly before, the
        rack has failed: once, and none of its nodes by itself.
        """
        gone = self.failed(node, at_s).left(node, at_s)
        rack = rack_of.get(node)
        mates = [one for one in gone.nodes if rack is not None and rack_of.get(one) == rack]
        lost_s = [gone.nodes[one].lost_s for one in mates if gone.nodes[one].since_s is None]
        recent = [moment for moment in lost_s if moment is not None]
        together = [moment for moment in recent if at_s - moment <= TOGETHER_S]
        if rack is None or len(together) < 2 or len(together) < len(mates):
            return gone
        nodes = dict(gone.nodes)
        for one in mates:
            nodes[one] = replace(nodes[one], failures=max(0, nodes[one].failures - 1))
        known = gone.racks.get(rack, Exposure())
        days = max(nodes[one].days_at(at_s) for one in mates)
        racks = {**gone.racks, rack: replace(known, failures=known.failures + 1, days=days)}
        return replace(gone, nodes=nodes, racks=racks)

    def at(self, at_s: float) -> "Risk":
        """Return the risk as plain sums up to now, in which no time runs on."""
        return replace(
            self,
            nodes={
                node: replace(one, days=one.days_at(at_s), since_s=None)
                for node, one in self.nodes.items()
            },
        )

    def after(self, earlier: "Risk") -> "Risk":
        """Return the risk with earlier observations of the same nodes and racks added."""

        def joint(now: Mapping[str, Exposure], then: Mapping[str, Exposure]) -> dict[str, Exposure]:
            return {
                name: replace(
                    now.get(name, Exposure()),
                    failures=now.get(name, Exposure()).failures + then[name].failures,
                    days=now.get(name, Exposure()).days + then[name].days,
                )
                if name in then
                else now[name]
                for name in dict.fromkeys((*now, *then))
            }

        return replace(
            self,
            nodes=joint(self.nodes, earlier.nodes),
            racks=joint(self.racks, earlier.racks),
            memory_bytes={**earlier.memory_bytes, **self.memory_bytes},
        )

    def per_day(self, nodes: Iterable[str], at_s: float, *, expected: PerNode) -> tuple[float, ...]:
        """Return the rate of failures of each of these nodes.

        Args:
            nodes: Whose.
            at_s: Now.
            expected: Of each before anything was seen.
        """
        return tuple(
            self.nodes.get(node, Exposure()).per_day(at_s, expected=expected.of(node))
            for node in nodes
        )

    def racks_per_day(
        self, racks: Collection[str], at_s: float, *, expected: float
    ) -> dict[str, float]:
        """Return the rate at which each of these racks fails as a whole."""
        return {
            rack: self.racks.get(rack, Exposure()).per_day(at_s, expected=expected)
            for rack in racks
        }

    def _with(self, node: str, seen: Exposure) -> "Risk":
        return replace(self, nodes={**self.nodes, node: seen})
