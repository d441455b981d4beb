"""What a campaign may break, and a schedule of that, drawn from a seed: plain values.

A schedule is what one run suffers, fault after fault. The run itself tells a fault's moment, not
the clock alone: so a schedule means the same on a fast machine and on a busy one.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from gemini_lab.errors import ConfigError
from gemini_lab.seats import node_name

Place = Literal["rank", "standby", "pair", "rack", "all", "root", "elsewhere"]
Means = Literal["nothing", "disk", "network", "clock"]
JobForm = Literal["usual", "verified", "resizable"]
Moment = Literal[
    "calm",
    "meanwhile",
    "together",
    "fence",
    "inventory",
    "plan",
    "start",
    "retrieve",
    "warm_up",
    "end",
]
AIMED: Final[tuple[Moment, ...]] = (
    "fence",
    "inventory",
    "plan",
    "start",
    "retrieve",
    "warm_up",
)
"""Moments in a recovery, by the step that has just begun."""


class Kind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that can break.

    Attributes:
        text: What is done, for people.
        place: Of whom: a rank's node, a standby, the nodes that keep a shard, a rack, all nodes,
            the root's node, or what is no node's.
        needs: What the run must have for it: a tier with a disk of its own, nodes with networks of
            their own, or clocks of their own.
        lasts_s: Between which durations it lasts; `None`: for good.
        ends_run: Whether the run is over with it: nothing comes after it.
        begins_recovery: Whether a recovery is sure to come of it, for others to be aimed at.
        spoils_tier: Whether a version that was saved may be lost by it.
        costs_s: About how long a campaign takes for one, on a small busy machine.
        job: Which form of the job it is for; other than the usual one it is only drawn where it is
            named.
    """

    text: str
    place: Place = "elsewhere"
    needs: Means = "nothing"
    lasts_s: tuple[float, float] | None = None
    ends_run: bool = False
    begins_recovery: bool = False
    spoils_tier: bool = False
    costs_s: float = 2.0
    job: JobForm = "usual"


SHORT: Final = (0.1, 9.0)  # around a lease of 2 s: some are back before they are missed
AWAY: Final = (0.1, 12.0)
PAST_LEASE: Final = (4.0, 15.0)
SMALLER: Final = (2.0, 15.0)
NOTICE: Final = (1.0, 20.0)  # some machines are taken before their ranks have moved

KINDS: Final[dict[str, Kind]] = {
    "worker_kill": Kind(text="SIGKILL to a worker", place="rank", begins_recovery=True, costs_s=5),
    "worker_hang": Kind(
        text="SIGSTOP to a worker, for good", place="rank", begins_recovery=True, costs_s=14
    ),
    "worker_stop": Kind(
        text="a worker stopped, and continued", place="rank", lasts_s=SHORT, costs_s=6
    ),
    "warm_kill": Kind(
        text="SIGKILL to a warm parent", place="rank", begins_recovery=True, costs_s=6
    ),
    "warm_stop": Kind(text="a warm parent stopped, and continued", place="rank", lasts_s=SHORT),
    "bulk_kill": Kind(text="SIGKILL to a node's bulk processes", place="rank"),
    "bulk_stop": Kind(text="bulk processes stopped, and continued", place="rank", lasts_s=SHORT),
    "agent_kill": Kind(
        text="SIGKILL to an agent alone", place="rank", begins_recovery=True, costs_s=6
    ),
    "agent_stop": Kind(
        text="an agent stopped, and continued", place="rank", lasts_s=SHORT, costs_s=6
    ),
    "node_kill": Kind(
        text="SIGKILL to all of a node", place="rank", begins_recovery=True, costs_s=8
    ),
    "node_stop": Kind(
        text="all of a node stopped: it returns", place="rank", lasts_s=SHORT, costs_s=7
    ),
    "node_return": Kind(
        text="all of a node frozen past its lease: its place is given away, and it returns",
        place="rank",
        lasts_s=PAST_LEASE,
        begins_recovery=True,
        costs_s=12,
    ),
    "node_drain": Kind(
        text="a node drained on a notice, and all of it killed when that is over",
        place="rank",
        lasts_s=NOTICE,
        costs_s=10,
    ),
    "root_kill": Kind(
        text="SIGKILL to all of the root's node", place="root", begins_recovery=True, costs_s=10
    ),
    "root_stop": Kind(
        text="the root's node stopped: it returns", place="root", lasts_s=SHORT, costs_s=10
    ),
    "standby_kill": Kind(text="SIGKILL to all of a standby", place="standby", costs_s=4),
    "standby_stop": Kind(text="a standby stopped: it returns", place="standby", lasts_s=SHORT),
    "pair_kill": Kind(
        text="SIGKILL to all who keep a shard", place="pair", begins_recovery=True, costs_s=30
    ),
    "pair_stop": Kind(
        text="all who keep a shard stopped: they return", place="pair", lasts_s=SHORT, costs_s=12
    ),
    "rack_kill": Kind(
        text="SIGKILL to all of a rack", place="rack", begins_recovery=True, costs_s=15
    ),
    "rack_stop": Kind(
        text="all of a rack stopped: it returns", place="rack", lasts_s=SHORT, costs_s=12
    ),
    "all_kill": Kind(
        text="SIGKILL to all nodes and standbys", place="all", begins_recovery=True, costs_s=40
    ),
    "all_stop": Kind(text="all nodes stopped: they return", place="all", lasts_s=SHORT, costs_s=12),
    "link_cut": Kind(text="the connection of node and root closed", place="rank"),
    "worker_cut": Kind(
        text="all connections between two workers closed",
        place="rank",
        begins_recovery=True,
        costs_s=5,
    ),
    "link_slow": Kind(
        text="all of a node's traffic at 64 KiB/s",
        place="rank",
        needs="network",
        lasts_s=AWAY,
        costs_s=8,
    ),
    "partition": Kind(
        text="a node cut off from everybody",
        place="rank",
        needs="network",
        lasts_s=AWAY,
        costs_s=10,
    ),
    "partition_out": Kind(
        text="nothing that a node sends arrives",
        place="rank",
        needs="network",
        lasts_s=AWAY,
        costs_s=10,
    ),
    "partition_in": Kind(
        text="nothing that is sent to a node arrives",
        place="rank",
        needs="network",
        lasts_s=AWAY,
        costs_s=10,
    ),
    "clock_step": Kind(
        text="a node's clock set, by up to an hour either way", place="rank", needs="clock"
    ),
    "bit_flip": Kind(text="a bit turned in a node's memory", place="rank"),
    "wrong_sums": Kind(
        text="a node computes wrong from then on: a bit turns in its sums",
        place="rank",
        begins_recovery=True,
        costs_s=8,
        job="verified",
    ),
    "resize": Kind(
        text="the run resized to a node less, and back",
        lasts_s=SMALLER,
        begins_recovery=True,
        costs_s=10,
        job="resizable",
    ),
    "etcd_kill": Kind(text="SIGKILL to etcd", costs_s=4),
    "etcd_stop": Kind(text="etcd stopped, and continued", lasts_s=AWAY, costs_s=4),
    "owner_stop": Kind(text="the run's owner stopped, and continued", lasts_s=SHORT, costs_s=5),
    "owner_kill": Kind(text="SIGKILL to the run's owner", ends_run=True, costs_s=20),
    "log_full": Kind(text="the disk of the run's log full", lasts_s=AWAY, costs_s=5),
    "tier_away": Kind(text="the persistent tier cannot be reached", lasts_s=AWAY),
    "tier_full": Kind(text="the persistent tier's disk full", needs="disk", lasts_s=AWAY),
    "tier_hang": Kind(text="writes to the tier hang", needs="disk", lasts_s=AWAY),
    "tier_slow": Kind(text="writes to the tier crawl", needs="disk", lasts_s=AWAY),
    "tier_flip": Kind(text="a bit turned in the tier's newest shard", spoils_tier=True),
    "tier_torn": Kind(text="the tier's newest manifest cut short", spoils_tier=True),
}
"""Every kind by its name."""
USUAL: Final = tuple(name for name, kind in KINDS.items() if kind.job == "usual")
"""Those that a campaign draws where none is named."""

LATER_S: Final[dict[Moment, float]] = {
    "calm": 2.5,
    "meanwhile": 1.2,
    "together": 0.1,
    "end": 1.0,
}
AIMED_LATER_S: Final = 0.4
TOGETHER_SHARE: Final = 0.2
AIMED_SHARE: Final = 0.25
MEANWHILE_SHARE: Final = 0.4
END_SHARE: Final = 0.2


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that breaks in a run.

    Attributes:
        kind: One of `KINDS`.
        moment: After what it comes: `"calm"`: training goes on, and all that was before is mended;
            `"meanwhile"`: training goes on, and what lasts may still last; `"together"`: the fault
            before it struck; `"end"`: a rank did the last iteration; else the beginning of this
            step of the recovery that the fault before it caused.
        after_s: How long after that.
        rank: Whom it strikes, for the kinds that strike somebody's.
        lasts_s: How long until it is mended; 0 for what is not.
        bit: Which one turns, for the kinds that turn one: any large number. Of a clock, by how much
            it is set; of wrong sums, in what.
    """

    kind: str
    moment: Moment = "calm"
    after_s: float = 0.0
    rank: int = 0
    lasts_s: float = 0.0
    bit: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"no fault is called {self.kind!r}; choose from {', '.join(KINDS)}")
        if min(self.after_s, self.rank, self.lasts_s, self.bit) < 0:
            raise ConfigError(f"{self.kind}: no moment, rank, duration or bit is below 0")

    @property
    def place(self) -> Place:
        """Whose thing it breaks."""
        return KINDS[self.kind].place

    @property
    def step_s(self) -> int:
        """By how much a clock is set: from a second to an hour, either way."""
        return (1 + self.bit // 2 % 3600) * (-1 if self.bit % 2 else 1)

    def __str__(self) -> str:
        where = {
            "rank": f" of rank {self.rank}",
            "pair": f" of shard {self.rank}",
            "rack": f" of rank {self.rank}",
        }
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        when = {
            "calm": "of calm",
            "meanwhile": "of training",
            "together": "after the fault before",
            "end": "after the end",
        }
        return (
            f"{self.kind}{where.get(self.place, '')}{lasts}, {self.after_s:.2f} s "
            f"{when.get(self.moment, f'into {self.moment}')}"
        )


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run, and what it suffers.

    Attributes:
        seed: Of the campaign.
        number: Which of its runs this is.
        nodes: Machines that train.
        standbys: Machines that wait.
        iterations: Of the job.
        faults: In order.
        verifies: Whether the job has every iteration verified.
        resizes: Whether its losses may differ in their last bits once it has been resized.
        keeps: Whether ranks that are not lost keep their process.
    """

    seed: int
    number: int
    nodes: int
    standbys: int
    iterations: int
    faults: tuple[Fault, ...]
    verifies: bool = False
    resizes: bool = False
    keeps: bool = False

    def __post_init__(self) -> None:
        far = [fault.rank for fault in self.faults if fault.rank >= self.nodes]
        if far:
            raise ConfigError(f"a fault strikes rank {far[0]}, but there are {self.nodes} ranks")

    @property
    def needs(self) -> frozenset[Means]:
        """What the run must have for its faults."""
        return frozenset(KINDS[fault.kind].needs for fault in self.faults)

    @property
    def most_lost(self) -> int:
        """How many machines its faults can take, or have replaced, at most."""
        machines = self.nodes + self.standbys
        taken = {"elsewhere": 0, "pair": 2, "rack": (machines + 1) // 2, "all": machines}
        return sum(taken.get(fault.place, 1) for fault in self.faults)

    @property
    def rack_of(self) -> dict[str, str]:
        """The rack of each machine that is there at the start: every other one is in the same."""
        machines = range(self.nodes + self.standbys)
        return {node_name(number): f"rack-{number % 2}" for number in machines}

    def having(self, faults: Sequence[Fault]) -> "Schedule":
        """The same run with other faults."""
        return msgspec.structs.replace(self, faults=tuple(faults))

    def save(self, path: Path) -> None:
        """Write it to a file, for `gemini-lab chaos --replay`."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")

    @classmethod
    def load(cls, path: Path) -> "Schedule":
        """The schedule in a file.

        Raises:
            ConfigError: There is none.
        """
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(
                f"cannot read a schedule from {path} ({error}); a campaign that finds something "
                "writes such files"
            ) from error


def draw(form: Schedule, count: int, *, kinds: Sequence[str], by_time: bool = False) -> Schedule:
    """A schedule of `count` faults of these kinds: always the same one for the same `form`.

    Args:
        form: The run, its campaign's seed and its number; it has no faults yet.
        count: How many, those that come together or in a recovery included.
        kinds: All equally likely. Those that end the run come last, if at all.
        by_time: They are not: each is to take as much time as any other.

    Raises:
        ConfigError: There is no such kind, or none is named.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise ConfigError(
            f"cannot draw faults of the kinds {list(kinds)}; choose from {', '.join(KINDS)}"
        )
    lasting = [kind for kind in kinds if not KINDS[kind].ends_run]
    ending = [kind for kind in kinds if KINDS[kind].ends_run]
    weights = [1 / KINDS[kind].costs_s if by_time else 1.0 for kind in lasting]
    rng = random.Random(f"{form.seed}/{form.number}")
    faults: list[Fault] = []
    while lasting and len(faults) < count:
        moment: Moment = "calm"
        chance = rng.random()
        if faults and chance < TOGETHER_SHARE:
            moment = "together"
        elif faults and _can_aim(faults[-1]) and chance < TOGETHER_SHARE + AIMED_SHARE:
            moment = rng.choice(AIMED)
        elif len(faults) == count - 1 and chance > 1 - END_SHARE:
            moment = "end"
        elif faults and chance < TOGETHER_SHARE + AIMED_SHARE + MEANWHILE_SHARE:
            moment = "meanwhile"
        kind = rng.choices(lasting, weights)[0]
        faults.append(_drawn(rng, kind, moment, ranks=form.nodes))
    if ending and count and (not lasting or rng.random() < 1 / len(kinds) * count):
        faults[count - 1 :] = [_drawn(rng, rng.choice(ending), "calm", ranks=form.nodes)]
    return form.having(faults)


def _can_aim(before: Fault) -> bool:
    return KINDS[before.kind].begins_recovery


def _drawn(rng: random.Random, kind: str, moment: Moment, *, ranks: int) -> Fault:
    lasts_s = KINDS[kind].lasts_s
    return Fault(
        kind=kind,
        moment=moment,
        after_s=round(rng.uniform(0, LATER_S.get(moment, AIMED_LATER_S)), 3),
        rank=rng.randrange(ranks),
        lasts_s=round(rng.uniform(*lasts_s), 3) if lasts_s else 0.0,
        bit=rng.getrandbits(40),
    )
