"""The faults that a run suffers, one after the other, drawn from a seed: plain values.

A schedule is what one run suffers, fault after fault. The run itself tells a fault's moment, not
the clock alone: so a schedule means the same on a fast machine and on a busy one.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final, get_args

import msgspec

from gemini_lab.errors import ConfigError
from gemini_lab.injector.failures import BitFlip, Failure, LinkCut, Where, WrongSums
from gemini_lab.seats import node_name
from gemini_lab_bench.chaos.kinds import AIMED, KINDS, Means, Moment, Place

LATER_S: Final[dict[Moment, float]] = {
    "calm": 2.5,
    "meanwhile": 1.2,
    "together": 0.1,
    "save": 0.3,
    "commit": 0.05,
    "end": 1.0,
}
AIMED_LATER_S: Final = 0.4
TOGETHER_SHARE: Final = 0.2
AIMED_SHARE: Final = 0.25
MEANWHILE_SHARE: Final = 0.4
END_SHARE: Final = 0.2
BESIDE_SHARE: Final = 0.7
AT_END_S: Final = 0.05
PAUSE_S: Final = (0.2, 4.0)


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that breaks in a run."""

    kind: str  # one of `KINDS`
    # After what it comes: `"calm"`: training goes on, and all that was before is mended;
    # `"meanwhile"`: training goes on, and what lasts may still last; `"together"`: the fault before
    # it struck; `"end"`: a rank did the last iteration; else the beginning of this step of the
    # recovery that the fault before it caused.
    moment: Moment = "calm"
    after_s: float = 0.0  # how long after that
    rank: int = 0  # whom it strikes, for the kinds that strike somebody's
    lasts_s: float = 0.0  # how long until it is mended; 0 for what is not
    # Which one turns, for the kinds that turn one: any large number. Of a clock, by how much it is
    # set; of wrong sums, in what; of others, which of several.
    bit: int = 0
    times: int = 1  # how often it comes, each time for as long
    pause_s: float = 0.0  # how long it is mended between these

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"no fault is called {self.kind!r}; choose from {', '.join(KINDS)}")
        if min(self.after_s, self.rank, self.lasts_s, self.bit, self.times, self.pause_s) < 0:
            raise ConfigError(f"{self.kind}: no moment, rank, duration, bit or count is below 0")

    @property
    def place(self) -> Place:
        return KINDS[self.kind].place

    def failure(self, *, ranks: int) -> Failure:
        """Return the injector's failure that the run's owner is asked for.

        Raises:
            ConfigError: The injector has no such failure.
        """
        place, wheres = f"rank-{self.rank}", get_args(Where)
        match self.kind:
            case "link_cut":
                return LinkCut(place)
            case "worker_cut":
                return LinkCut(place, to=f"rank-{(self.rank + 1) % ranks}")
            case "bit_flip":
                return BitFlip(place, self.rank)
            case "wrong_sums":
                return WrongSums(place, wheres[self.bit % len(wheres)], seed=self.bit % 2**31)
        raise ConfigError(f"the injector has no {self.kind}; strike from outside of the run")

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
        if self.times > 1:
            lasts += f", {self.times} times with {self.pause_s:.1f} s between"
        when = {
            "calm": "of calm",
            "meanwhile": "of training",
            "together": "after the fault before",
            "save": "after a save has begun",
            "commit": "after a version is saved",
            "end": "after the end",
        }
        return (
            f"{self.kind}{where.get(self.place, '')}{lasts}, {self.after_s:.2f} s "
            f"{when.get(self.moment, f'into {self.moment}')}"
        )


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run, and what it suffers."""

    seed: int  # of the campaign
    number: int  # which of its runs this is
    nodes: int  # machines that train
    standbys: int  # machines that wait
    iterations: int  # of the job
    faults: tuple[Fault, ...]  # in order
    verifies: bool = False  # whether the job has every iteration verified
    # Whether its losses may differ in their last bits once it has been resized.
    resizes: bool = False
    keeps: bool = False  # whether ranks that are not lost keep their process
    differs: bool = False  # whether its ranks are stages, which layers are cut over

    def __post_init__(self) -> None:
        far = [fault.rank for fault in self.faults if fault.rank >= self.nodes]
        if far:
            raise ConfigError(f"a fault strikes rank {far[0]}, but there are {self.nodes} ranks")

    @property
    def needs(self) -> frozenset[Means]:
        """The means that the run must have for its faults."""
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
        return msgspec.structs.replace(self, faults=tuple(faults))

    def save(self, path: Path) -> None:
        """Write it to a file, for `gemini-lab chaos --replay`."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")

    @classmethod
    def load(cls, path: Path) -> "Schedule":
        """Return the schedule in a file.

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
    """Return a schedule of `count` faults of these kinds: always the same one for the same `form`.

    Args:
        form: The run, its campaign's seed and its number; it has no faults yet.
        count: How many, those that come together or in a recovery included.
        kinds: All equally likely. Those that end the run come last, if at all. With some of them
            another one strikes mostly, `Kind.beside`, which need not be among them.
        by_time: They are not: each is to take as much time as any other.

    Raises:
        ConfigError: There is no such kind, or none is named.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise ConfigError(
            f"cannot draw faults of the kinds {list(kinds)}; choose from {', '.join(KINDS)}"
        )
    ending = [kind for kind in kinds if _comes_last(kind)]
    lasting = [kind for kind in kinds if kind not in ending]
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
        if (beside := KINDS[kind].beside) and len(faults) < count and rng.random() < BESIDE_SHARE:
            faults.append(_drawn(rng, rng.choice(beside), "together", ranks=form.nodes))
    if ending and count and (not lasting or rng.random() < 1 / len(kinds) * count):
        faults[count - 1 :] = [_drawn(rng, rng.choice(ending), "calm", ranks=form.nodes)]
    return form.having(faults)


def _comes_last(kind: str) -> bool:
    return KINDS[kind].ends_run or KINDS[kind].at == ("end",)


def _can_aim(before: Fault) -> bool:
    return KINDS[before.kind].begins_recovery


def _drawn(rng: random.Random, kind: str, moment: Moment, *, ranks: int) -> Fault:
    lasts_s, at = KINDS[kind].lasts_s, KINDS[kind].at
    if at and moment != "together":
        moment = rng.choice(at)
    later_s = AT_END_S if at == ("end",) else LATER_S.get(moment, AIMED_LATER_S)
    fault = Fault(
        kind=kind,
        moment=moment,
        after_s=round(rng.uniform(0, later_s), 3),
        rank=rng.randrange(ranks),
        lasts_s=round(rng.uniform(*lasts_s), 3) if lasts_s else 0.0,
        bit=rng.getrandbits(40),
    )
    if not KINDS[kind].repeats:
        return fault
    times, pause_s = rng.choice((1, 1, 2, 3)), round(rng.uniform(*PAUSE_S), 3)
    return msgspec.structs.replace(fault, times=times, pause_s=pause_s)
