"""The script's loops: which runs, which made the restored version, and where they and the data end.

A start after a failure runs the script again from its first line, on restored state. These rules
say what is done again, and what leaves no trace:

1. A loop over `steps` or `epochs` is known by its order among the loops that began beside it: those
   of the script, or, inside another loop, those of the same pass.
2. A version is sealed at the top of a loop, and has its place: for each loop that runs, from the
   outermost to the innermost, which one it is, and which pass of it.
3. After a failure, a loop that was over when the version was made gives no pass.
4. A loop around the one that made the version gives the pass that was under way once more.
5. Where the loop that made the version comes to its top, the version is put back once more, all of
   it. So whatever the script has done since `protect` (it has reset momentum, changed a rate,
   frozen layers, made weights anew, drawn numbers, read data) is as it was when the version was
   made, and not done again on top of it.
6. Until then no update counts: no version is made of it, and nothing is said of it.
7. A pass is over when the next one begins. So an epoch's last version is sealed where the next
   epoch reads its first batch. The last version of a loop is made where the loop ends, but exists
   only when the script has come to its next loop, or to its end. A failure in between (in an
   evaluation, or where the last loss is printed) gives the last pass once more.
8. What trains outside of such loops has no place: nothing is put back a second time for it, and the
   script itself goes on from `protected.step`.

A start may leave out a loop that is over, as a script does that asks `protected.step` first, and a
run that is resumed may give a loop another total. So a loop is the one that made the version if it
has the same total and is as many-eth of these, or if it is the same one by order.

A rank that has no batch left would go on to what follows the epoch, such as a sum of its losses,
while another one adds up gradients of the next iteration: both wait for good, or the two sums pair
up. So in a loop over `protected.epochs` all ranks wait for one another at the end of an epoch
(`Ends`). What the root agent makes of it when they do not come: `recovery.ends`.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, Literal

import torch.distributed as dist

from gemini_lab.engine.contract import StateView
from gemini_lab.engine.session import WorkerSession
from gemini_lab.errors import ConfigError
from gemini_lab.recovery.messages import End, EndReached

Kind = Literal["steps", "epochs"]
LoopPlace = tuple["Pass", ...]
"""Where in the script's loops something is, from the outermost; empty outside of them."""

_LOOPS: Final = "loops"
_EPOCH: Final = "epoch"
_KINDS: Final[tuple[Kind, ...]] = ("steps", "epochs")
_SAID_AFTER: Final = 3  # updates that do not count
MOST_LEFT_OUT: Final = 1_000
"""So many of them are no search for a rate any more: the loop does not come."""
_SAME_LOOPS: Final = (
    "have each start of the script begin the same loops, or leave those out that are over, by "
    "`protected.step`"
)
_LEFT_OUT: Final = (
    "the script makes updates before it comes to protected.{loop}, where version {version} was "
    "made: they do not count, and leave no trace there"
)


class LoopState(Enum):
    """The script's progress through its loops, which says what seals a version."""

    NO_LOOP = "before its first loop"  # the next forward pass seals
    UNTOLD = "in a loop that has not told of its top"  # the next forward pass seals
    TOLD = "in a loop that tells of its top"  # as `steps` and the loader of `epochs`: its top seals
    BETWEEN = "after a loop"  # the next forward pass seals
    FINISHED = "at its end"  # no version is made any more

    @property
    def is_in_loop(self) -> bool:
        return self in {LoopState.UNTOLD, LoopState.TOLD}


_AFTER_LOOP: Final = frozenset({LoopState.UNTOLD, LoopState.FINISHED})
# A loop may begin in another one, which goes on in its own state afterwards. A script may break off
# a loop and keep its iterator, and so be at its end without having left the loop.
_IN_LOOP: Final = frozenset({*LoopState} - {LoopState.NO_LOOP})
_NEXT: Final[Mapping[LoopState, frozenset[LoopState]]] = {
    LoopState.NO_LOOP: _AFTER_LOOP,
    LoopState.UNTOLD: _IN_LOOP,
    LoopState.TOLD: _IN_LOOP,
    LoopState.BETWEEN: _AFTER_LOOP,
    LoopState.FINISHED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A pass of one of the script's loops."""

    kind: Kind | None  # what the loop is over; `None` where an older version does not say
    total: int  # how many of these it was to come to
    order: int  # how many loops began beside it before
    twins: int  # how many of those were over as many of the same
    number: int  # what the loop gave for this pass

    def is_of(self, other: "Pass") -> bool:
        """Return whether both are passes of one loop, of which each start begins its own."""
        if self.kind is None or other.kind is None:
            return True
        is_twin = (self.total, self.twins) == (other.total, other.twins)
        return self.kind == other.kind and (is_twin or self.order == other.order)

    def is_last(self, version: int) -> bool:
        """Return whether the loop gives no pass after the version that was made there."""
        if self.kind == "steps":
            return version >= self.total
        return self.kind == "epochs" and self.number >= self.total

    def __str__(self) -> str:
        return f"{self.kind or 'epochs'}({self.total})"


@dataclass(slots=True)
class _Beside:
    """Loops that began one after the other, all outside of others or in one pass of another."""

    begun: int = 0
    alike: Counter[tuple[Kind, int]] = field(default_factory=Counter)

    def begin(self, kind: Kind, total: int) -> Pass:
        order, twins = self.begun, self.alike[kind, total]
        self.begun += 1
        self.alike[kind, total] += 1
        return Pass(kind=kind, total=total, order=order, twins=twins, number=0)


class Loop:
    """One of the script's loops, while it runs."""

    def __init__(self, which: Pass, number: int) -> None:
        self._which = which
        self.number = number  # what it gave for that
        self.inside = _Beside()  # the loops inside of the pass under way

    @property
    def now(self) -> Pass:
        """Return the pass under way; a loop over steps is at a version's own number at its top."""
        is_told = self._which.kind == "epochs" or self.inside.begun
        return replace(self._which, number=self.number if is_told else 0)

    def begin(self, number: int) -> None:
        self.number = number

    def end_pass(self) -> None:
        self.inside = _Beside()


class ScriptLoops:
    """The loops of one start; see the module's text for the rules.

    Args:
        restored: The place of the version that was restored.
    """

    def __init__(self, restored: LoopPlace = (), version: int = 0) -> None:
        self.state = LoopState.NO_LOOP  # the script's progress through them
        self._awaited, self._version = restored, version
        self._left_out = 0  # updates that do not count
        self._stack: list[Loop] = []
        self._outside = _Beside()

    def enter(self, state: LoopState) -> None:
        """Go on to another state, if the script can come to it from where it is."""
        if state not in _NEXT[self.state]:
            raise ConfigError(
                f"the script was to be {state.value}, and it is {self.state.value}; begin each "
                "loop over protected.steps or protected.epochs before the script's end"
            )
        self.state = state

    @property
    def place(self) -> LoopPlace:
        return tuple(loop.now for loop in self._stack)

    @property
    def innermost(self) -> Kind | None:
        return self._stack[-1].now.kind if self._stack else None

    @property
    def epoch(self) -> int | None:
        """Return the number of the innermost running epoch; `None` outside of loops over epochs."""
        told = [one.number for one in self.place if one.kind == "epochs"]
        return told[-1] if told else None

    @property
    def awaited(self) -> Pass | None:
        """Return the loop that made the restored version, until it comes to its top."""
        return self._awaited[-1] if self._awaited else None

    @property
    def is_at_place(self) -> bool:
        """Return whether the innermost loop that runs is the one that made the restored version."""
        return bool(self._awaited) and len(self._stack) == len(self._awaited)

    @property
    def leads_to_place(self) -> bool:
        """Return whether a loop inside of the innermost one that runs is."""
        return len(self._stack) < len(self._awaited)

    def arrive(self) -> bool:
        """Await nothing more: the version is put back; return whether updates were left out."""
        left_out, self._left_out = self._left_out, 0
        self._awaited = ()
        return left_out > 0

    def leave_out(self) -> str:
        """Count an update before the loop that made the version; refuse too many.

        It returns a remark to the script's author, mostly an empty one.
        """
        self._left_out += 1
        if self._left_out == MOST_LEFT_OUT:
            raise ConfigError(
                f"version {self._version} was made in protected.{self.awaited}, and this start has "
                f"made {MOST_LEFT_OUT} updates, which do not count, and has not begun that loop; "
                f"{_SAME_LOOPS}"
            )
        is_said = self._left_out == _SAID_AFTER
        return _LEFT_OUT.format(version=self._version, loop=self.awaited) if is_said else ""

    def require_led(self) -> None:
        """Refuse the end of a pass that was to come to the loop which made the version."""
        if self.leads_to_place:
            raise ConfigError(
                f"version {self._version} was made in protected.{self.awaited} inside of another "
                f"loop, whose pass is over now and had no such loop; {_SAME_LOOPS}"
            )

    def require_arrived(self) -> None:
        """Refuse an end of the script that never came to the loop which made the version."""
        if self.awaited is not None and not self.awaited.is_last(self._version):
            raise ConfigError(
                f"version {self._version} was made in protected.{self.awaited}, and this start "
                f"came to its end without that loop; {_SAME_LOOPS}"
            )

    @contextmanager
    def within(self, kind: Kind, total: int) -> Iterator[Loop | None]:
        """Run a loop in the block; `None` if it was over when the restored version was made."""
        beside = self._stack[-1].inside if self._stack else self._outside
        which, number = beside.begin(kind, total), 0
        if self._awaited:
            again = self._awaited[len(self._stack)]
            if not again.is_of(which):
                yield None
                return
            number = again.number
        outside = self.state if self.state.is_in_loop else LoopState.BETWEEN
        self.enter(LoopState.UNTOLD)
        loop = Loop(which, number)
        self._stack.append(loop)
        try:
            yield loop
        finally:
            if loop in self._stack:
                del self._stack[self._stack.index(loop) :]
                if self.state is not LoopState.FINISHED:  # else Python closes the iterator late
                    self.enter(outside)


def place_to_small(place: LoopPlace) -> dict[str, object]:
    """Return the place of a version, as it travels in it: `place_in` finds it there."""
    return {
        _LOOPS: [
            [_KINDS.index(one.kind or "epochs"), one.total, one.order, one.twins, one.number]
            for one in place
        ]
    }


def place_in(small: StateView) -> LoopPlace:
    """Return the place of a version; one of an older release knows the number of an epoch alone."""
    if _LOOPS in small:
        return tuple(
            Pass(kind=_KINDS[kind], total=total, order=order, twins=twins, number=number)
            for kind, total, order, twins, number in small[_LOOPS]
        )
    epoch = small.get(_EPOCH, 0)
    if not isinstance(epoch, int) or not epoch:
        return ()
    return (Pass(kind=None, total=0, order=0, twins=0, number=epoch),)


ALOUD_S: Final = 1.0
"""At the end of an epoch, until others are waited for aloud."""
FIRST_LOOK_S: Final = 0.001
LONGEST_LOOK_S: Final = 0.5
"""Between two looks. With shorter ones a rank that waits for good would seem to work; and where the
store waits itself, it prints a warning each time that it looks up."""
UNKNOWN: Final = -1


class Ends:
    """The ends of one rank."""

    def __init__(self, worker: WorkerSession, *, is_broken: Callable[[], bool]) -> None:
        self._worker, self._is_broken = worker, is_broken
        # What was restored may be the last iteration of an epoch, of which no batch is left.
        self._is_restored = worker.start.plan.version is not None
        self._passed: int | None = None

    def say(self, what: End, iteration: int) -> None:
        start = self._worker.start
        said = EndReached(rank=start.rank, epoch=start.epoch, iteration=iteration, what=what)
        self._worker.say(said)

    def begin(self, iteration: int) -> None:
        self._passed = None if self._is_restored else iteration

    def end_pass(self, iteration: int) -> bool:
        """Return whether the pass through the data that is over now trained, and is the first."""
        before, self._passed = self._passed, iteration
        return before != iteration

    def meet(self, iteration: int, *, epoch: int, rewinds: int) -> None:
        """Return when all ranks are at the end of an epoch, after the same iteration."""
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
