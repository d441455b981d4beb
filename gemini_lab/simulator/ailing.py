"""Machines that are up and not well: those that are slow, and those that compute wrong."""

import math
import random
from dataclasses import dataclass, field

from gemini_lab.simulator.outages import DAY_S, Outage, require_few
from gemini_lab.simulator.policy import Policy
from gemini_lab.units import check_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Ailments:
    """Rates at which machines become slow or compute wrong; all given, none measured.

    Attributes:
        stragglers_per_node_per_day: How often a machine becomes slow.
        factor: How many times as long it computes then.
        slow_s: Mean time until it is as fast as before (exponential); `None`: until exchanged.
        wrong_per_node_per_day: How often a machine begins to compute wrong.
        found_s: Until people find that, where no machine has; `None`: never.
    """

    stragglers_per_node_per_day: float = 0.0
    factor: float = 2.0
    slow_s: float | None = 3600.0
    wrong_per_node_per_day: float = 0.0
    found_s: float | None = DAY_S

    def __post_init__(self) -> None:
        check_number("stragglers_per_node_per_day", self.stragglers_per_node_per_day)
        check_number("factor", self.factor, least=1, is_above=True)
        check_number("wrong_per_node_per_day", self.wrong_per_node_per_day)
        for name in ("slow_s", "found_s"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), is_above=True)

    def outages(self, *, nodes: int, days: float, seed: int = 0) -> tuple[Outage, ...]:
        """Draw a history of ailments, to be added to one of failures.

        Args:
            nodes: N.
            days: Its length.
            seed: The same seed gives the same history.

        Raises:
            ConfigError: There is no node, or the length is below 0.
        """
        check_number("nodes", nodes, least=1, is_whole=True)
        check_number("days", days)
        draw = random.Random(f"ailments {seed}")
        found: list[Outage] = []
        for at_s in _moments(nodes * self.stragglers_per_node_per_day, days, draw):
            lasts_s = None if self.slow_s is None else draw.expovariate(1 / self.slow_s)
            slow = Outage(
                at_s=at_s,
                kind="straggler",
                positions=(draw.randrange(nodes),),
                cause="a machine is slow",
                factor=self.factor,
                lasts_s=lasts_s,
            )
            found.append(slow)
        for at_s in _moments(nodes * self.wrong_per_node_per_day, days, draw):
            wrong = Outage(
                at_s=at_s,
                kind="wrong_sums",
                positions=(draw.randrange(nodes),),
                cause="a machine computes wrong",
                lasts_s=self.found_s,
            )
            found.append(wrong)
        return tuple(sorted(found, key=lambda outage: outage.at_s))


def _moments(per_day: float, days: float, draw: random.Random) -> list[float]:
    require_few(per_day, days)
    moments: list[float] = []
    at_s = 0.0
    while per_day > 0 and (at_s := at_s + draw.expovariate(per_day) * DAY_S) < days * DAY_S:
        moments.append(at_s)
    return moments


@dataclass(slots=True)
class Stragglers:
    """The machines that are slow now; a position may be slow for several reasons at once."""

    slow: list[Outage] = field(default_factory=list)

    @property
    def factor(self) -> float:
        """Return the factor by which iterations are longer: all wait for the slowest machine."""
        by_position: dict[int, float] = {}
        for outage in self.slow:
            for position in outage.positions:
                by_position[position] = by_position.get(position, 1.0) * outage.factor
        return max(by_position.values(), default=1.0)

    def leave(self, position: int) -> None:
        """Forget the slowness of the machine that left this position."""
        self.slow = [outage for outage in self.slow if position not in outage.positions]

    def end(self, outage: Outage) -> bool:
        """Make a straggler as fast as before; return whether it was still slow."""
        if outage not in self.slow:
            return False
        self.slow.remove(outage)
        return True


@dataclass(slots=True)
class Wrong:
    """Span of versions that a machine spoils."""

    outage: Outage  # how it began
    # The first version that holds wrong sums; infinite before there is one.
    first_bad: float = math.inf
    # Whether the machine is still in use, so that it spoils what comes as well.
    is_there: bool = True


class SoundVersions:
    """Soundness of versions, and the versions to go back to.

    Verification does an iteration's sums again on another machine: it finds one that computes wrong
    now, and not what was spoilt before. The store keeps all versions that were ever whole in it.

    Args:
        policy: Says whether it verifies, and what it keeps.
    """

    def __init__(self, policy: Policy) -> None:
        self._every = policy.verify_every
        self._kept = (
            math.lcm(policy.verify_every, policy.memory.every)
            if (policy.verify_every and policy.memory)
            else 0
        )
        self._stored_every = policy.persistent.every if policy.persistent else 1
        self._stored: list[range] = []
        self._verified: int | None = None
        self.wrong: list[Wrong] = []

    @property
    def first_bad(self) -> float:
        """The first version that holds wrong sums; infinite where none does."""
        return min((one.first_bad for one in self.wrong), default=math.inf)

    def spoil(self, outage: Outage, *, newest: int | None) -> Wrong:
        """Start wrong results of a machine.

        Args:
            outage: Names it.
            newest: The newest version; `None`: training stands still.
        """
        wrong = Wrong(outage, math.inf if newest is None else newest + 1)
        self.wrong.append(wrong)
        return wrong

    def leave(self, position: int) -> None:
        """Note that the machine on this position left; what it spoilt stays."""
        for one in self.wrong:
            one.is_there = one.is_there and position not in one.outage.positions

    def begin(self, version: int) -> None:
        """Training begins from `version`, which all keep in memory."""
        self.wrong = [one for one in self.wrong if one.is_there or one.first_bad <= version]
        for one in self.wrong:
            if one.is_there:
                one.first_bad = min(one.first_bad, version + 1)
        self._verified = version if version < self.first_bad else None

    def note(self, begun: int, *, memory: int | None, stored: int | None) -> None:
        """Versions after `begun` became whole, up to these."""
        if memory is not None and self._kept:
            sound = int(min(memory, self.first_bad - 1)) // self._kept * self._kept
            self._verified = sound if sound > begun else self._verified
        if stored is not None:
            first = (begun // self._stored_every + 1) * self._stored_every
            self._stored.append(range(first, stored + 1, self._stored_every))

    def next_found(self, begun: int) -> tuple[int, Wrong] | None:
        """Return the iteration after which verification finds a machine, and which."""
        there = [one for one in self.wrong if one.is_there]
        if not self._every or not there:
            return None
        worst = min(there, key=lambda one: one.first_bad)
        due = max(int(worst.first_bad), begun + 1)
        return -(-due // self._every) * self._every, worst

    def go_back(self) -> tuple[int | None, int | None]:
        """Throw away what is spoilt; gives what memory and the store have that is sound.

        Where a machine was found by verification, nobody knows when it began: what is newer than
        the last verified iteration goes as well.
        """
        sound = self.first_bad - 1
        if self._every and math.isfinite(sound):
            sound = sound // self._every * self._every
        self._stored = [
            range(kept.start, int(min(kept.stop, sound + 1)), kept.step)
            for kept in self._stored
            if kept.start <= sound
        ]
        self.wrong = [one for one in self.wrong if one.is_there]
        stored = max((kept[-1] for kept in self._stored if kept), default=None)
        return (self._verified if self._every else None), stored
