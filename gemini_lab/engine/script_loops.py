"""The script's loops: which of them runs, and which of them made the version that was restored.

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
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

Kind = Literal["steps", "epochs"]
LoopPlace = tuple["Pass", ...]
"""Where in the script's loops something is, from the outermost; empty outside of them."""

_LOOPS: Final = "loops"
_EPOCH: Final = "epoch"
_KINDS: Final[tuple[Kind, ...]] = ("steps", "epochs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A pass of one of the script's loops.

    Attributes:
        kind: What the loop is over; `None` where an older version does not say.
        total: How many of these it was to come to.
        order: How many loops began beside it before.
        twins: How many of those were over as many of the same.
        number: What the loop gave for this pass.
    """

    kind: Kind | None
    total: int
    order: int
    twins: int
    number: int

    def is_of(self, other: "Pass") -> bool:
        """Whether both are passes of one loop, of which each start begins its own."""
        if self.kind is None or other.kind is None:
            return True
        is_twin = (self.total, self.twins) == (other.total, other.twins)
        return self.kind == other.kind and (is_twin or self.order == other.order)

    def is_last(self, version: int) -> bool:
        """Whether the loop gives no pass after the version that was made there."""
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
        """The next of them; it has given nothing yet."""
        order, twins = self.begun, self.alike[kind, total]
        self.begun += 1
        self.alike[kind, total] += 1
        return Pass(kind=kind, total=total, order=order, twins=twins, number=0)


class Loop:
    """One of the script's loops, while it runs.

    Args:
        which: It.
        number: What it gives first.

    Attributes:
        inside: The loops inside of the pass under way.
        number: What it gave for that.
    """

    def __init__(self, which: Pass, number: int) -> None:
        self._which = which
        self.number = number
        self.inside = _Beside()

    @property
    def now(self) -> Pass:
        """The pass under way; a loop over steps is at a version's own number at its top."""
        is_told = self._which.kind == "epochs" or self.inside.begun
        return replace(self._which, number=self.number if is_told else 0)

    def begin(self, number: int) -> None:
        """Give that number, for the next pass."""
        self.number = number

    def end_pass(self) -> None:
        """The pass under way is over, and with it the loops inside of it."""
        self.inside = _Beside()


class ScriptLoops:
    """The loops of one start; see the module's text for the rules.

    Args:
        restored: The place of the version that was restored.
    """

    def __init__(self, restored: LoopPlace = ()) -> None:
        self._awaited = restored
        self._stack: list[Loop] = []
        self._outside = _Beside()

    @property
    def place(self) -> LoopPlace:
        """Return where the script is now."""
        return tuple(loop.now for loop in self._stack)

    @property
    def innermost(self) -> Kind | None:
        """Return the kind of the innermost running loop; `None` outside of all."""
        return self._stack[-1].now.kind if self._stack else None

    @property
    def epoch(self) -> int | None:
        """The number of the innermost epoch that runs; `None` outside of loops over epochs."""
        told = [one.number for one in self.place if one.kind == "epochs"]
        return told[-1] if told else None

    @property
    def awaited(self) -> Pass | None:
        """The loop that made the restored version, until it comes to its top."""
        return self._awaited[-1] if self._awaited else None

    @property
    def is_at_place(self) -> bool:
        """Whether the innermost loop that runs is the one that made the restored version."""
        return bool(self._awaited) and len(self._stack) == len(self._awaited)

    @property
    def leads_to_place(self) -> bool:
        """Whether a loop inside of the innermost one that runs is."""
        return len(self._stack) < len(self._awaited)

    def arrive(self) -> None:
        """The version is put back where it was made: the script goes on from there."""
        self._awaited = ()

    @contextmanager
    def within(self, kind: Kind, total: int) -> Iterator[Loop | None]:
        """In it, a loop runs; `None` if it was over when the restored version was made."""
        beside = self._stack[-1].inside if self._stack else self._outside
        which, number = beside.begin(kind, total), 0
        if self._awaited:
            again = self._awaited[len(self._stack)]
            if not again.is_of(which):
                yield None
                return
            number = again.number
        loop = Loop(which, number)
        self._stack.append(loop)
        try:
            yield loop
        finally:
            if loop in self._stack:
                del self._stack[self._stack.index(loop) :]


def place_to_small(place: LoopPlace) -> dict[str, object]:
    """The place of a version, as it travels in it: `place_in` finds it there."""
    return {
        _LOOPS: [
            [_KINDS.index(one.kind or "epochs"), one.total, one.order, one.twins, one.number]
            for one in place
        ]
    }


def place_in(small: Mapping[str, Any]) -> LoopPlace:
    """The place of a version; one of an older release knows the number of an epoch alone."""
    if _LOOPS in small:
        return tuple(_pass_of(numbers) for numbers in small[_LOOPS])
    epoch = small.get(_EPOCH, 0)
    if not isinstance(epoch, int) or not epoch:
        return ()
    return (Pass(kind=None, total=0, order=0, twins=0, number=epoch),)


def _pass_of(numbers: Sequence[int]) -> Pass:
    kind, total, order, twins, number = numbers
    return Pass(kind=_KINDS[kind], total=total, order=order, twins=twins, number=number)
