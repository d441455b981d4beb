"""Seeds: simulated worlds run one after the other, and the smallest schedule that breaks one."""

import argparse
import asyncio
import hashlib
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemini_lab.display import tell
from gemini_lab.errors import ConfigError
from gemini_lab_bench.world.coverage import Coverage
from gemini_lab_bench.world.schedule import BefallenWorld, Happening, draw
from gemini_lab_bench.world.story import ToldWorld
from gemini_lab_bench.world.virtual_loop import StandstillError
from gemini_lab_bench.world.world import WorldShape

TOLD_S: Final = 10.0
"""Between two lines on how far it has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A schedule, and what came of it.

    Attributes:
        digest: Of all that was said: two runs of a seed have the same.
    """

    seed: int
    shape: WorldShape
    schedule: tuple[Happening, ...]
    wrong: tuple[str, ...]  # what did not hold; empty if all did
    trace: tuple[str, ...]
    virtual_s: float  # how long it took in the world
    coverage: Coverage  # what it reached

    @property
    def digest(self) -> str:
        """Checksum of the trace."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]


def run(seed: int, shape: WorldShape, schedule: Sequence[Happening]) -> Ran:
    """Return what comes of a schedule."""
    return run_world(BefallenWorld(seed, shape, schedule))


@contextmanager
def _no_other_loop() -> Iterator[None]:
    """Have no event loop count as running: a notebook's kernel runs cells within its own.

    A thread would do, but the limit on what a reader's function may take needs the main one. The
    four calls are those that Python documents for other event loops.
    """
    outer = asyncio._get_running_loop()  # noqa: SLF001 - as above
    if outer is None:
        yield
        return
    task = asyncio.current_task()
    if task is not None:
        asyncio.tasks._leave_task(outer, task)  # noqa: SLF001 - as above
    asyncio._set_running_loop(None)  # noqa: SLF001 - as above
    try:
        yield
    finally:
        asyncio._set_running_loop(outer)  # noqa: SLF001 - as above
        if task is not None:
            asyncio.tasks._enter_task(outer, task)  # noqa: SLF001 - as above


def run_world(one: BefallenWorld) -> Ran:
    """Return what comes of a world."""
    with _no_other_loop():
        return _run_alone(one)


def _run_alone(one: BefallenWorld) -> Ran:
    world = one.world
    try:
        try:
            world.loop.run_until_complete(one.live())
        except StandstillError as error:
            world.judge.broken(str(error))
        return Ran(
            seed=world.seed,
            shape=world.shape,
            schedule=tuple(one.schedule),
            wrong=tuple(world.judge.wrong),
            trace=tuple(world.judge.trace),
            virtual_s=world.loop.time(),
            coverage=world.judge.coverage,
        )
    finally:
        world.end()  # whatever happens: else its slabs stay


def run_seed(seed: int) -> Ran:
    """Return what comes of a seed."""
    return run(seed, *draw(seed))


def shrink(found: Ran) -> Ran:
    """Return the same break with as few happenings as can be reached by taking away."""
    best, has_shrunk = found, True
    while has_shrunk:
        has_shrunk = False
        for smaller in smaller_ones(best.schedule):
            ran = run(best.seed, best.shape, smaller)
            if ran.wrong and _kind(ran) == _kind(found):
                best, has_shrunk = ran, True
                break
    return best


def smaller_ones(schedule: tuple[Happening, ...]) -> Iterator[tuple[Happening, ...]]:
    """Yield schedules with one happening less; what follows happens when it did."""
    for place in range(len(schedule) if len(schedule) > 1 else 0):
        smaller = [*schedule[:place], *schedule[place + 1 :]]
        if place < len(schedule) - 1:
            wait_s, kind, *numbers = smaller[place]
            smaller[place] = (round(wait_s + schedule[place][0], 3), kind, *numbers)
        yield tuple(smaller)


def _kind(ran: Ran) -> list[str]:
    return ran.wrong[0].split()[1:4]


def parsed(text: str) -> range:
    """Return the seeds that `A:B`, `A:` without an end, or one number, names.

    Raises:
        ArgumentTypeError: It names none.
    """
    first, _, end = text.partition(":")
    if first.isdecimal() and (end.isdecimal() or not end) and len(text) < 40:
        last = sys.maxsize if ":" in text else int(first) + 1
        seeds = range(int(first), int(end) if end else last)
        if seeds:
            return seeds
    raise argparse.ArgumentTypeError(f"{text!r} names no seeds; give A:B, A: or one number")


@contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Note the first Ctrl-C, so that the seed under way ends; the second one interrupts at once.

    An interrupt within a world would reach whichever of its tasks runs, and each would report it.
    """
    noted, before = list[int](), signal.getsignal(signal.SIGINT)

    def note(number: int, _: object) -> None:
        noted.append(number)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note if before is not signal.SIG_IGN else before)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def _tell_break(found: Ran, folder: Path) -> None:
    """Tell the smallest schedule that breaks a world, and draw what happens with it."""
    smallest = shrink(found)
    tell(f"seed {found.seed} breaks: {smallest.wrong[0]}")
    tell(f"  {smallest.shape}\n  {smallest.schedule}")
    try:
        from gemini_lab_bench.world import story_picture  # noqa: PLC0415 - matplotlib may be missing
    except ConfigError as error:
        tell(f"  not drawn: {error}")
        return
    told = ToldWorld(smallest.seed, smallest.shape, smallest.schedule)
    run_world(told)
    told.note("broken", told.last_root, smallest.wrong[0])
    file = folder / f"seed-{found.seed}.html"
    story_picture.write_story(file, f"Seed {found.seed} breaks", told.moments)
    tell(f"  drawn in {file}")


def explore(seeds: Iterable[int], *, folder: Path, covers: bool = False) -> bool:
    """Run seeds until all have run or a user interrupts; return whether all hold.

    Args:
        seeds: Which.
        folder: For diagrams of those that break.
        covers: Whether to tell what they reached, and what none of them did.
    """
    began_s = told_s = time.monotonic()
    tried, virtual_s, broken, reached = 0, 0.0, list[int](), Coverage()
    with suppress(KeyboardInterrupt), _noted_interrupts() as interrupts:
        for seed in seeds:
            if interrupts:
                break
            ran = run_seed(seed)
            tried, virtual_s = tried + 1, virtual_s + ran.virtual_s
            reached.add(ran.coverage)
            if ran.wrong:
                broken.append(seed)
                _tell_break(ran, folder)
            if (now_s := time.monotonic()) > told_s + TOLD_S:
                told_s = now_s
                tell(f"{tried} seeds, the last is {seed}")
    for line in reached.lines() if covers else ():
        tell(line)
    tell(
        f"{tried} seeds, {virtual_s / 3600:.1f} hours of simulated time in "
        f"{time.monotonic() - began_s:.0f} s; {len(broken)} broke: {broken or 'none'}"
    )
    return not broken


def show(seed: int, *, folder: Path) -> bool:
    """Tell all that happens with one seed; return whether everything holds."""
    ran = run_seed(seed)
    tell(f"{ran.shape}\n{ran.schedule}")
    for line in (*ran.trace, *(f"WRONG {text}" for text in ran.wrong)):
        tell(line)
    if ran.wrong:
        _tell_break(ran, folder)
    return not ran.wrong
