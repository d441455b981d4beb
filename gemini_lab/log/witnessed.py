"""The records that a script's processes write for `gemini-lab check`, and their comparison.

Each rank appends lines to a file of its own, with a lab and without one. They tell the places that
its script comes to, with what each iteration began and what came out, and a digest of each named
piece of its state; `gemini_lab.engine.witness` writes them. A rank that is to be killed says so and
stands still at its place, because a kill from outside strikes at no exact place.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from gemini_lab.errors import ConfigError
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Iteration, IterationBegun, OfWorker

ORDER_VARIABLE: Final = "GEMINI_LAB_CHECK"
"""The variable by which a check tells its script's processes what to do."""
GENERATOR: Final = "generator "
"""How the names of the shared random generators begin."""
HANDED_OVER: Final = ("client_state", "also[")
"""How the names begin of what a script hands over to `protect`."""
PlaceName = Literal[
    "update",
    "forward",
    "second pass",
    "between steps",
    "batches over",
    "evaluation",
    "loop begins",
    "loop over",
    "script over",
]
PLACES: Final[Mapping[PlaceName, str]] = {
    "batches over": "after iteration {done}, when the epoch had no batch left",
    "evaluation": "in an evaluation after iteration {done}",
    "loop over": "when a loop was over, after iteration {done}",
    "loop begins": "before the next loop, after iteration {done}",
    "script over": "at the script's end, after iteration {done}",
    "forward": "in iteration {next}",
    "second pass": "in the second forward pass of iteration {next}",
    "update": "at the update of iteration {next}",
    "between steps": "between two optimizers' steps of iteration {next}",
}
"""The places of one version, in the order in which a script comes to them, with words for users."""


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """A place at which a rank is to stand still until it is killed."""

    number: int  # which of a run's kills, from 1
    place: PlaceName  # what the script does there
    version: int  # updates that are done there
    rank: int  # whose script
    loses_node: bool = False  # whether its whole node is killed
    is_at_root: bool = False  # whether that is the root agent's node, wherever the rank runs

    def __str__(self) -> str:
        node = "the root agent's node" if self.is_at_root else f"node of rank {self.rank}"
        where = PLACES[self.place].format(done=self.version, next=self.version + 1)
        return f"{node if self.loses_node else f'rank {self.rank}'} killed {where}"


class WitnessOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The instructions to the processes of a run under a check."""

    folder: str  # where they write
    iterations: int  # after how many they write down the values of their state
    kills: tuple[Kill, ...] = ()  # where they are to be killed

    def to_variable(self) -> dict[str, str]:
        return {ORDER_VARIABLE: msgspec.json.encode(self).decode()}

    @staticmethod
    def of(environment: Mapping[str, str]) -> "WitnessOrder | None":
        """Return the order that this process was given; `None` without a check.

        Raises:
            ConfigError: The variable has no order in it.
        """
        told = environment.get(ORDER_VARIABLE)
        if not told:
            return None
        try:
            return msgspec.json.decode(told, type=WitnessOrder)
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"{ORDER_VARIABLE} is no order of `gemini-lab check`, which alone sets it "
                f"({error}); unset it"
            ) from error


class PlaceSeen(OfWorker, frozen=True, kw_only=True):
    """A rank's script has come to a place, for the first time since its process began."""

    place: PlaceName  # which
    version: int  # updates that are done there


class Struck(OfWorker, frozen=True, kw_only=True):
    """A rank stands still where it is to be killed."""

    number: int  # that of the kill


class StateSeen(OfWorker, frozen=True, kw_only=True):
    """A rank's state where an iteration ends."""

    version: int  # updates that are done
    is_end: bool = False  # whether the script is over
    digests: dict[str, str]  # of each piece, by name


Record = PlaceSeen | Struck | StateSeen | IterationBegun | Iteration
_RECORD: Final = msgspec.json.Decoder(Record)


def records_file(folder: Path, rank: int) -> Path:
    """Return the file of a rank's records."""
    return folder / f"rank-{rank}.jsonl"


def values_file(folder: Path, rank: int) -> Path:
    """Return the file of a rank's final state values."""
    return folder / f"rank-{rank}.pt"


def append(file: Path, record: Record) -> None:
    """Add a record to a rank's file: a process that is killed leaves whole lines."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(record) + b"\n")
    finally:
        os.close(descriptor)


def read(file: Path) -> list[Record]:
    """Return a rank's records so far, in their order."""
    try:
        lines = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [_RECORD.decode(line) for line in lines[:-1]]  # what follows the last is not whole


class Records:
    """The records of all ranks of a run, read as they grow."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.folder, self.ranks = folder, ranks
        self.all: list[Record] = []  # their records, each rank's in its order
        self._read = [0] * ranks

    def news(self) -> list[Record]:
        """Return the records written since the last call."""
        new: list[Record] = []
        for rank in range(self.ranks):
            try:
                with records_file(self.folder, rank).open("rb") as file:
                    file.seek(self._read[rank])
                    told = file.read()
            except FileNotFoundError:
                continue
            whole = told[: told.rfind(b"\n") + 1]
            self._read[rank] += len(whole)
            new += (_RECORD.decode(line) for line in whole.splitlines())
        self.all += new
        return new

    @property
    def entries(self) -> Iterator[Entry]:
        """The records of iterations, as entries of a log."""
        for one in self.all:
            if isinstance(one, IterationBegun | Iteration):
                yield Entry(at_s=0.0, node="", event=one)

    def of(self, *kinds: type[Record]) -> Iterator[Record]:
        return (one for one in self.all if isinstance(one, kinds))


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDifference:
    """The first difference between the states of two runs."""

    version: int  # the first that differs
    is_end: bool  # whether only what the script did afterwards differs
    rank: int  # the first rank in it
    epoch: int  # the start of the second run that made it
    pieces: tuple[str, ...]  # what differs, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class StatesCompared:
    """Whether two runs came to the same states."""

    states: int  # how many states of ranks both have
    pieces: int  # how many pieces each of these has at most
    first: StateDifference | None  # where they part; `None`: nowhere


def compare_states(
    one: Iterable[Record], other: Iterable[Record], *, unsteady: Collection[str] = ()
) -> StatesCompared:
    """Compare the states that two runs came to, each by its newest try.

    A random generator that differs from the first state on was never seeded: it counts for nothing.
    So does a piece that one of the runs never has, as a library's adapter has in a lab alone, and
    one of `unsteady`.
    """
    left, right = _states(one), _states(other)
    known, also_known = ({n for s in run.values() for n in s.digests} for run in (left, right))
    both = sorted(left.keys() & right.keys())
    unseeded = {
        name
        for key in both
        if key[:2] == both[0][:2]
        for name in differing(left[key].digests, right[key].digests)
        if name.startswith(GENERATOR)
    }
    first = None
    for key in both:
        found = differing(left[key].digests, right[key].digests)
        ignored = unseeded | (known ^ also_known) | {*unsteady}
        pieces = tuple(name for name in found if name not in ignored)
        if pieces:
            version, is_end, rank = key
            first = StateDifference(
                version=version, is_end=is_end, rank=rank, epoch=right[key].epoch, pieces=pieces
            )
            break
    most = max((len(left[key].digests) for key in both), default=0)
    return StatesCompared(states=len(both), pieces=most, first=first)


def differing_anywhere(one: Iterable[Record], other: Iterable[Record]) -> set[str]:
    """Return the pieces that differ in any state that both runs reached, by name."""
    left, right = _states(one), _states(other)
    both = left.keys() & right.keys()
    return {name for key in both for name in differing(left[key].digests, right[key].digests)}


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return the names of the pieces that differ or that one lacks, in order."""
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def _states(records: Iterable[Record]) -> dict[tuple[int, bool, int], StateSeen]:
    return {
        (one.version, one.is_end, one.rank): one for one in records if isinstance(one, StateSeen)
    }


def choose_kills(records: Sequence[Record], *, iterations: int, most: int) -> tuple[Kill, ...]:
    """Return the next run's kills, at places that an undisturbed run reached.

    Each kind of place has one kill, in different epochs if there are several, because a place that
    is done again with another one proves less. Ranks take turns, because those of a pipeline
    differ. If there are more kinds than kills, those that come first in the list below are kept.
    """
    seen = [one for one in records if isinstance(one, PlaceSeen) and one.version <= iterations]
    steps = sorted({one.version for one in seen if one.place == "update"} - {iterations})
    ends = sorted({one.version for one in seen if one.place == "batches over"})
    if not steps:
        return ()
    chosen: list[Kill] = []

    def take(place: PlaceName, versions: Iterable[int], **loses: bool) -> None:
        there = [one for one in versions if any((s.place, s.version) == (place, one) for s in seen)]
        if loses:
            # A rank may be an iteration ahead of another one, so nodes that are to be lost at
            # neighbouring versions could be lost at once, and both copies of a shard with them.
            lost = [kill.version for kill in chosen if kill.loses_node]
            there = [one for one in there if all(abs(one - other) > 1 for other in lost)]
        taken = {kill.version for kill in chosen}
        if there:
            version = next((one for one in there if one not in taken), there[0])
            chosen.append(Kill(number=0, place=place, version=version, rank=0, **loses))

    def around(version: int) -> list[int]:
        return sorted(steps, key=lambda one: abs(one - version))

    later = sorted({one.version for one in seen if one.version > 0})
    take("update", steps[:1])
    middle = (ends[0] + ends[1]) // 2 if len(ends) > 1 else (steps[-1] + steps[0]) // 3
    take("forward", around(middle))
    take("evaluation", later)
    take("batches over", later)
    take("second pass", around(middle))
    take("loop begins", later)
    take("forward", around(2 * steps[-1] // 3), loses_node=True)
    take("between steps", around(steps[-1] // 3), loses_node=True)
    take("forward", around(steps[-1] // 2), loses_node=True, is_at_root=True)
    take("update", steps[::-1])
    take("script over", later[::-1])
    take("loop over", later[::-1])
    turn = list(PLACES)
    kept = sorted(chosen[:most], key=lambda kill: (kill.version, turn.index(kill.place)))
    struck: Counter[int] = Counter()
    kills = []
    for number, kill in enumerate(kept, 1):
        there = (kill.place, kill.version)
        ranks = [one.rank for one in seen if (one.place, one.version) == there]
        # The last rank is of a pipeline's last stage, whose backward passes have begun by then.
        is_last = kill.place == "second pass"
        rank = max(ranks, key=lambda one: (0 if is_last else -struck[one], one))
        struck[rank] += 1
        kills.append(msgspec.structs.replace(kill, number=number, rank=rank))
    return tuple(kills)
