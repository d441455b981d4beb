"""Random schedules of a modelled world, and the smallest one that still breaks it."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gemini_lab_course.model.actions import Action
from gemini_lab_course.model.judged import Rules, Shape
from gemini_lab_course.model.truth import BrokenError
from gemini_lab_course.model.world import World

SHAPES = (
    Shape(),
    Shape(nodes=2, standbys=1),
    Shape(nodes=2, standbys=2, has_tier=False),
    Shape(nodes=3, standbys=1, persist_every=1),
    Shape(nodes=4, standbys=1, has_tier=False),
)
FAULTS = (
    ("kill", 6, 2),
    ("kill", 6, 2),
    ("freeze", 6),
    ("freeze", 6),
    ("thaw", 6),
    ("thaw", 6),
    ("cut", 6, 3, 3),
    ("cut", 6, 3, 3),
    ("part", 6, 2),
    ("join", 6),
    ("store_down",),
    ("store_up", 2),
    ("tier_down",),
    ("tier_up",),
    ("tier_full",),
    ("flip", 6, 4),
    ("kill_worker", 6),
    ("hang_worker", 6),
    ("fuse", 12, 3),
    ("fuse", 12, 3),
    ("add",),
    ("add",),
    ("kill_group", 4),
    ("freeze_group", 4),
    ("freeze_group", 4),
    ("give_up",),
    ("tier_down",),
    ("wait", 30),
    ("wait", 30),
    ("wait", 700),
    ("wait", 9500),
)
_TOGETHER = (
    (("freeze_group", 4), ("give_up",), ("thaw_all",), ("kill_group", 4), ("wait", 30)),
    (("kill_group", 4), ("tier_down",), ("tier_up",), ("wait", 700)),
    (("fuse", 12, 3), ("kill", 6, 2), ("freeze", 6), ("thaw", 6), ("cut", 6, 3, 3)),
)  # what makes trouble when it comes together
_IN_ORDER = (
    (("freeze_group", 1), ("give_up",), ("thaw_all",), ("kill_group", 1), ("add",), ("add",)),
    (("tier_down",), ("kill_group", 4), ("tier_up",)),
)  # what must come one after the other
DRAINS_EVERY = 3  # schedules, in one some nodes are to go
RESIZES_EVERY = 4  # schedules, one has a run that goes on with other numbers of nodes
REWINDS_EVERY = 2  # schedules, one has training go back
SEVERS_EVERY = 5  # schedules, in one connections between workers break
SICK_EVERY = 6  # schedules, in one the tier lists and does not read, or lists too little
GIVES_UP_EVERY = 11  # schedules, in one a user gives up what comes back later
LACKS_EVERY = 7  # schedules, in one workers cannot be started on some machines for a time
RETURNS_EVERY = 8  # schedules, one has a node that returns
_RARE = (("cancel",), ("give_up",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A schedule that broke a world, and how."""

    seed: int
    shape: Shape
    schedule: tuple[Action, ...]
    text: str


def make_schedule(seed: int) -> tuple[Shape, tuple[Action, ...]]:
    """A world and what happens in it: stretches of work, with faults at random moments."""
    shape, actions = _failing(seed)
    if seed % RESIZES_EVERY == 1:
        shape, actions = _resizing(random.Random(-2 - seed), shape, actions)
    if seed % SEVERS_EVERY == 1:
        actions = _severed(random.Random(-3 - seed), actions)
    if seed % SICK_EVERY == 1:
        actions = _with_sick_tier(random.Random(-4 - seed), actions)
    if seed % LACKS_EVERY == 1:
        actions = _lacking(random.Random(-5 - seed), actions)
    if seed % REWINDS_EVERY:
        return shape, actions
    rng, with_rewinds = random.Random(-1 - seed), list(actions)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(with_rewinds)) + 1
        with_rewinds.insert(place, ("rewind", rng.randrange(3)))
    return shape, tuple(with_rewinds)


def _with_sick_tier(rng: random.Random, actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """Have the tier be needed while it is sick, and be well again later, or not before the end."""
    place = rng.randrange(len(actions)) + 1
    sick: list[Action] = [
        (rng.choice(("tier_stale", "tier_mute")),),
        ("go", rng.randrange(10**6), rng.choice((60, 300))),
        ("kill_group", rng.randrange(4)),
        ("go", rng.randrange(10**6), rng.choice((60, 300))),
        ("wait", rng.choice((5, 60, 700))),
    ]
    if rng.random() < 0.7:
        sick.append(("tier_up",))
    return (*actions[:place], *sick, *actions[place:])


def _lacking(rng: random.Random, actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """The same, after starts that fail on one machine, and later on the one in its place."""

    def fail_starts(*before: Action) -> list[Action]:
        starts = ("sever_worker", "go", "wait")
        numbers = {"sever_worker": (rng.randrange(6),), "go": (rng.randrange(10**6), 300)}
        return [*before, *((kind, *numbers.get(kind, (rng.choice((8, 60)),))) for kind in starts)]

    first, second = rng.sample(range(6), 2)
    return (
        actions[0],
        *fail_starts(("lack", first)),
        *fail_starts(("lack", second), *((("regain", first),) if rng.random() < 0.7 else ())),
        *actions[1:],
    )


def _failing(seed: int) -> tuple[Shape, tuple[Action, ...]]:
    rng = random.Random(seed)
    if seed % RETURNS_EVERY == 0:
        return Shape(nodes=2, standbys=2, has_tier=False, iterations=20), _returning(rng)
    if seed % GIVES_UP_EVERY == 5:
        return Shape(nodes=2, standbys=2, iterations=20), _giving_up(rng)
    shape = rng.choice(SHAPES)
    kinds = list(rng.choice(_TOGETHER))
    if rng.random() < 0.6:
        kinds = rng.sample(FAULTS, rng.randint(2, 8))
    actions: list[Action] = [("go", rng.randrange(10**6), rng.choice((40, 200, 400, 800)))]
    if rng.random() < 0.2:
        shape = Shape(iterations=20)
        for kind, *limits in rng.choice(_IN_ORDER):
            actions.append(("go", rng.randrange(10**6), rng.choice((60, 300, 500, 700))))
            actions.append((kind, *(rng.randrange(limit) for limit in limits)))
    for _ in range(rng.randint(1, 10)):
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            kind, *limits = rng.choice(_RARE) if rng.random() < 0.01 else rng.choice(kinds)
            actions.append((kind, *(rng.randrange(limit) for limit in limits)))
        actions.append(("go", rng.randrange(10**6), rng.choice((5, 20, 60, 120, 300, 600))))
    if seed % DRAINS_EVERY == 0:
        for _ in range(rng.randint(1, 3)):
            actions.insert(rng.randint(1, len(actions)), ("drain", rng.randrange(6)))
    return shape, tuple(actions)


def _resizing(
    rng: random.Random, shape: Shape, actions: tuple[Action, ...]
) -> tuple[Shape, tuple[Action, ...]]:
    """The same where fewer go on when machines are short, and a person wants other numbers."""
    more = list(actions)
    for _ in range(rng.randint(0, 3)):
        more.insert(rng.randint(1, len(more)), ("resize", rng.randrange(6)))
    return replace(shape, shrinks=rng.random() < 0.7, iterations=20), tuple(more)


def _severed(rng: random.Random, actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """The same where ranks lose their connections to others, and time goes by after some."""
    more = list(actions)
    for _ in range(rng.randint(1, 4)):
        place = rng.randint(1, len(more))
        more[place:place] = [("sever_worker", rng.randrange(6)), ("wait", rng.randrange(10))]
    return tuple(more)


def _returning(rng: random.Random) -> tuple[Action, ...]:
    """Whose place was given away comes back with what is old; then who trains falls silent."""

    def go(*moves: int) -> Action:
        return ("go", rng.randrange(10**6), rng.choice(moves))

    return (
        go(300, 500),
        ("freeze", rng.randrange(6)),
        ("wait", rng.randrange(30)),
        go(200, 400),
        ("thaw_all",),
        go(300, 500, 700),
        ("freeze_group", rng.randrange(4)),
        go(60, 300),
        *((("thaw_all",), go(60, 300)) if rng.random() < 0.5 else ()),
    )


def _giving_up(rng: random.Random) -> tuple[Action, ...]:
    """All that train fall silent, a user goes on from the tier; then they are there again."""

    def go(*moves: int) -> Action:
        return ("go", rng.randrange(10**6), rng.choice(moves))

    last: list[Action] = [("sever_worker", 0), ("sever_worker", 1), ("sever_worker", 2)]
    return (
        go(400, 500, 600),
        ("freeze_group", 0),
        ("wait", 30),
        go(200, 300),
        ("give_up",),
        go(200, 300),
        ("thaw_all",),
        go(60, 200),
        *rng.sample([*last, ("kill_group", 0)], 3),
        go(200, 400),
    )


def run(shape: Shape, schedule: Sequence[Action], rules: Rules | None = None) -> str | None:
    """How this schedule breaks the world; `None` if it does not."""
    world = World(shape, rules)
    try:
        for action in schedule:
            if world.told.done or world.told.failed:
                return None
            world.do(action)
        world.calm()
    except BrokenError as error:
        return str(error)
    except AssertionError as error:
        return f"an assertion of the product failed: {error!r}"
    return None


def explore(
    *,
    first_seed: int,
    limit_s: float | None = None,
    schedules: int | None = None,
    rules: Rules | None = None,
) -> tuple[Found | None, int]:
    """Try schedules until one breaks the world; gives it, and how many were tried."""
    began_s, tried = time.monotonic(), 0
    while schedules is None or tried < schedules:
        if limit_s is not None and time.monotonic() - began_s > limit_s:
            break
        seed = first_seed + tried
        tried += 1
        shape, schedule = make_schedule(seed)
        text = run(shape, schedule, rules)
        if text is not None:
            return Found(seed=seed, shape=shape, schedule=schedule, text=text), tried
    return None, tried


def shrink(found: Found, rules: Rules | None = None) -> Found:
    """The same break with as few actions, and as few moves, as can be reached by taking away."""
    best = found
    has_shrunk = True
    while has_shrunk:
        has_shrunk = False
        for smaller in _smaller(best.schedule):
            text = run(best.shape, smaller, rules)
            if text is not None and text.split()[:3] == found.text.split()[:3]:
                best = Found(seed=best.seed, shape=best.shape, schedule=smaller, text=text)
                has_shrunk = True
                break
    return best


def _smaller(schedule: Sequence[Action]) -> list[tuple[Action, ...]]:
    made = [(*schedule[:i], *schedule[i + 1 :]) for i in range(len(schedule))]
    for i, action in enumerate(schedule):
        if action[0] == "go":
            seed, moves = action[1:]
            shorter = sorted({moves // 2, moves * 3 // 4, moves - 5, moves - 1} - {moves})
            made += [
                (*schedule[:i], ("go", seed, m), *schedule[i + 1 :]) for m in shorter if m >= 0
            ]
    return made
