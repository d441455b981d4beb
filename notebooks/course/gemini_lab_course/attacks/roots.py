"""A root agent's decisions under attack: which failures, at which moments, break a run?

Modelled labs run with it, message by message. All single failures at all moments come first, in
the smallest lab there is, then pairs of which the second strikes the recovery, then random ones in
larger labs. What is found is made smaller for as long as it still breaks.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab_course.attacks.asking import NOTHING
from gemini_lab_course.attacks.outcome import (
    BesideOurs,
    Counterexample,
    StageFault,
    Withstood,
    counted,
)
from gemini_lab_course.attacks.search import Patience
from gemini_lab_course.attacks.stories import (
    FAILURES,
    NEVER,
    MakeRoot,
    Story,
    of_function,
    of_the_lab,
    tell,
)
from gemini_lab_course.model.actions import Action as Fate
from gemini_lab_course.model.judged import Shape
from gemini_lab_course.own_root.process import packed
from gemini_lab_course.verdict import WrongAnswerError

SMALL: Final = Shape(nodes=2, standbys=1, has_tier=False, iterations=3)
SPARE: Final = Shape(nodes=2, standbys=2, has_tier=False, iterations=6)
RETURN: Final = Shape(nodes=3, standbys=1, has_tier=False, iterations=6)
ALONE: Final = replace(SPARE, is_refilled=False)
LONG: Final = Shape(nodes=2, standbys=2, has_tier=False, iterations=60)
GROUPS: Final = Shape(nodes=4, standbys=2, has_tier=False, iterations=6)
LARGER: Final = (
    SMALL,
    Shape(nodes=3, standbys=1, has_tier=False, iterations=4),
    Shape(nodes=4, standbys=2, has_tier=False, iterations=4),
)
SEED: Final = 1
"""Of who comes first in the modelled lab; any would do."""
TRAINING: Final = range(230, 456, 18)
"""Moves, after which workers of the smallest lab have called `protect`, or are all but done."""
MIDST: Final = 300
"""Of these, some in which a version is on its way."""
SPARES_MIDST: Final = 480
"""The same with two standbys, whom the modelled lab starts with, too."""
RECOVERING: Final = range(0, 160, 16)
"""Moves after a failure in which it is being answered."""
INSTRUCTIONS: Final = range(0, 22, 2)
"""Instructions of the root agent, after one of which it is lost."""
LEASE: Final = ("wait", 30)
"""Three seconds go by, after which who is silent counts as lost."""
CRASH: Final[Fate] = ("kill_worker", 0)
LOSSES: Final[tuple[Fate, ...]] = (("kill", 1, 1), ("kill", 0, 1), ("kill", 2, 1))
SINGLES: Final[tuple[tuple[Fate, ...], ...]] = (
    (CRASH,),
    (("kill_worker", 1),),
    *((loss,) for loss in LOSSES),
    (("cut", 1, 0, 0),),
    (("freeze", 1), LEASE, ("go", SEED, 60)),
    (("freeze", 0), LEASE, ("go", SEED, 60)),
)
"""Each a failure, and what has to pass until it counts."""
RANDOM: Final[tuple[Fate, ...]] = (
    ("kill", 6),
    ("kill_worker", 6),
    ("freeze", 6),
    ("thaw_all",),
    ("fuse", 30),
    ("add",),
    ("cut", 6, 3, 3),
    ("kill_group", 4),
    ("freeze_group", 4),
    ("give_up",),
)
ENDS: Final = {"kill": (1,), "fuse": (0,)}
"""How: a machine that is gone says so; and the root agent's dies."""
HALFWAY: Final = 900
"""Moves in which a version is halfway at the latest."""
BACK: Final = 600
"""Moves in which training goes on again after a loss."""
MANY: Final = 12
"""Losses in one run, one after the other."""
SMALLER_S: Final = 10.0
"""How long to look for something smaller that breaks in the same way."""
SEEDS: Final = 200
"""Random schedules."""
SCOPE: Final = f"labs of up to 4 nodes, up to 6 failures at random or {MANY} losses in turn"


@dataclass(frozen=True, kw_only=True)
class RootCase:
    """A modelled lab, and what happens in it.

    Attributes:
        shape: How large the lab is.
        schedule: Failures, and how much is done between them.
        struck: The failures that struck, in words.
    """

    shape: Shape
    schedule: tuple[Fate, ...]
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


def cases() -> Iterator[RootCase]:
    """Yield one failure at every moment, then two, then many."""
    yield RootCase(shape=SMALL, schedule=())
    for moves, fates in itertools.product(TRAINING, SINGLES):
        yield RootCase(shape=SMALL, schedule=(("go", SEED, moves), *fates))
    for schedule in _pairs():
        yield RootCase(shape=SMALL, schedule=schedule)
    for later, second in itertools.product(RECOVERING, LOSSES):  # and nobody comes in its place
        alone = ("go", SEED + 2, SPARES_MIDST), CRASH, ("go", SEED, later), second
        yield RootCase(shape=ALONE, schedule=alone)
    for schedule in _silences():
        yield RootCase(shape=SPARE, schedule=schedule)
    for schedule in _waits():
        yield RootCase(shape=SPARE, schedule=schedule)
    for count in (MANY // 2, MANY):
        yield RootCase(shape=LONG, schedule=tuple(_losses(count)))
    for schedule in _returns():
        yield RootCase(shape=RETURN, schedule=schedule)
    for schedule in _elsewhere():
        yield RootCase(shape=GROUPS, schedule=schedule)
    for seed in range(SEEDS):
        yield _random(seed)


def _pairs() -> Iterator[tuple[Fate, ...]]:
    """Yield a second failure while the first is being answered."""
    go = ("go", SEED, MIDST)
    for first in (CRASH, *LOSSES[:2]):
        for instructions in INSTRUCTIONS:
            yield go, ("fuse", instructions, 0), first
        for later, second in itertools.product(RECOVERING, (CRASH, *LOSSES)):
            yield go, first, ("go", SEED + 1, later), second


def _silences() -> Iterator[tuple[Fate, ...]]:
    """Yield silent members that return with what nobody else has, or with what is old."""
    everybody, back = ("freeze_group", 0), ("thaw_all",)
    for seed in range(SEED, SEED + 8):
        go = ("go", seed, MIDST + 10 * seed)
        yield go, everybody, LEASE, ("go", seed, 160)
        for node, later in itertools.product(range(2), (150, 300)):
            one, then = ("freeze", node), ("go", seed, later)
            until = ("go", seed, later // 2)
            yield go, one, LEASE, then, back, until, everybody, LEASE, ("go", seed, 160)


def _waits() -> Iterator[tuple[Fate, ...]]:
    """Yield silent members while others come and go for long; then all are back."""
    for seed in range(SEED + 1, SEED + 4):
        away = ("go", seed, SPARES_MIDST), ("freeze_group", 0), LEASE, ("go", seed, 300)
        others: list[Fate] = []
        for number in range(SPARE.nodes, SPARE.nodes + 4):
            others += [("kill", number, 1), ("go", seed, 30), ("add",), ("go", seed, 300)]
        yield *away, *others, ("thaw_all",), ("go", seed, 160)


def _losses(count: int) -> Iterator[Fate]:
    """Yield the loss of one node after the other, each time followed by another's coming."""
    yield "go", SEED, SPARES_MIDST
    for number in range(count):
        yield "kill", number, 1
        yield ("add",)
        yield "go", SEED + number, BACK


def _returns() -> Iterator[tuple[Fate, ...]]:
    """Yield silent members that return with part of a version, and get their place again.

    Until then the others have part of the same version, made in a newer epoch: together that is all
    of its shards, and it is whole in neither epoch.
    """
    nodes, spare = range(RETURN.nodes), RETURN.nodes
    for seed, silent in itertools.product(range(SEED, SEED + 4), nodes):
        halfway, others = ("go_halfway", seed, HALFWAY), [n for n in nodes if n != silent]
        for first, second in itertools.product(others, others):
            before = halfway, ("freeze", silent), ("kill_worker", first), LEASE
            after = halfway, ("thaw", silent), ("kill_worker", second), ("kill", spare, 1)
            yield *before, *after


def _elsewhere() -> Iterator[tuple[Fate, ...]]:
    """Yield a node's return to a taken place that alone has what another then loses."""
    for seed, silent, later in itertools.product(range(SEED, SEED + 6), range(4), (150, 250)):
        halfway, lost = ("go_halfway", seed, HALFWAY), (silent + 2) % 4
        away = ("freeze", silent), LEASE, ("go", seed, 150), ("thaw", silent)
        yield halfway, *away, ("go", seed, later), ("kill", lost, 1)


def _random(seed: int) -> RootCase:
    rng = random.Random(seed)
    shape = rng.choice(LARGER)
    fates: list[Fate] = [("go", rng.randrange(100), rng.randrange(400))]
    for _ in range(rng.randint(1, 6)):
        kind, *limits = rng.choice(RANDOM)
        numbers = [rng.randrange(limit) for limit in limits]
        fates.append((kind, *numbers, *ENDS.get(kind, ())))
        fates.append(("go", rng.randrange(100), rng.choice((5, 20, 60, 120, 300))))
    return RootCase(shape=shape, schedule=tuple(fates))


def attack_root(mine: Callable[..., object], *, within_s: float) -> Counterexample | Withstood:
    """Return the smallest schedule found that breaks `mine`; or what it is worth if none does.

    Args:
        mine: Decides, as `lab.train(job, root=mine)` takes it.
        within_s: When to stop looking; see `Patience`.
    """
    make_root = _root_of(mine)
    patience, tried, left = Patience(within_s), 0, 0
    for case in (in_order := cases()):
        if patience.is_over:
            left = 1 + sum(1 for _ in in_order)
            break
        story = tell(case.shape, case.schedule, make_root)
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


def _root_of(mine: Callable[..., object]) -> MakeRoot:
    try:
        return of_function(packed(mine))
    except ConfigError as error:
        raise WrongAnswerError(str(error)) from None


def _counterexample(case: RootCase, story: Story, *, tried: int) -> Counterexample:
    struck = [each for each in story.moments if each.kind == "failure"]
    last = max((i for i, one in enumerate(struck) if one.text != FAILURES["thaw"]), default=-1)
    told_of = struck[: last + 1]  # who is back only at the end is no part of what broke it
    case = replace(case, struck=tuple(f"{each.node} {each.text}" for each in told_of))
    lost = tuple(each.node for each in struck if each.text == FAILURES["kill"])

    why = NOTHING if story.is_silent and story.broken == NEVER else story.broken

    def again(other: Callable[..., object]) -> Counterexample | None:
        told = tell(case.shape, case.schedule, _root_of(other))
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
    """Return the same break with as few failures and moves as can be reached by taking away."""
    best, has_shrunk, patience = (case, story), True, Patience(SMALLER_S)
    while has_shrunk:
        has_shrunk = False
        for schedule in _with_less(best[0].schedule):
            if patience.is_over:
                return best
            told = tell(case.shape, schedule, make_root)
            if told.broken[:20] == story.broken[:20]:
                best, has_shrunk = (replace(best[0], schedule=schedule), told), True
                break
    return best


def _with_less(schedule: tuple[Fate, ...]) -> Iterator[tuple[Fate, ...]]:
    for i, action in enumerate(schedule):
        yield (*schedule[:i], *schedule[i + 1 :])
        if action[0] == "go":
            seed, moves = action[1:]
            for fewer in (moves // 2, moves - 20, moves - 5):
                if 0 <= fewer < moves:
                    yield (*schedule[:i], ("go", seed, fewer), *schedule[i + 1 :])


# -- figures ---------------------------------------------------------------------------------------


def _figures(make_root: MakeRoot) -> tuple[BesideOurs, ...]:
    """Return what recoveries cost: one crashed worker a run, at thirty moments while training."""
    runs = [(("go", SEED, moves), ("kill_worker", moves // 6 % 2)) for moves in range(210, 360, 5)]
    yours = [tell(SMALL, schedule, make_root) for schedule in runs]
    ours = [tell(SMALL, schedule, of_the_lab) for schedule in runs]
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
