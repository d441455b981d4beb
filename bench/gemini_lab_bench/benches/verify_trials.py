"""Trials of real ranks of which one is struck, or none: who is named, and who is accused."""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, get_args

from gemini_lab.injector.failures import Where
from gemini_lab_bench.benches.verify_ranks import (
    EngineName,
    Outcome,
    Strike,
    Trial,
    node_name,
    outcomes,
)
from gemini_lab_bench.rows import Row

RANKS: Final = (3, 4, 5)
_MOST_REPLAYS: Final = 2
_REAL: Final = {
    "real": "processes, Gloo, engines, turned bits, replays, the verdict",
    "not": "machines (names alone), agents, versions, what follows a verdict",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """A trial in which one machine was struck.

    Attributes:
        trial: What was done.
        outcome: What came of it.
    """

    trial: Trial
    outcome: Outcome

    @property
    def is_named(self) -> bool:
        """Whether this machine was named at once, it alone, within two replays."""
        strike, found = self.trial.strike, self.outcome.found
        if strike is None or found is None:
            return False
        return (
            found.verdict.wrong == (node_name(strike.rank),)
            and found.verdict.is_sure
            and found.replays <= _MOST_REPLAYS
        )

    @property
    def accuses_another(self) -> bool:
        """Whether a machine was named that was not struck."""
        strike, found = self.trial.strike, self.outcome.found
        if strike is None or found is None:
            return False
        return bool({*found.verdict.wrong} - {node_name(strike.rank)})


def strikes(count: int) -> Iterator[tuple[int, Trial]]:
    """So many trials with the number of their ranks; every kind of strike is as likely."""
    drawn = random.Random(0)
    kinds = [
        *itertools.product(get_args(EngineName), get_args(Where), (True, False), (True, False))
    ]
    drawn.shuffle(kinds)
    for number, (engine, where, lasts, in_replay) in zip(
        range(count), itertools.cycle(kinds), strict=False
    ):
        ranks = RANKS[number % len(RANKS)]
        strike = Strike(rank=drawn.randrange(ranks), where=where, lasts=lasts, in_replay=in_replay)
        yield ranks, Trial(engine=engine, seed=number, strike=strike)


def struck(count: int) -> list[Struck]:
    """Carry out so many trials with a strike each."""
    drawn = [*strikes(count)]
    found: list[Struck] = []
    for ranks in RANKS:
        trials = [trial for of, trial in drawn if of == ranks]
        found += itertools.starmap(
            lambda trial, outcome: Struck(trial=trial, outcome=outcome),
            zip(trials, outcomes(trials, ranks=ranks), strict=True),
        )
    return found


def undisturbed(iterations: int) -> list[Outcome]:
    """Have at least so many iterations verified that nothing disturbs, with each engine."""
    engines = get_args(EngineName)
    share = -(-iterations // len(engines))
    trials = [Trial(engine=one, seed=7, iterations=share) for one in engines]
    return outcomes(trials, ranks=RANKS[0])


def rows_of(tries: Sequence[Struck], clean: Sequence[Outcome]) -> list[Row]:
    """Who was named and who was accused, in numbers."""
    rows = [
        Row(
            name=f"{where} of real ranks: of {len(of)}, the machine was named",
            unit="",
            values=(float(sum(one.is_named for one in of)),),
            settings=_REAL,
        )
        for where in get_args(Where)
        if (of := [one for one in tries if one.trial.strike and one.trial.strike.where == where])
    ]
    replays = [one.outcome.found.replays for one in tries if one.outcome.found is not None]
    verified = sum(one.clean for one in clean)
    return [
        *rows,
        _count("of all, another machine was named", sum(one.accuses_another for one in tries)),
        _count("most replays until it was", max(replays, default=0)),
        _count(
            f"undisturbed iterations of real ranks: of {verified}, with an accusation",
            sum(one.found is not None for one in clean),
        ),
    ]


def _count(name: str, value: float) -> Row:
    return Row(name=name, unit="", values=(float(value),), settings=_REAL)
