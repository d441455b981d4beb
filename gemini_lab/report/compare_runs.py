"""Two runs of one script, iteration by iteration and rank by rank: what differs first."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import DIFFERENCES, Iteration, IterationBegun, Rewound
from gemini_lab.recovery.repeats import (
    Account,
    Difference,
    difference,
    differing_generators,
    inputs_difference,
    joined,
)

Accounts = Mapping[tuple[int, int], Account]
"""What a run did, by iteration and rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """The first difference between two runs."""

    iteration: int  # the first that differs
    rank: int
    what: str  # `"batch"`, `"random"`, `"learning_rate"` or the name of a value, such as `"loss"`
    undisturbed: str  # what it is in the run that never failed, to the bit
    disturbed: str

    def __str__(self) -> str:
        return f"{DIFFERENCES.get(self.what, self.what)} of rank {self.rank} in iteration " + str(
            self.iteration
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Twice:
    """Whether a run with failures computed what an undisturbed one did."""

    compared: int  # iterations of ranks that both runs have
    with_values: int  # those among them in which both have a loss or a gradient norm
    # Where they part; `None` where every loss and gradient norm is the same.
    first: FirstDifference | None
    # The first batch, random state or learning rate that differs without any effect on a loss or
    # gradient norm so far.
    silent: FirstDifference | None


def accounts(log: Iterable[Entry], *, until: int | None = None) -> Accounts:
    """Return the account that counts of each iteration and rank: the newest try's last."""
    told: dict[tuple[int, int], Account] = {}
    for entry in log:
        said = entry.event
        if isinstance(said, Rewound):
            for number, rank in [key for key in told if key[1] == said.rank]:
                if number > said.version:
                    del told[number, rank]
        if not isinstance(said, IterationBegun | Iteration):
            continue
        key = said.iteration, said.rank
        known = told.get(key)
        is_known = known is not None and (
            said.epoch < known.epoch
            or (isinstance(said, Iteration) and said.restored and known.is_done)
        )
        if not is_known and (until is None or said.iteration <= until):
            told[key] = joined(known, said)
    return {key: account for key, account in told.items() if account.is_done}


def compare(undisturbed: Accounts, disturbed: Accounts) -> Twice:
    """Compare all that both did, bit by bit.

    A random generator that differs from the very first iteration on was never seeded; what is drawn
    from it shows elsewhere, so it counts for nothing here.
    """
    both = sorted(undisturbed.keys() & disturbed.keys())
    pairs = {key: (undisturbed[key], disturbed[key]) for key in both}
    unseeded = _unseeded(pairs)
    parted = next(_differences(pairs, unseeded, strict=False), None)
    strict = next(_differences(pairs, unseeded, strict=True), None)
    return Twice(
        compared=len(both),
        with_values=sum(bool(one.compared & other.compared) for one, other in pairs.values()),
        first=None if parted is None else strict,
        silent=strict if parted is None else None,
    )


def _unseeded(pairs: Mapping[tuple[int, int], tuple[Account, Account]]) -> set[str]:
    """Return the random generators that are not in the same state when training begins."""
    first = min((iteration for iteration, _ in pairs), default=0)
    begins = [pair for (iteration, _), pair in pairs.items() if iteration == first]
    return {
        name for one, other in begins for name in differing_generators(one.inputs, other.inputs)
    }


def _differences(
    pairs: Mapping[tuple[int, int], tuple[Account, Account]],
    unseeded: Collection[str],
    *,
    strict: bool,
) -> Iterator[FirstDifference]:
    """Give the differences in order; if `strict`, also those that change no loss yet."""
    for (iteration, rank), (one, other) in pairs.items():
        found: Difference | None = None
        if strict and one.inputs is not None and other.inputs is not None:
            found = inputs_difference(one.inputs, other.inputs, unseeded=unseeded)
        found = found or difference(one, other, unseeded=unseeded)
        if found is not None:
            yield FirstDifference(
                iteration=iteration,
                rank=rank,
                what=found.what,
                undisturbed=found.before,
                disturbed=found.after,
            )
