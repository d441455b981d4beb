"""Scenario: failures by iteration, by clock, or drawn from a seed and a rate.

The cluster and the simulator take the same scenario, in memory or as a file:

    {"seed": 7, "failures": [{"iteration": 4, "kind": "node_loss", "node": "node-2"}]}
"""

import json
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from gemini_lab.errors import ConfigError, kind_of, shown
from gemini_lab.injector.failures import (
    FAILURES,
    BitFlip,
    Failure,
    NodeLoss,
    NodesLoss,
    RackLoss,
    WorkerCrash,
    rank_of,
)
from gemini_lab.limits import read_file
from gemini_lab.units import LARGEST, check_number

MOST_FAILURES: Final = 10_000
"""Of a scenario."""
_USUAL: Final = ("worker_crash", "node_loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A failure and its moment; one of the two moments is given.

    Attributes:
        failure: What breaks.
        iteration: It comes once this many iterations are done; with a fraction, so far into the
            next one.
        at_s: It comes this long after training began.
    """

    failure: Failure
    iteration: float | None = None
    at_s: float | None = None

    def __post_init__(self) -> None:
        if (self.iteration is None) == (self.at_s is None):
            raise ConfigError(
                f"say when {self.failure} comes, by iteration= or at_s= but not both "
                f"(got iteration={shown(self.iteration)}, at_s={shown(self.at_s)})"
            )
        for name in ("iteration", "at_s"):
            if (moment := getattr(self, name)) is not None:
                check_number(name, moment)

    @property
    def when(self) -> str:
        """The moment, for people."""
        return f"iteration {self.iteration:g}" if self.at_s is None else f"{self.at_s:g} s"

    def is_due(self, *, iteration: float, elapsed_s: float) -> bool:
        """Return whether it is due after `iteration` iterations and `elapsed_s` seconds."""
        if self.iteration is not None:
            return iteration >= self.iteration
        return self.at_s is not None and elapsed_s >= self.at_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """An ordered list of failures; methods that add one give a new scenario.

    Attributes:
        seed: Decides what a failure leaves open, such as which bit turns.
        planned: The failures with their moments, in the order in which they were added.
    """

    seed: int = 0
    planned: tuple[Planned, ...] = ()

    def __post_init__(self) -> None:
        check_number("seed", self.seed, least=-LARGEST, is_whole=True)
        if len(self.planned) > MOST_FAILURES:
            raise ConfigError(
                f"a scenario of {len(self.planned):,} failures is more than a run survives; give "
                f"{MOST_FAILURES:,} at most"
            )

    def add(
        self, failure: Failure, *, iteration: float | None = None, at_s: float | None = None
    ) -> "Scenario":
        """This scenario and one more failure."""
        more = Planned(failure=failure, iteration=iteration, at_s=at_s)
        return replace(self, planned=(*self.planned, more))

    def lose(
        self,
        *,
        node: str | int | Sequence[str | int],
        iteration: float | None = None,
        at_s: float | None = None,
    ) -> "Scenario":
        """This scenario and the loss of a node, or of several at once; 2 means `"node-2"`."""
        failure: Failure
        if not isinstance(node, (str, int, Sequence)):
            raise ConfigError(f'node= is {kind_of(node)}; give 2, "node-2", or a list of such')
        if isinstance(node, (str, int)):
            failure = NodeLoss(_name(node))
        else:
            failure = NodesLoss(tuple(map(_name, node)))
        return self.add(failure, iteration=iteration, at_s=at_s)

    def crash(
        self, *, rank: int, iteration: float | None = None, at_s: float | None = None
    ) -> "Scenario":
        """This scenario and the crash of one worker."""
        check_number("rank", rank, is_whole=True)
        return self.add(WorkerCrash(f"rank-{rank}"), iteration=iteration, at_s=at_s)

    def due(self, *, iteration: float, elapsed_s: float) -> tuple[tuple[Failure, ...], "Scenario"]:
        """Return the failures that are due now, and the remaining scenario.

        Args:
            iteration: Iterations done, and how much of the next one; see `Pace`.
            elapsed_s: Time since training began.
        """
        is_due = [p.is_due(iteration=iteration, elapsed_s=elapsed_s) for p in self.planned]
        coming = tuple(p.failure for p, now in zip(self.planned, is_due, strict=True) if now)
        left = tuple(p for p, now in zip(self.planned, is_due, strict=True) if not now)
        return coming, replace(self, planned=left)

    def check(self, *, nodes: int, ranks: int, racks: Sequence[str] = ()) -> None:
        """Refuse a scenario that names what a lab does not have and will not get.

        Args:
            nodes: Nodes with which the lab begins, standbys included.
            ranks: How many ranks the job has.
            racks: Names of the racks.

        Raises:
            ConfigError: Something in it is not there.
        """
        # Each machine that replaces a lost one has a new name, with the next number.
        last = max(100, 10 * nodes) - 1
        first = "node-0" if nodes == 1 else f"node-0 to node-{nodes - 1}"
        for planned in self.planned:
            failure, missing = planned.failure, ""
            for place in failure.places:
                rank = rank_of(place)
                if rank is not None and rank >= ranks:
                    missing, known = place, f"ranks go from 0 to {ranks - 1}"
                elif place.startswith("node-") and int(place.removeprefix("node-")) > last:
                    known = f"the lab starts with {first}, and later machines count on to {last}"
                    missing = place
            if isinstance(failure, RackLoss) and failure.rack not in racks:
                known = f"racks are {', '.join(racks)}" if racks else "the lab has no racks"
                missing = failure.rack
            if missing:
                raise ConfigError(
                    f"{failure} at {planned.when} names {missing!r}, which is not there; {known}"
                )

    def to_json(self) -> dict[str, object]:
        """Plain values, as in a scenario file."""
        failures: list[dict[str, object]] = []
        for one in self.planned:
            by_iteration = one.iteration is not None
            when = {"iteration": one.iteration} if by_iteration else {"at_s": one.at_s}
            failures.append({**when, **one.failure.to_json()})
        return {"seed": self.seed, "failures": failures}

    @classmethod
    def from_json(cls, record: Mapping[str, object]) -> "Scenario":
        """Return the scenario that `to_json` gave as `record`.

        Raises:
            ConfigError: Something in it is wrong; the message says which entry.
        """
        unknown = set(record) - {"seed", "failures"}
        if unknown or not isinstance(record.get("failures", []), list):
            raise ConfigError(
                f"a scenario has 'seed' and a list 'failures' (got {shown(sorted(record))}); "
                'such as {"seed": 7, "failures": []}'
            )
        told: dict[str, Any] = dict(record)  # every value is checked where it is used
        planned: list[Planned] = []
        for number, entry in enumerate(told.get("failures", [])[: MOST_FAILURES + 1]):
            try:
                values = dict(entry)
                when = {key: values.pop(key) for key in ("iteration", "at_s") if key in values}
                planned.append(Planned(failure=Failure.from_json(values), **when))
            except (ConfigError, TypeError, ValueError) as error:
                raise ConfigError(f"failure number {number} of the scenario: {error}") from error
        return cls(seed=told.get("seed", 0), planned=tuple(planned))

    def save(self, path: Path | str) -> None:
        """Write the scenario to a file."""
        Path(path).write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path | str) -> "Scenario":
        """Return the scenario in the file at `path`.

        Raises:
            ConfigError: There is no such file, or it is not a scenario.
        """
        try:
            record = json.loads(read_file(Path(path)))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"cannot read a scenario from {path} ({error}); Scenario.save writes such files"
            ) from error
        if not isinstance(record, dict):
            raise ConfigError(f"{path} holds no scenario but a {type(record).__name__}")
        return cls.from_json(record)

    @classmethod
    def random(
        cls,
        seed: int,
        *,
        ranks: int,
        iterations: int | None = None,
        mean_iterations: float | None = None,
        duration_s: float | None = None,
        rate_per_s: float | None = None,
        kinds: Sequence[str] = _USUAL,
        racks: Sequence[str] = (),
    ) -> "Scenario":
        """Failures that come as a Poisson process, the same ones for the same arguments.

        Give `iterations` and `mean_iterations`, or `duration_s` and `rate_per_s`. Moments fall
        anywhere within an iteration, as a failure's loss depends on where. Places are drawn
        among the ranks, since a node's name may be gone by the time a failure comes.

        Args:
            seed: Of all that is drawn.
            ranks: How many ranks the job has; all are equally likely.
            iterations: Draw until this iteration.
            mean_iterations: Mean number of iterations between failures.
            duration_s: Draw until this time.
            rate_per_s: Failures a second, of all kinds together.
            kinds: Names of the kinds in `FAILURES`, all equally likely.
            racks: Names of the racks, for `rack_loss`.

        Raises:
            ConfigError: A rate is not above zero, or it is not clear how long to draw.
        """
        by_iteration = iterations is not None and mean_iterations is not None
        by_clock = duration_s is not None and rate_per_s is not None
        given = [iterations, mean_iterations, duration_s, rate_per_s]
        if by_iteration == by_clock or sum(value is not None for value in given) != 2:
            raise ConfigError(
                "a random scenario needs iterations= and mean_iterations=, "
                "or duration_s= and rate_per_s="
            )
        check_number("ranks", ranks, least=1, is_whole=True)
        names = ("iterations", "mean_iterations", "duration_s", "rate_per_s")
        for name, value in zip(names, given, strict=True):
            if value is not None:
                check_number(name, value, is_above=True)
        unknown = [kind for kind in kinds if kind not in FAILURES]
        if unknown or not kinds or ("rack_loss" in kinds and not racks):
            raise ConfigError(
                f"cannot draw failures of kinds {list(kinds)} with racks {list(racks)}; choose "
                f"kinds from {', '.join(FAILURES)}, and name racks for rack_loss"
            )
        check_number("seed", seed, least=-LARGEST, is_whole=True)
        generator = random.Random(seed)
        rate = 1 / (mean_iterations or 1) if by_iteration else rate_per_s or 0.0
        until = iterations or duration_s or 0.0
        if rate * until > MOST_FAILURES / 2:  # or chance might draw more than a scenario has
            raise ConfigError(
                f"that is about {rate * until:g} failures; have {MOST_FAILURES // 2:,} at most"
            )
        planned = []
        for moment in _poisson(generator, rate, until=until):
            failure = _drawn(generator, generator.choice(list(kinds)), ranks, racks)
            if by_iteration:
                planned.append(Planned(failure=failure, iteration=moment))
            else:
                planned.append(Planned(failure=failure, at_s=moment))
        return cls(seed=seed, planned=tuple(planned))

    def __str__(self) -> str:
        lines = [f"{planned.when}: {planned.failure}" for planned in self.planned]
        return "\n".join(lines) or "no failures"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{p.when}</td><td>{p.failure}</td></tr>" for p in self.planned)
        return f"<table><tr><th>when</th><th>failure</th></tr>{rows}</table>"


def _name(node: str | int) -> str:
    if isinstance(node, str):
        return node
    check_number("node", node, is_whole=True)
    return f"node-{node}"


def _poisson(generator: random.Random, rate: float, *, until: float) -> Iterator[float]:
    """Yield the moments of a Poisson process before `until`."""
    moment = generator.expovariate(rate)
    while moment < until:
        yield moment
        moment += generator.expovariate(rate)


def _drawn(generator: random.Random, kind: str, ranks: int, racks: Sequence[str]) -> Failure:
    """Return a failure of `kind` somewhere among the ranks or racks."""
    if kind in {"root_loss", "store_full"}:
        return FAILURES[kind]()
    if kind == "rack_loss":
        return RackLoss(generator.choice(list(racks)))
    if kind == "nodes_loss":
        pair = generator.sample(range(ranks), min(2, ranks))
        return NodesLoss(tuple(f"rank-{rank}" for rank in pair))
    place = f"rank-{generator.randrange(ranks)}"
    if kind == "bit_flip":
        return BitFlip(place, generator.randrange(ranks))
    return Failure.from_json({"kind": kind, "node": place})


ALMOST: Final = 0.999
"""An iteration that takes longer than those before it is not over yet."""
LENGTHS: Final = 5
"""How many iterations tell how long one takes; a recovery is in at most one of them."""


class Pace:
    """Follows the ends of iterations, and takes the one under way to be as long as the last ones.

    Before two have ended no length is known, and an iteration counts as just begun.
    """

    def __init__(self) -> None:
        self._done = 0
        self._ended_s = 0.0
        self._lengths_s: deque[float] = deque(maxlen=LENGTHS)

    def end(self, done: int, at_s: float) -> None:
        """`done` iterations are over at `at_s`, by any clock that runs on."""
        if done == self._done:
            return
        if done == self._done + 1 and self._done:  # the first one begins with the run's start
            self._lengths_s.append(at_s - self._ended_s)
        self._done, self._ended_s = done, at_s

    def at(self, now_s: float) -> float:
        """Iterations that are over, and how much of the next one."""
        length_s = median(self._lengths_s) if self._lengths_s else 0.0
        if length_s <= 0:
            return self._done
        return self._done + min(ALMOST, max(0.0, now_s - self._ended_s) / length_s)
