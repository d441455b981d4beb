"""Agreement on losses and on the version to resume: by etcd and a root agent, or by gossip.

The lab's own way has a store that counts heartbeats and one node that asks all others. The other
way has neither: each node probes others at random and spreads what it finds (SWIM: Das, Gupta and
Motivala, DSN 2002; with suspicion, and rumours sent on their own as in HashiCorp's memberlist), and
inventories are exchanged in pairs until everybody has all of them (Demers and others, PODC 1987),
so that each node makes the same plan by itself. Both are simulated with the same pauses of healthy
processes, which is what false accusations come from; no packet is lost.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Literal

from gemini_lab.errors import ConfigError
from gemini_lab.simulator.interval import Interval, mean_interval
from gemini_lab.units import check_number

Design = Literal["etcd and root agent", "gossip"]
PACKET_BYTES: Final = 100
"""Of a heartbeat, probe, answer or rumour, with its headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Pauses of a healthy process: their rate, and exponential durations around a mean."""

    per_node_hour: float = 0.1
    mean_s: float = 1.0

    def __post_init__(self) -> None:
        check_number("per_node_hour", self.per_node_hour)
        check_number("mean_s", self.mean_s, is_above=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RootDesign:
    """Heartbeats to etcd under a lease, and one root agent that fences, asks and plans.

    Attributes:
        lease_s: Silence after which a node is lost.
        heartbeats: A lease.
        look_s: How often the store looks for leases that ran out.
        message_s: The root agent's time for one message, in or out.
        start_bytes: What each node is told at a start, whatever the number of nodes.
        inventory_bytes: A node's.
    """

    lease_s: float = 2.0
    heartbeats: int = 4
    look_s: float = 0.5
    message_s: float = 1e-4
    start_bytes: int = 1000
    inventory_bytes: int = 400

    def __post_init__(self) -> None:
        check_number("lease_s", self.lease_s, is_above=True)
        check_number("heartbeats", self.heartbeats, least=1)
        for name in ("look_s", "message_s", "start_bytes", "inventory_bytes"):
            check_number(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipDesign:
    """SWIM's numbers; by default those of memberlist in a local network.

    Attributes:
        period_s: A node probes one other each time.
        suspicion: Periods that a suspect has for every factor of ten in the number of nodes.
        gossip_s: How often rumours are sent on,
        fanout: to how many others,
        repeats: and how often one node sends one rumour, for every factor of ten.
        inventory_bytes: A node's.
    """

    period_s: float = 1.0
    suspicion: float = 4.0
    gossip_s: float = 0.2
    fanout: int = 3
    repeats: int = 4
    inventory_bytes: int = 300

    def __post_init__(self) -> None:
        for name in ("period_s", "gossip_s"):
            check_number(name, getattr(self, name), is_above=True)
        for name in ("fanout", "repeats"):
            check_number(name, getattr(self, name), least=1, is_whole=True)
        for name in ("suspicion", "inventory_bytes"):
            check_number(name, getattr(self, name))

    def suspicion_s(self, nodes: int) -> float:
        """Return the seconds within which a suspect must answer."""
        return self.suspicion * max(1.0, math.log10(nodes)) * self.period_s

    def sends(self, nodes: int) -> int:
        """Return how often a node sends a rumour."""
        return self.repeats * math.ceil(math.log10(nodes + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordination:
    """Simulated cost of one design at this many nodes.

    Attributes:
        design: Which.
        nodes: N.
        detect_s: From a node's silence until the first one acts on it.
        told_s: Until every node has heard of it.
        agree_s: From there until every node knows from which version to go on.
        false_per_day: Healthy nodes that are declared lost, in the whole cluster.
        busiest_messages_per_s: Sent and received, while nothing happens, by who has most to do: the
            store, or any node.
        busiest_bytes: What crosses the busiest node's link in one agreement: all that the root
            agent sends, or the most that one node gets by gossip.
    """

    design: Design
    nodes: int
    detect_s: Interval
    told_s: Interval
    agree_s: float
    false_per_day: float
    busiest_messages_per_s: float
    busiest_bytes: float

    @property
    def back_s(self) -> float:
        """From a node's silence until all know from which version to go on."""
        return self.told_s.mean + self.agree_s


def coordinate(
    nodes: Sequence[int] = (10, 100, 1000, 10_000),
    *,
    root: RootDesign | None = None,
    gossip: GossipDesign | None = None,
    pauses: Pauses | None = None,
    round_trip_s: float = 0.001,
    bytes_per_s: float = 1.25e9,
    losses: int = 10,
    seed: int = 0,
) -> tuple[Coordination, ...]:
    """Simulate both designs at each size, the lab's own first.

    Args:
        nodes: Sizes of the cluster.
        root: The lab's own design.
        gossip: The other one.
        pauses: Of healthy processes.
        round_trip_s: Of a message and its answer between any two.
        bytes_per_s: Of a node's link.
        losses: Simulated for each size, 2 or more.
        seed: Of the draws.

    Raises:
        ConfigError: There is no size, one is below 3, there are too few losses for an interval, or
            another number cannot be.
    """
    if not nodes:
        raise ConfigError("`nodes` names no size of a cluster; give one or more, such as (10, 100)")
    for count in nodes:
        check_number("nodes", count, least=3, is_whole=True)  # or there is nobody to gossip with
    check_number("losses", losses, least=2, is_whole=True)
    check_number("round_trip_s", round_trip_s)
    check_number("bytes_per_s", bytes_per_s, is_above=True)
    found: list[Coordination] = []
    for count in nodes:
        world = _World(
            count, pauses or Pauses(), round_trip_s, bytes_per_s, losses, random.Random(seed)
        )
        found += [world.by_root(root or RootDesign()), world.by_gossip(gossip or GossipDesign())]
    return tuple(found)


@dataclass(slots=True)
class _World:
    """One size of the cluster, with its draws."""

    nodes: int
    pauses: Pauses
    round_trip_s: float
    bytes_per_s: float
    losses: int
    draw: random.Random

    # -- etcd and root agent -------------------------------------------------------------------

    def by_root(self, design: RootDesign) -> Coordination:
        """Simulate the lab's own way, by etcd and a root agent."""
        beat_s = design.lease_s / design.heartbeats
        silences = []
        for _ in range(self.losses):
            since_beat_s = self.draw.random() * beat_s
            until_look_s = self.draw.random() * design.look_s
            silences.append(design.lease_s - since_beat_s + until_look_s)
        detected = mean_interval([silence + self.round_trip_s for silence in silences])
        agree_s, busiest_bytes = self._ask_all(design)
        # A pause hides what is left of the lease after the last heartbeat before it.
        shortest_s = [design.lease_s - self.draw.random() * beat_s for _ in range(1000)]
        messages = 2 / beat_s
        return Coordination(
            design="etcd and root agent",
            nodes=self.nodes,
            detect_s=detected,
            told_s=detected,  # nobody else has to hear of it before the root agent acts
            agree_s=agree_s,
            false_per_day=self._pauses_per_day * fmean(map(self._chance_of_pause, shortest_s)),
            busiest_messages_per_s=messages * self.nodes,
            busiest_bytes=busiest_bytes,
        )

    def _ask_all(self, design: RootDesign) -> tuple[float, float]:
        """Fence, inventory, start: the root agent's time for them, and its bytes."""
        others = self.nodes - 1
        small = 4 * others * PACKET_BYTES  # a fence and its answer, a question, an order to start
        told = others * (design.inventory_bytes + design.start_bytes)
        wire_s = (small + told) / self.bytes_per_s
        return 3 * self.round_trip_s + 5 * others * design.message_s + wire_s, small + told

    # -- gossip ----------------------------------------------------------------------------------

    def by_gossip(self, design: GossipDesign) -> Coordination:
        """Simulate the way without a root agent, by gossip."""
        firsts, alls, heard_by_one_s = [], [], []
        for _ in range(self.losses):
            heard_s = sorted(self._spread(design))
            first_s = self._suspected_s(design) + design.suspicion_s(self.nodes)
            firsts.append(first_s)
            alls.append(first_s + heard_s[-1])
            heard_by_one_s.append(heard_s[len(heard_s) // 2])
        agree_s, busiest_bytes = self._exchange(design)
        messages = 4 / design.period_s  # it probes one and is probed by one, with the answers
        return Coordination(
            design="gossip",
            nodes=self.nodes,
            detect_s=mean_interval(firsts),
            told_s=mean_interval(alls),
            agree_s=agree_s,
            false_per_day=self._pauses_per_day * self._chance_of_death(design, heard_by_one_s),
            busiest_messages_per_s=messages,
            busiest_bytes=busiest_bytes,
        )

    def _suspected_s(self, design: GossipDesign) -> float:
        """Draw the time from silence to the first suspicion: a probe that nobody answers.

        Each of the others probes it once in N - 1 periods, at a moment of its own: the first of
        them does so after the least of N - 1 uniform draws.
        """
        others = self.nodes - 1
        least = 1.0 - math.pow(self.draw.random(), 1 / others)
        return least * others * design.period_s + design.period_s

    def _spread(self, design: GossipDesign) -> list[float]:
        """Return when each node has heard a rumour that one of them begins to tell."""
        heard_s = {0: 0.0}
        left = {0: design.sends(self.nodes)}
        now_s = 0.0
        while len(heard_s) < self.nodes:
            now_s += design.gossip_s
            told = []
            for node in [node for node, sends in left.items() if sends]:
                left[node] -= 1
                told += [self.draw.randrange(self.nodes) for _ in range(design.fanout)]
            for node in told:
                if node not in heard_s:
                    heard_s[node], left[node] = now_s, design.sends(self.nodes)
            if not any(left.values()):
                break  # the few who never heard are told by the next exchange of whole tables
        return list(heard_s.values())

    def _chance_of_death(self, design: GossipDesign, heard_s: Sequence[float]) -> float:
        """That a pause ends in a death: the suspect wakes, hears of it, and says no too late.

        Args:
            design: The numbers.
            heard_s: How long a rumour takes to a node, as simulated.
        """
        patience_s = design.suspicion_s(self.nodes)
        chances = []
        for _ in range(1000):
            suspected_s = self._suspected_s(design)
            there_s, back_s = self.draw.choice(heard_s), self.draw.choice(heard_s)
            is_in_time = there_s + back_s < patience_s  # where it wakes at once
            longest_s = suspected_s + (patience_s - back_s if is_in_time else 0.0)
            chances.append(self._chance_of_pause(longest_s))
        return fmean(chances)

    def _exchange(self, design: GossipDesign) -> tuple[float, float]:
        """Simulate pairs that exchange what one of them lacks, until all have every inventory."""
        known = [1 << node for node in range(self.nodes)]
        whole = (1 << self.nodes) - 1
        seconds, in_all = 0.0, [0.0] * self.nodes
        while any(table != whole for table in known):
            moved = [0.0] * self.nodes
            for node in range(self.nodes):
                other = self.draw.randrange(self.nodes)
                both = known[node] | known[other]
                for one in (node, other):
                    # What it lacks comes, after a list of what each has.
                    lacking = (both ^ known[one]).bit_count() * design.inventory_bytes
                    moved[one] += lacking + self.nodes / 8
                    known[one] = both
            seconds += 2 * self.round_trip_s + max(moved) / self.bytes_per_s
            in_all = [before + now for before, now in zip(in_all, moved, strict=True)]
        return seconds, max(in_all)

    # -- healthy nodes ---------------------------------------------------------------------------

    @property
    def _pauses_per_day(self) -> float:
        return self.pauses.per_node_hour * 24 * self.nodes

    def _chance_of_pause(self, longer_than_s: float) -> float:
        return math.exp(-max(0.0, longer_than_s) / self.pauses.mean_s)
