"""Whether an iteration that is done again is what it was before: compared bit by bit.

After a recovery some iterations are done a second time, and at least one is begun a second time.
What is said of it is compared with what was said before. What differs first tells where to look: a
batch, a random state, the learning rate, or none of these.

After a rewind iterations of the same numbers are done with other batches, on purpose: what was said
of them before is forgotten. A recovery may load a version from before a rewind. What follows then
is done as before that, so what was said since is forgotten too, as far as the rewind took it back.

Ranks of another number have other batches, so that nothing of one number is compared with what was
of another. A generator that nobody seeds is in another state after a start from the beginning. It
counts for nothing where an iteration, with all that came out of it, was the same nevertheless.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gemini_lab.log.events import Diverged, Inputs, Iteration, IterationBegun, Number, Rewound
from gemini_lab.recovery.plan import VersionId

NEWEST: Final = 64
"""Iterations of a rank that are kept to compare with; older ones are known to the log alone."""
MOST_SAID: Final = 8
"""Ranks of one start of the job whose first difference is said; the others mostly follow."""
ROUNDING: Final = 1e-4
"""Where only the loss differs, and by no larger share than this, it may be the order of sums."""

CAUSES: Final = {
    "order": "the engine's count of steps is not that of the version: something sets it after "
    "`protect` (such as `engine.load_checkpoint`), or steps are taken outside the loop",
    "batch": "the batch is another one than before: what a loader, its sampler or a generator "
    "counts and draws on the way to a batch was not in the version, or not all of it, whether it "
    "was given as data= or not; or a batch was fetched ahead before the version was made",
    "random": "random numbers were drawn before the failure that are not drawn again (a batch "
    "fetched ahead, a new loader's seed, an evaluation), or by a generator of the script's own; "
    "dropout and sampling follow other numbers from here",
    "learning_rate": "the learning rate is another one than before: what a scheduler or the script "
    "counts to set it was not in the version; scheduler=, also= and client_state= keep it",
}
"""What is likely behind a difference, by what differs first."""
_KNOWN_INPUTS: Final = (
    "the batch, the random state and the learning rate are the same, and what came out is not: "
    "weights, other state that the model computes with (averaged weights, a second engine, "
    "attributes of modules), a random generator of the script's own, or how a machine computes"
)
_UNKNOWN_INPUTS: Final = (
    "the position in the data, the random state, the learning rate or state of the script's own "
    "is another one than before: the log does not say with what these iterations began"
)
_SMALL: Final = "; the difference is small, so it may also be kernels that are not deterministic"


Said = IterationBegun | Iteration
"""What a worker says of an iteration: with what it began, and what came out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """All that one try said of one iteration of one rank."""

    epoch: int  # the try
    inputs: Inputs | None = None  # with what it began; `None` where that was not said
    # What came out; empty where it did not end.
    values: Mapping[str, Number] = field(default_factory=dict)
    is_done: bool = False  # whether it ended
    restored: bool = False  # whether only a version tells of it

    @property
    def compared(self) -> set[str]:
        """The names of its values that say what was computed; a speed or a time does not."""
        return {name for name in self.values if "loss" in name.lower() or "norm" in name.lower()}


def joined(known: Account | None, said: Said) -> Account:
    """Return an iteration's account with one more event; a newer try replaces an older."""
    if known is None or known.epoch < said.epoch:
        known = Account(epoch=said.epoch)
    if isinstance(said, IterationBegun):
        return replace(known, inputs=said.inputs)
    return replace(known, values=said.values, is_done=True, restored=said.restored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first difference between two accounts of one iteration."""

    what: str  # as `Diverged.differs`
    before: str  # what it was, to the bit
    after: str  # what it is
    cause: str  # what is likely behind it, for people


def difference(before: Account, after: Account, *, unseeded: Collection[str]) -> Difference | None:
    """Return the first difference between two accounts of an iteration; `None` for none.

    Where losses or norms are known and equal, another batch or random state was without effect:
    nothing is computed from what differs. The learning rate shows later, so it counts. A value
    that only the earlier account has is still to come, and is waited for.

    Args:
        before: The earlier one.
        after: The later one.
        unseeded: Random generators that count for nothing.
    """
    values = _values_difference(before, after)
    both = before.compared & after.compared
    if before.inputs is None or after.inputs is None or before.compared > both:
        return values
    if both and values is None:
        return _rate_difference(before.inputs, after.inputs)
    return inputs_difference(before.inputs, after.inputs, unseeded=unseeded) or values


def inputs_difference(
    before: Inputs, after: Inputs, *, unseeded: Collection[str]
) -> Difference | None:
    """Return the first difference between two sets of an iteration's inputs."""
    if before.batch != after.batch:
        return _of_inputs("batch", before.batch, after.batch)
    for name in differing_generators(before, after):
        if name not in unseeded:
            was, is_now = (f"{name} {side.random[name]}" for side in (before, after))
            return _of_inputs("random", was, is_now)
    return _rate_difference(before, after)


def are_comparable(before: Account, after: Account) -> bool:
    """Whether both are of the same number of ranks, as far as is known."""
    known = {one.inputs.ranks for one in (before, after) if one.inputs is not None} - {0}
    return len(known) < 2


def differing_generators(before: Inputs | None, after: Inputs | None) -> list[str]:
    """The random generators whose states differ; none where either is not known."""
    if before is None or after is None:
        return []
    both = before.random.keys() & after.random.keys()
    return sorted(name for name in both if before.random[name] != after.random[name])


def _rate_difference(before: Inputs, after: Inputs) -> Difference | None:
    was, is_now = before.learning_rate, after.learning_rate
    if was is None or is_now is None or was == is_now:
        return None
    return _of_inputs("learning_rate", f"{was!r}", f"{is_now!r}")


def _of_inputs(what: str, before: str, after: str) -> Difference:
    return Difference(what=what, before=before, after=after, cause=CAUSES[what])


def _values_difference(before: Account, after: Account) -> Difference | None:
    for name in sorted(before.compared & after.compared, key=_losses_first):
        was, is_now = before.values[name], after.values[name]
        if _bits(was) == _bits(is_now):
            continue
        cause = _KNOWN_INPUTS if before.inputs and after.inputs else _UNKNOWN_INPUTS
        if _share(was, is_now) < ROUNDING:
            cause += _SMALL
        return Difference(what=name, before=_exact(was), after=_exact(is_now), cause=cause)
    return None


class Repeats:
    """Compares what is said of iterations with what was said of the same ones before.

    Memory: `newest` iterations of each rank.

    Args:
        newest: How many to keep of each rank; `None` for all.

    Attributes:
        compared: By epoch, how many iterations of ranks had been begun before, and are compared.
    """

    def __init__(self, *, newest: int | None = NEWEST) -> None:
        self.compared: dict[int, int] = {}
        self._newest = newest
        self._told: dict[int, dict[int, Account]] = {}  # by rank and number
        # Of each rank: its epoch, and the newest that ended; `None` if its words may be lost.
        self._last: dict[int, tuple[int, int | None]] = {}
        self._before: dict[int, tuple[int, Account]] = {}  # of each rank: the one done again now
        self._diverged: dict[int, set[int]] = {}  # ranks, by epoch
        self._unfelt: set[str] = set()  # generators that differed, and nothing else did
        self._left: dict[tuple[int, int], int] = {}  # epoch, rewinds before: version of a rewind

    def learn(self, earlier: Iterable[Said], left: Iterable[VersionId] = ()) -> None:
        """Take in what others remember of earlier iterations; what is known already stays.

        Args:
            earlier: What was said of them.
            left: What rewinds left behind.
        """
        for one in left:
            self._left[one.lineage.epoch, one.lineage.rewinds] = one.version
        for said in earlier:
            known = self._told.get(said.rank, {}).get(said.iteration)
            if known is None or known.epoch <= said.epoch:
                self._keep(said, joined(known, said))

    def take(self, said: Said) -> Diverged | None:
        """Take in what is said of an iteration.

        Returns:
            What differs, once for each rank and epoch, and for a few ranks only.
        """
        epoch, _ = self._last.get(said.rank, (said.epoch, 0))
        known = self._told.get(said.rank, {}).get(said.iteration)
        if said.epoch < max(epoch, 0 if known is None else known.epoch):
            return None  # it arrives late, from workers that were replaced
        is_restored = isinstance(said, Iteration) and said.restored
        account = joined(known, said)
        if known is not None and known.epoch < said.epoch and not is_restored:
            if are_comparable(known, account):
                self._before[said.rank] = said.iteration, known
                self.compared[said.epoch] = self.compared.get(said.epoch, 0) + 1
            else:
                self._before.pop(said.rank, None)
        if not (is_restored and known is not None and known.is_done):  # it knows no more
            self._keep(said, account)
        found = None if is_restored else self._difference(said, account)
        self._note_end(said)
        return None if found is None else self._say(found, said)

    def go_back(self, said: Rewound) -> None:
        """A rank went back: what comes now in the place of what it did need not be the same."""
        epoch, _ = self._last.get(said.rank, (said.epoch, 0))
        if said.epoch < epoch:
            return  # it arrives late, from workers that were replaced
        self._left[said.epoch, said.rewinds - 1] = said.version
        self._forget(said.rank, after=said.version)
        self._last[said.rank] = said.epoch, said.version

    def skip(self, ranks: Iterable[int]) -> None:
        """Expect no certain iteration next of ranks whose newest words may be lost."""
        for rank in ranks:
            if (last := self._last.get(rank)) is not None:
                self._last[rank] = last[0], None

    def restart(self, version: int | None, *, epoch: int, rewinds: int) -> None:
        """All ranks go on from a version that was made in that epoch, after so many rewinds.

        Args:
            version: It; `None`: from the beginning, where iterations that had only begun need not
                begin in the same random state again.
            epoch: Of the start that made it.
            rewinds: How often training had gone back in that.
        """
        if version is None:
            for of_rank in self._told.values():
                for number in [number for number, one in of_rank.items() if not one.is_done]:
                    del of_rank[number]
        made, at_least = (epoch, rewinds), version or 0
        later = [at for line, at in self._left.items() if made <= line and at_least <= at]
        for rank in self._told if later else ():
            self._forget(rank, after=min(later))

    def _forget(self, rank: int, *, after: int) -> None:
        told = self._told.get(rank, {})
        for number in [number for number in told if number > after]:
            del told[number]
        if self._before.get(rank, (0,))[0] > after:
            del self._before[rank]

    def _difference(self, said: Said, account: Account) -> Difference | None:
        number, before = self._before.get(said.rank, (0, account))
        if number != said.iteration:
            return self._out_of_order(said)
        unfelt = () if before.compared else self._unfelt
        found = difference(before, account, unseeded=unfelt)
        if found is None and before.compared and before.compared == account.compared:
            self._unfelt.update(differing_generators(before.inputs, account.inputs))
        return found or self._out_of_order(said)

    def _out_of_order(self, said: Said) -> Difference | None:
        epoch, ended = self._last.get(said.rank, (said.epoch, said.iteration))
        if epoch != said.epoch or ended is None or said.iteration in {ended, ended + 1}:
            return None  # the same one is said again where more was logged afterwards
        return Difference(
            what="order", before=f"{ended + 1}", after=f"{said.iteration}", cause=CAUSES["order"]
        )

    def _note_end(self, said: Said) -> None:
        if isinstance(said, Iteration):
            self._last[said.rank] = said.epoch, said.iteration

    def _keep(self, said: Said, account: Account) -> None:
        of_rank = self._told.setdefault(said.rank, {})
        of_rank[said.iteration] = account
        if self._newest is not None and len(of_rank) > self._newest:
            del of_rank[min(of_rank)]

    def _say(self, found: Difference, said: Said) -> Diverged | None:
        ranks = self._diverged.setdefault(said.epoch, set())
        if said.rank in ranks or len(ranks) >= MOST_SAID:
            return None
        ranks.add(said.rank)
        return Diverged(
            rank=said.rank,
            epoch=said.epoch,
            iteration=said.iteration,
            differs=found.what,
            before=found.before,
            after=found.after,
            cause=found.cause,
        )


def _losses_first(name: str) -> tuple[bool, str]:
    return "loss" not in name.lower(), name


def _bits(number: Number) -> str:
    return number if isinstance(number, str) else float(number).hex()


def _exact(number: Number) -> str:
    """As people and machines read it: the shortest decimal that gives the same bits."""
    return number if isinstance(number, str) else repr(float(number))


def _share(before: Number, after: Number) -> float:
    if isinstance(before, str) or isinstance(after, str):
        return 1.0
    return abs(before - after) / max(abs(before), abs(after), 1e-300)
