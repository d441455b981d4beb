"""A root agent's decisions under attack: which failures, at which moments, break a run?

Simulated labs run with it: the real agents, message by message, on a virtual clock. All single
failures at many moments come first, in the smallest lab there is, then pairs of which the second
strikes the recovery, then random ones in larger labs. What is found is made smaller for as long as
it still breaks.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab_bench.world.schedule import PHASES, ROOT, Happening
from gemini_lab_bench.world.seeds import smaller_ones
from gemini_lab_bench.world.story import FAILURES
from gemini_lab_bench.world.world import WorldShape
from gemini_lab_course.attacks.outcome import (
    BesideOurs,
    Counterexample,
    StageFault,
    Withstood,
    counted,
)
from gemini_lab_course.attacks.search import NOTHING, Patience
from gemini_lab_course.attacks.stories import (
    NEVER,
    MakeRoot,
    Story,
    of_function,
    of_the_lab,
    tell,
)
from gemini_lab_course.own_root.process import packed
from gemini_lab_course.verdict import WrongAnswerError

Failure = tuple[str, *tuple[int, ...]]
"""A kind of failure, and whole numbers about it."""
SMALL: Final = WorldShape(nodes=2, standbys=1, has_tier=False, iterations=4)
SPARE: Final = WorldShape(nodes=2, standbys=2, has_tier=False, iterations=8)
RETURN: Final = WorldShape(nodes=3, standbys=1, has_tier=False, iterations=8)
ALONE: Final = replace(SPARE, is_refilled=False)
LONG: Final = WorldShape(nodes=2, standbys=2, has_tier=False, iterations=40)
GROUPS: Final = WorldShape(nodes=4, standbys=2, has_tier=False, iterations=8)
LARGER: Final = (
    SMALL,
    WorldShape(nodes=3, standbys=1, has_tier=False, iterations=4),
    WorldShape(nodes=4, standbys=2, has_tier=False, iterations=4),
)
FENCING, INVENTORY, WAITING, STARTING, RUNNING, FINISHING, HALFWAY = range(len(PHASES))
TRAINS: Final[Happening] = (0.0, "at", RUNNING)
HALF: Final[Happening] = (0.0, "at", HALFWAY)
"""A moment at which some nodes, and not all, have a version whole that this start made."""
TRAINING: Final = tuple(round(0.13 * number, 2) for number in range(13))
"""Seconds after training has begun; the smallest lab is all but done then."""
MIDST: Final = 0.7
"""Of these, some in which a version is on its way."""
RECOVERING: Final = (0.0, 0.004, 0.01, 0.02, 0.04, 0.08, 0.3, 0.8, 1.6, 2.4)
"""Seconds after a failure in which it is being answered."""
LEASE_S: Final = 3.5
"""After so long a silent node counts as lost."""
CRASH: Final[Failure] = ("kill_rank", 0)
LOSSES: Final[tuple[Failure, ...]] = (("kill", 1, 1), ("kill", 0, 1), ("kill", 2, 1))
SILENT: Final[Happening] = (LEASE_S + 1.0, "thaw_all")
SINGLES: Final[tuple[tuple[Failure, tuple[Happening, ...]], ...]] = (
    (CRASH, ()),
    (("kill_rank", 1), ()),
    *((loss, ()) for loss in LOSSES),
    (("reset", ROOT, 1), ()),
    (("freeze", 1), (SILENT,)),
    (("freeze", 0), (SILENT,)),
)
"""Each a failure, and what has to pass until it counts."""
RANDOM: Final[tuple[Failure, ...]] = (
    ("kill", 6),
    ("kill_rank", 6),
    ("freeze", 6),
    ("thaw_all",),
    ("fuse", 5),
    ("add",),
    ("reset", 6, 6),
    ("kill_group", 4),
    ("freeze_group", 4),
    ("give_up",),
    ("at", len(PHASES)),
)
ENDS: Final = {"kill": (1,), "fuse": (0,)}
"""How: a machine that is gone says so; and the root agent's dies."""
MANY: Final = 12
"""Losses in one run, one after the other."""
SMALLER_S: Final = 10.0
"""How long to look for something smaller that breaks in the same way."""
SEEDS: Final = 200
"""Random schedules of a run."""
SCOPE: Final = f"labs of up to 4 nodes, up to 6 failures at random or {MANY} losses in turn"


@dataclass(frozen=True, kw_only=True)
class RootCase:
    """A simulated lab, and what happens in it.

    Attributes:
        shape: How large the lab is.
        schedule: Failures, each with the seconds before it.
        seed: Of who comes first, where nothing else decides that.
        struck: The failures that struck, in words.
    """

    shape: WorldShape
    schedule: tuple[Happening, ...]
    seed: int = 1
    struck: tuple[str, ...] = ()

    @property
    def arguments(self) -> dict[str, object]:
        """The schedule, for a replay."""
        return {"lab": self.lab, "schedule": self.schedule}

    @property
    def lab(self) -> str:
        """How large the lab is, in words."""
        spares = counted(self.shape.standbys, "standby")
        return f"{counted(self.shape.nodes, 'node')} and {spares}"

    def __str__(self) -> str:
        return f"{self.lab}; {', then '.join(self.struck) or 'nothing fails'}"


def cases(run: int = 0) -> Iterator[RootCase]:
    """Yield one failure at every moment, then two, then many; in a later run random ones only."""
    if not run:
        yield from _in_order()
    for seed in range(run * SEEDS, (run + 1) * SEEDS):
        yield _random(seed)


def _in_order() -> Iterator[RootCase]:
    yield RootCase(shape=SMALL, schedule=())
    for after_s, (failure, then) in itertools.product(TRAINING, SINGLES):
        yield RootCase(shape=SMALL, schedule=(TRAINS, (after_s, *failure), *then))
    for schedule in _pairs():
        yield RootCase(shape=SMALL, schedule=schedule)
    for later_s, second in itertools.product(
        RECOVERING, LOSSES
    ):  # no machine replaces the lost one
        alone = TRAINS, (MIDST, *CRASH), (later_s, *second)
        yield RootCase(shape=ALONE, schedule=alone, seed=3)
    for seed, schedule in _silences():
        yield RootCase(shape=SPARE, schedule=schedule, seed=seed)
    for seed in range(2, 5):
        yield RootCase(shape=SPARE, schedule=tuple(_waits()), seed=seed)
    for count in (MANY // 2, MANY):
        yield RootCase(shape=LONG, schedule=tuple(_losses(count)))
    for seed, schedule in _returns():
        yield RootCase(shape=RETURN, schedule=schedule, seed=seed)
    for seed, schedule in _elsewhere():
        yield RootCase(shape=GROUPS, schedule=schedule, seed=seed)


def _pairs() -> Iterator[tuple[Happening, ...]]:
    """Yield a second failure while the first is being answered."""
    for first in (CRASH, *LOSSES[:2]):
        for writes in range(6):
            yield TRAINS, (MIDST, "fuse", writes, 0), (0.0, *first)
        for phase in (FENCING, INVENTORY, STARTING, RUNNING):
            yield TRAINS, (MIDST, *first), (0.0, "at", phase), (0.0, "kill", ROOT, 1)
        for later_s, second in itertools.product(RECOVERING, (CRASH, *LOSSES)):
            yield TRAINS, (MIDST, *first), (later_s, *second)


def _silences() -> Iterator[tuple[int, tuple[Happening, ...]]]:
    """Yield silent members that return with what nobody else has, or with what is old."""
    for seed in range(1, 9):
        begun = TRAINS, (0.1 * seed, "freeze_group", 0), (LEASE_S + 1.0, "thaw_all")
        yield seed, begun
        for node, later_s in itertools.product(range(2), (1.0, 5.0)):
            one: Happening = (0.1 * seed, "freeze", node)
            back: Happening = (LEASE_S + later_s, "thaw_all")
            everybody: Happening = (later_s / 2, "freeze_group", 0)
            yield seed, (TRAINS, one, back, TRAINS, everybody, (LEASE_S + 1.0, "thaw_all"))


def _waits() -> Iterator[Happening]:
    """Yield silent members while others come and go for long; then all are back."""
    yield TRAINS
    yield 1.0, "freeze_group", 0
    last_s = LEASE_S
    for number in range(SPARE.nodes, SPARE.nodes + 4):
        yield last_s, "kill", number, 1
        yield 0.5, "add"
        last_s = 4.0
    yield last_s, "thaw_all"


def _losses(count: int) -> Iterator[Happening]:
    """Yield the loss of one node after the other, each time followed by another's coming."""
    for number in range(count):
        yield TRAINS
        yield 1.2, "kill", number, 1
        yield 0.1, "add"
        yield 1.0, "at", STARTING


def _returns() -> Iterator[tuple[int, tuple[Happening, ...]]]:
    """Yield silent members that return with part of a version, and get their place again.

    Until then the others have part of the same version, made in a newer epoch: together that is all
    of its shards, and it is whole in neither epoch.
    """
    nodes, spare = range(RETURN.nodes), RETURN.nodes
    for seed, silent in itertools.product(range(1, 5), nodes):
        others = [n for n in nodes if n != silent]
        for first, second in itertools.product(others, others):
            before = HALF, (0.0, "freeze", silent), (0.01, "kill_rank", first)
            after = HALF, (0.0, "thaw", silent), (0.0, "kill_rank", second), (0.0, "kill", spare, 1)
            yield seed, (*before, *after)


def _elsewhere() -> Iterator[tuple[int, tuple[Happening, ...]]]:
    """Yield a node's return to a taken place that alone has what another then loses."""
    for seed, silent, later_s in itertools.product(range(1, 7), range(4), (0.5, 2.0)):
        lost = (silent + 2) % 4
        away = HALF, (0.0, "freeze", silent), (LEASE_S + 0.5, "thaw", silent)
        yield seed, (*away, (later_s, "kill", lost, 1))


def _random(seed: int) -> RootCase:
    rng = random.Random(seed)
    shape = rng.choice(LARGER)
    fates: list[Happening] = [TRAINS]
    for _ in range(rng.randint(1, 6)):
        kind, *limits = rng.choice(RANDOM)
        numbers = [rng.randrange(limit) for limit in limits]
        wait_s = round(rng.choice((0.01, 0.05, 0.3, 1.5, 4.0)) * rng.uniform(0.5, 1.5), 3)
        fates.append((wait_s, kind, *numbers, *ENDS.get(kind, ())))
    return RootCase(shape=shape, schedule=tuple(fates), seed=seed)


def attack_root(
    mine: Callable[..., object], *, within_s: float, run: int = 0
) -> Counterexample | Withstood:
    """Return the smallest schedule found that breaks `mine`; or what it is worth if none does.

    Args:
        mine: Decides, as `lab.train(job, root=mine)` takes it.
        within_s: When to stop looking; see `Patience`.
        run: As for `attack`.
    """
    make_root = _root_of(mine)
    patience, tried, left = Patience(within_s), 0, 0
    for case in (in_order := cases(run)):
        if patience.is_over:
            left = 1 + sum(1 for _ in in_order)
            break
        story = told_of(case, make_root)
        if story.broken:
            return _counterexample(*smaller(case, story, make_root), tried=tried)
        tried += 1
    return Withstood(
        stage="root",
        tried=tried,
        left=left,
        case_s=patience.each_s(tried),
        figures=_figures(make_root),
        scope=SCOPE,
    )


def told_of(case: RootCase, make_root: MakeRoot) -> Story:
    """Return what becomes of a case."""
    return tell(case.shape, case.schedule, make_root, seed=case.seed)


def _root_of(mine: Callable[..., object]) -> MakeRoot:
    try:
        return of_function(packed(mine))
    except ConfigError as error:
        raise WrongAnswerError(str(error)) from None


def _counterexample(case: RootCase, story: Story, *, tried: int) -> Counterexample:
    struck = [each for each in story.moments if each.kind == "failure"]
    last = max((i for i, one in enumerate(struck) if one.text != FAILURES["thaw"]), default=-1)
    counted_in = struck[: last + 1]  # a return at the very end did not break it
    case = replace(case, struck=tuple(f"{each.node} {each.text}" for each in counted_in))
    lost = tuple(each.node for each in struck if each.text == FAILURES["kill"])

    why = NOTHING if story.is_silent and story.broken == NEVER else story.broken

    def again(other: Callable[..., object]) -> Counterexample | None:
        told = told_of(case, _root_of(other))
        return _counterexample(case, told, tried=tried) if told.broken else None

    return Counterexample(
        stage="root",
        case=case,
        answer=story,
        fault=StageFault(why=why, lost=lost),
        tried=tried,
        judge=again,
    )


# -- making it smaller ----------------------------------------------------------------------------


def smaller(case: RootCase, story: Story, make_root: MakeRoot) -> tuple[RootCase, Story]:
    """Return the same break with as few failures as can be reached by taking away."""
    best, has_shrunk, patience = (case, story), True, Patience(SMALLER_S)
    while has_shrunk:
        has_shrunk = False
        for schedule in smaller_ones(best[0].schedule):
            if patience.is_over:
                return best
            fewer = replace(best[0], schedule=schedule)
            told = told_of(fewer, make_root)
            if told.broken[:20] == story.broken[:20]:
                best, has_shrunk = (fewer, told), True
                break
    return best


# -- figures ---------------------------------------------------------------------------------------


def _figures(make_root: MakeRoot) -> tuple[BesideOurs, ...]:
    """Return what recoveries cost: one crashed worker a run, at some moments while training."""
    moments = enumerate(TRAINING[:-3] * 2)
    runs = [RootCase(shape=SMALL, schedule=_crash(n % 2, at_s), seed=n) for n, at_s in moments]
    yours = [told_of(case, make_root) for case in runs]
    ours = [told_of(case, of_the_lab) for case in runs]
    where = f"{len(runs)} runs with a crash"
    return (
        BesideOurs(
            what=f"recoveries begun, {where}",
            yours=sum(each.epochs - 1 for each in yours),
            reference=sum(each.epochs - 1 for each in ours),
            optimum=len(runs),
        ),
        BesideOurs(
            what=f"orders sent, {where}",
            yours=sum(each.orders for each in yours),
            reference=sum(each.orders for each in ours),
            optimum=min(sum(each.orders for each in yours), sum(each.orders for each in ours)),
        ),
        BesideOurs(
            what=f"iterations done, {where}",
            yours=sum(each.iterations for each in yours),
            reference=sum(each.iterations for each in ours),
            optimum=SMALL.iterations * len(runs),
        ),
    )


def _crash(node: int, at_s: float) -> tuple[Happening, ...]:
    return TRAINS, (at_s, "kill_rank", node)
