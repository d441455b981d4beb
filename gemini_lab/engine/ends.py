"""Where this rank's data, its loop or its script is over: told at once, and epochs end together.

A rank that has no batch left would go on to what follows the epoch, such as a sum of its losses,
while another one adds up gradients of the next iteration: both wait for good, or the two sums pair
up. So in a loop over `protected.epochs` all ranks wait for one another at the end of an epoch. What
the root agent makes of it when they do not come: `recovery.ends`.
"""

import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import torch.distributed as dist

from gemini_lab.recovery.messages import End, EndReached, Message, WorkerStart

ALOUD_S: Final = 1.0
"""At the end of an epoch, until others are waited for aloud."""
FIRST_LOOK_S: Final = 0.001
LONGEST_LOOK_S: Final = 0.5
"""Between two looks. With shorter ones a rank that waits for good would seem to work; and where the
store waits itself, it prints a warning each time that it looks up."""
UNKNOWN: Final = -1


class Worker(Protocol):
    """The part of a worker's session that ends are reported to."""

    start: WorkerStart
    store: Any

    def say(self, message: Message) -> None:
        """Tell the node's agent."""


class Ends:
    """The ends of one rank.

    Args:
        worker: Its session.
        is_broken: Whether a rank is lost, and nobody is to be waited for.
    """

    def __init__(self, worker: Worker, *, is_broken: Callable[[], bool]) -> None:
        self._worker, self._is_broken = worker, is_broken
        # What was restored may be the last iteration of an epoch, of which no batch is left.
        self._is_restored = worker.start.plan.version is not None
        self._passed: int | None = None

    def say(self, what: End, iteration: int) -> None:
        """Tell that something is over after an iteration."""
        start = self._worker.start
        said = EndReached(rank=start.rank, epoch=start.epoch, iteration=iteration, what=what)
        self._worker.say(said)

    def begin(self, iteration: int) -> None:
        """Training begins after this iteration."""
        self._passed = None if self._is_restored else iteration

    def end_pass(self, iteration: int) -> bool:
        """Return whether the pass through the data that is over now trained, and is the first."""
        before, self._passed = self._passed, iteration
        return before != iteration

    def meet(self, iteration: int, *, epoch: int, rewinds: int) -> None:
        """Return when all ranks are at the end of an epoch, after the same iteration.

        Args:
            iteration: The newest that was done.
            epoch: Its number.
            rewinds: How often training has gone back.
        """
        store = self._worker.store
        here = f"gemini_lab/ends/{rewinds}/{epoch}/{iteration}"
        if store.add(here, 1) == self._worker.start.seats.world_size:
            store.set(f"{here}/all", "")
            return
        began_s, pause_s = time.monotonic(), FIRST_LOOK_S
        is_told = False
        while not self._is_broken() and not store.check([f"{here}/all"]):
            if not is_told and time.monotonic() - began_s > ALOUD_S:
                self.say("epoch", iteration)
                is_told = True
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, LONGEST_LOOK_S)


def collectives_so_far() -> int:
    """Return how many collectives of all ranks together were begun; `UNKNOWN` if nobody says."""
    world = dist.group.WORLD if dist.is_initialized() else None
    try:
        # Gloo counts a group's collectives only here; torch has no public name for the number.
        return UNKNOWN if world is None else int(world._get_sequence_number_for_group())  # type: ignore[attr-defined]  # noqa: SLF001
    except (AttributeError, RuntimeError, TypeError):
        return UNKNOWN
