"""Warnings to the user, found at a script's first versions."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from torch.utils.data.dataloader import _BaseDataLoaderIter

from gemini_lab.engine.made_objects import made_objects
from gemini_lab.engine.state.loaders import KINDS, LoaderWatch
from gemini_lab.engine.state.script_state import ScriptState
from gemini_lab.shard.codec import decode, encode


class StrayLoaders:
    """Looks at iterators of loaders, and keeps none of them alive.

    Args:
        sources: What says where the data stand: loaders or their watches, or objects that may read
            a loader by themselves; where there is such a one, nothing is looked at.
    """

    def __init__(self, sources: Sequence[object]) -> None:
        loaders = [one.loader if isinstance(one, LoaderWatch) else one for one in sources]
        self._is_blind = not all(isinstance(one, KINDS) for one in loaders)
        self._known = {id(part) for loader in loaders for part in _samplers(loader)}
        self._seen: list[tuple[weakref.ref[Any], int]] = []

    def look(self) -> None:
        """See who is amid an epoch."""
        if self._is_blind:
            return
        self._seen = [
            (weakref.ref(one), taken)
            for one in made_objects()
            if isinstance(one, _BaseDataLoaderIter)
            and (taken := _taken_amid(one))
            and self._known.isdisjoint(map(id, _samplers(one)))
        ]

    def read_on(self) -> list[str]:
        """The data sets of loaders that were read on since the last look; asked once of each."""
        seen, self._seen = self._seen, []
        alive = [(one, taken) for held, taken in seen if (one := held()) is not None]
        return sorted({_name(one) for one, taken in alive if _taken_amid(one) > taken})


def _samplers(reads: Any) -> list[object]:
    """By which a loader and its iterators are known: its batches' indices, and where they are from.

    Args:
        reads: A loader, or an iterator of one.
    """
    names = ("_index_sampler", "batch_sampler", "sampler", "data_sampler")
    found = [getattr(reads, name, None) for name in names]
    found += [getattr(one, "sampler", None) for one in found]
    return [one for one in found if one is not None]


def _taken_amid(iterator: Any) -> int:
    """How many batches an iterator has given; 0 where its epoch has not begun, or is over."""
    taken: int = getattr(iterator, "_num_yielded", 0)  # one that could not be made has none
    try:
        return taken if taken < len(iterator) else 0
    except Exception:  # noqa: BLE001 - a stream has no length, and a sampler's own may be amiss
        return taken


def _name(iterator: Any) -> str:
    # A DataLoader's iterator has no public way to its data set.
    return f"a DataLoader of a {type(iterator._dataset).__name__}"  # noqa: SLF001


_LOOKS: Final = 3  # so many versions of a worker are looked at
_GLANCES: Final = (3, 10, 30, 100, 300, 1000, 3000)  # versions, after which it is looked around

STANDS_STILL: Final = (
    "the position in the data stood still during an iteration, so it will not come back: give "
    "`protect` the loader that training reads, and make its iterator afterwards"
)
TAKE_TURNS: Final = (
    "two iterators of one loader are read in turn, and a version has the place of the newer one "
    "alone: give what is read in between, such as an evaluation, a loader of its own"
)
ARE_STRAYS: Final = (
    "the script reads, from one iteration to the next, loaders that it has not handed over ({}), "
    "and after a failure they begin anew: make them before `protect`, and name all that the loop "
    "reads: protect(..., data=[loader, other])"
)
IS_AMBIGUOUS: Final = (
    "between the step and the next forward pass the script drew random numbers or changed "
    "client_state, and a version has both as they were right after the step; where that belongs to "
    "the iteration before (an evaluation, a counter), loop `for step in protected.steps(N)`"
)
ASKS_NOTHING: Final = (
    "the script has not asked where to go on, and a loop from 0 would do the first iterations once "
    "more after a recovery; loop `for step in protected.steps(N)`, or from protected.step"
)
ARE_NOT_KEPT: Final = (
    "what stands beside the engine's weights changes while it trains ({}), and will not come back "
    "after a failure: where no other way is said there, name what holds it, such as an average or "
    'another model and its optimizer: protect(..., also={{"ema": ema}})'
)

COMES_LATE: Final = (
    "a schedule of the optimizer was made after `protect` ({}), and no version has it: after a "
    "failure it would begin anew, from the rate that was put back; make it before `protect`"
)
DATA_CHANGE: Final = (
    "the data change what no version has ({}), and after a failure that is as at the start: where "
    "later batches depend on it, give what holds it `state_dict` and `load_state_dict`, and name "
    'that: protect(..., also={{"data": dataset}}); what only saves time may stay'
)


class ScriptWatch:
    """Looks at what a script does around its versions, and says each thing once.

    Args:
        script: What the script handed over.
        remark: Called with what its author should know.
        notices: Gives more of that.
    """

    def __init__(
        self,
        script: ScriptState,
        remark: Callable[[str], None],
        notices: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._script, self._remark, self._notices = script, remark, notices
        self._strays = StrayLoaders(script.sources)
        self._looks = _LOOKS
        self._sealed = 0
        self._positions = b""
        self._at_fetch: bytes | None = None  # what was drawn when a loader was first asked
        self._said: list[str] = []
        for loader in script.watches:
            loader.on_fetch = self._see_fetch
            loader.on_return = partial(self._remark_once, TAKE_TURNS)

    @property
    def remarks(self) -> Sequence[str]:
        """Return what was said until now."""
        return self._said

    def end_update(self) -> None:
        """A loader that is asked from here on reads for the next iteration."""
        self._at_fetch = None

    def see_version(self, drawn: bytes, *, at_top: bool, is_asked: bool) -> None:
        """A version is sealed.

        Args:
            drawn: What was drawn and counted when its update ended.
            at_top: The script is at the top of its loop.
            is_asked: The script has asked where to go on.
        """
        if self._looks:
            self._look(decode(drawn), at_top=at_top, is_asked=is_asked)
        self._sealed += 1
        for text in self._notices():
            self._remark_once(text)
        if strays := self._strays.read_on():
            self._remark_once(ARE_STRAYS.format(", ".join(strays)))
        if self._sealed in (1, *_GLANCES):
            self._strays.look()
            if late := self._script.late_schedules():
                self._remark_once(COMES_LATE.format(", ".join(late)))
        if self._sealed in _GLANCES and (names := self._script.bystanders()):
            self._remark_once(ARE_NOT_KEPT.format(", ".join(names)))
        if self._sealed in _GLANCES and (changes := self._script.data_changes()):
            self._remark_once(DATA_CHANGE.format(", ".join(changes)))

    def _look(self, drawn: Mapping[str, Any], *, at_top: bool, is_asked: bool) -> None:
        self._looks -= 1
        positions = encode([_place(one) for one in drawn["data"]])
        if drawn["data"] and positions == self._positions:
            self._remark_once(STANDS_STILL)
        self._positions = positions
        others = {name: drawn[name] for name in ("client", "also", "own", "random")}
        if not at_top and encode(others) != (self._at_fetch or encode(self._script.others())):
            self._remark_once(IS_AMBIGUOUS)
        if not self._looks and not is_asked:
            self._remark_once(ASKS_NOTHING)

    def _see_fetch(self) -> None:
        """A loader is asked for a batch: what is drawn from here on is drawn for that."""
        if self._looks and self._at_fetch is None:
            self._at_fetch = encode(self._script.others())

    def _remark_once(self, text: str) -> None:
        if text not in self._said:
            self._said.append(text)
            self._remark(text)


def _place(position: Any) -> Any:
    """A position without what the data count and draw, which they may do for others, too."""
    is_counted = isinstance(position, dict) and "taken" in position
    names = position.keys() - {"own", "counts"} if is_counted else ()
    return {name: position[name] for name in sorted(names)} if is_counted else position
