"""Lines of plain training as columns: what every rank tells in every iteration, most of any log.

Entries cost much one by one, and numbers in a column hardly anything. So lines between which
nothing else happened are read at once, and what is made of them is made of whole columns. What is
odd in any way is left to `gemini_lab.log.entry`: each line of a stretch is an event of a kind that
comes in every iteration, all are of one epoch, and no number is beyond its bounds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Union

import msgspec
import numpy as np
import numpy.typing as npt

from gemini_lab.log.entry import is_odd
from gemini_lab.log.events import (
    Collectives,
    Event,
    Iteration,
    IterationBegun,
    Transfer,
    VersionComplete,
)

MOST_LINES: Final = 10_000
"""In one stretch."""
FEWEST_LINES: Final = 100
"""With fewer, columns are slower than entries one by one."""
MOST_CALLS: Final = 60_000
"""Collectives in one stretch; those of a line come together."""
MOST_RANKS: Final = 1 << 16
MOST: Final = 1 << 30
"""Of iterations, versions, and microseconds of a collective."""
MOST_BYTES: Final = 1 << 48
LONGEST_S: Final = 1e9
LATEST_S: Final = 1e12

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_IN_A_LIST: Final = b"0123456789-,"


def _line_of(kind: type[Event], raw: Sequence[str] = ()) -> type[Any]:
    """The class of a kind's lines: as strict as the event's, with moment and node, and flat."""
    fields: list[Any] = [("at_s", float), ("node", str)]
    for field in msgspec.structs.fields(kind):
        of = msgspec.Raw if field.name in raw else field.type
        has_value = field.default is not msgspec.NODEFAULT
        usual = field.default if has_value else msgspec.field(default_factory=dict)
        fields.append((field.name, of) if field.required else (field.name, of, usual))
    return msgspec.defstruct(
        kind.__name__,
        fields,
        kw_only=True,
        forbid_unknown_fields=True,
        tag_field="kind",
        tag=kind.__struct_config__.tag,
        gc=False,
    )


_BEGUN: Final = _line_of(IterationBegun)
_CALLED: Final = _line_of(Collectives, ("order", "gaps_us", "durations_us"))
_SENT: Final = _line_of(Transfer)
_WHOLE: Final = _line_of(VersionComplete)
_DONE: Final = _line_of(Iteration)
_LINE: Final = msgspec.json.Decoder(Union[_BEGUN, _CALLED, _SENT, _WHOLE, _DONE])  # noqa: UP007


@dataclass(frozen=True, slots=True)
class Called:
    """The collectives of a stretch; a row is an iteration of a rank, or one call.

    Attributes:
        line: Of each event, its line. Shape `(events,)`, as the next ones.
        iteration: Its number.
        began_s: When its iteration began.
        count: Its calls.
        kinds: Which of `told` are its kinds.
        told: The kinds of calls that an event names, in order of appearance, each list once.
        order: Of each call, its kind. Shape `(calls,)`, as the next ones.
        gaps_us: Since the call before it.
        durations_us: How long it took.
    """

    line: Ints
    iteration: Ints
    began_s: Floats
    count: Ints
    kinds: Ints
    told: list[tuple[tuple[str, int], ...]]
    order: Ints
    gaps_us: Ints
    durations_us: Ints


@dataclass(frozen=True, slots=True)
class Sent:
    """The transfers of a stretch, columns of the shape `(transfers,)`; `span` is -1 for none."""

    line: Ints
    version: Ints
    span: Ints
    peer: Ints
    sent_bytes: Ints
    start_s: Floats
    end_s: Floats


@dataclass(frozen=True, slots=True)
class Whole:
    """The versions that were whole in a stretch; `whole_s` is NaN where it was not said."""

    line: Ints
    version: Ints
    sent_bytes: Ints
    next_version: Ints
    duration_s: Floats
    whole_s: Floats


@dataclass(frozen=True, slots=True)
class Done:
    """The iterations of a stretch, and what was logged with each."""

    line: Ints
    iteration: Ints
    duration_s: Floats
    waited_s: Floats
    values: list[dict[str, float | str]]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some lines of plain training, of one epoch.

    Attributes:
        lines: They.
        epoch: Theirs.
        at_s: When each was told. Shape `(lines,)`, as the next ones.
        rank: Whose it is.
        node: Who told it: a place in `nodes`.
        nodes: Names, in order of appearance.
    """

    lines: Sequence[bytes]
    epoch: int
    at_s: Floats
    rank: Ints
    node: Ints
    nodes: list[str]
    called: Called
    sent: Sent
    whole: Whole
    done: Done

    @property
    def newest_s(self) -> float:
        """The latest moment."""
        return float(self.at_s.max())


def pieces(lines: Sequence[bytes]) -> Iterator[Stretch | Sequence[bytes]]:
    """The lines, in order, as stretches where they can be and as they are where not."""
    told: list[Any] = []
    calls, begin = 0, 0
    for place, line in enumerate(lines):
        try:
            one: Any = None if is_odd(line) else _LINE.decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            one = None
        if type(one) is _CALLED:
            calls += bytes(one.order).count(b",") + 1
        if one is None or len(told) == MOST_LINES or calls > MOST_CALLS:
            yield from _made(lines[begin:place], told)
            told, calls, begin = [], 0, place
        if one is None:
            yield lines[place : place + 1]
            begin = place + 1
        else:
            told.append(one)
    yield from _made(lines[begin:], told)


def _made(lines: Sequence[bytes], told: Sequence[Any]) -> Iterator[Stretch | Sequence[bytes]]:
    if not lines:
        return
    try:
        yield _stretch(lines, told) if len(told) >= FEWEST_LINES else lines
    except (OverflowError, ValueError):
        yield lines


def _stretch(lines: Sequence[bytes], told: Sequence[Any]) -> Stretch:
    """The columns of decoded lines.

    Raises:
        ValueError: A line is odd.
        OverflowError: The same.
    """
    numbers: dict[str, int] = {}
    epochs = {one.epoch for one in told}
    if len(epochs) != 1:
        raise ValueError("lines are of several epochs")
    kind = list(map(type, told))
    return Stretch(
        lines=lines,
        epoch=_bounded(np.array([*epochs], np.int64), MOST).item(),
        at_s=_moments(told, "at_s"),
        rank=_bounded(_ints(told, "rank"), MOST_RANKS),
        node=np.array([numbers.setdefault(one.node, len(numbers)) for one in told], np.int64),
        nodes=list(numbers),
        called=_called(*_of(_CALLED, kind, told)),
        sent=_sent(*_of(_SENT, kind, told)),
        whole=_whole(*_of(_WHOLE, kind, told)),
        done=_done(*_of(_DONE, kind, told)),
    )


def _of(
    wanted: type[Any], kind: Sequence[type[Any]], told: Sequence[Any]
) -> tuple[Ints, list[Any]]:
    """The lines of a kind, and what they say."""
    places = [place for place, each in enumerate(kind) if each is wanted]
    return np.array(places, np.int64), [told[place] for place in places]


def _called(line: Ints, told: Sequence[Any]) -> Called:
    kinds: dict[tuple[tuple[str, int], ...], int] = {}
    which = np.array([kinds.setdefault(one.kinds, len(kinds)) for one in told], np.int64)
    count, order = _joined([bytes(one.order) for one in told])
    others = [_joined([bytes(getattr(one, name)) for one in told]) for name in _TIMES]
    if any((count != counts).any() for counts, _ in others):
        raise ValueError("order, gaps_us and durations_us are not of one length")
    known = np.array([len(each) for each in kinds], np.int64)[which]
    if (order < 0).any() or (order >= np.repeat(known, count)).any():
        raise ValueError("order names a kind that is not there")
    for each in kinds:
        _bounded(np.array([size_bytes for _, size_bytes in each], np.int64), MOST_BYTES)
    (_, gaps_us), (_, durations_us) = others
    return Called(
        line=line,
        iteration=_bounded(_ints(told, "iteration"), MOST),
        began_s=_moments(told, "began_s"),
        count=count,
        kinds=which,
        told=list(kinds),
        order=order,
        gaps_us=_bounded(gaps_us, MOST, least=-MOST),
        durations_us=_bounded(durations_us, MOST),
    )


_TIMES: Final = ("gaps_us", "durations_us")


def _joined(lists: Sequence[bytes]) -> tuple[Ints, Ints]:
    """How long each list of whole numbers is, and all of them, from JSON."""
    texts = [text[1:-1].replace(b" ", b"") for text in lists]
    if any(text[:1] != b"[" for text in lists) or b"".join(texts).translate(None, _IN_A_LIST):
        raise ValueError("a list has something else than whole numbers")
    count = np.array([text.count(b",") + bool(text) for text in texts], np.int64)
    numbers = np.fromstring(b",".join(filter(None, texts)), np.int64, sep=",")
    if len(numbers) != count.sum():
        raise ValueError("a list cannot be read")
    return count, numbers


def _sent(line: Ints, told: Sequence[Any]) -> Sent:
    start_s, end_s = (_moments(told, name) for name in ("start_s", "end_s"))
    span = np.array([-1 if one.span is None else one.span for one in told], np.int64)
    if (end_s < start_s).any():
        raise ValueError("a transfer ended before it began")
    return Sent(
        line=line,
        version=_bounded(_ints(told, "version"), MOST),
        span=_bounded(span, MOST, least=-1),
        peer=_bounded(_ints(told, "peer"), MOST_RANKS),
        sent_bytes=_bounded(_ints(told, "sent_bytes"), MOST_BYTES),
        start_s=start_s,
        end_s=end_s,
    )


def _whole(line: Ints, told: Sequence[Any]) -> Whole:
    said = [np.nan if one.whole_s is None else one.whole_s for one in told]
    whole_s = np.array(said, np.float64)
    if (abs(whole_s) >= LATEST_S).any():
        raise ValueError("no clock shows that")
    return Whole(
        line=line,
        version=_bounded(_ints(told, "version"), MOST),
        sent_bytes=_bounded(_ints(told, "sent_bytes"), MOST_BYTES),
        next_version=_bounded(_ints(told, "next_version"), MOST),
        duration_s=_lengths(told, "duration_s"),
        whole_s=whole_s,
    )


def _done(line: Ints, told: Sequence[Any]) -> Done:
    if any(one.restored for one in told):
        raise ValueError("an iteration is told again")
    return Done(
        line=line,
        iteration=_bounded(_ints(told, "iteration"), MOST),
        duration_s=_lengths(told, "duration_s"),
        waited_s=_lengths(told, "waited_s"),
        values=[one.values for one in told],
    )


def _ints(told: Sequence[Any], name: str) -> Ints:
    return np.fromiter(map(attrgetter(name), told), np.int64, len(told))


def _bounded(numbers: Ints, most: int, *, least: int = 0) -> Ints:
    if ((numbers < least) | (numbers >= most)).any():
        raise ValueError("a number is beyond its bounds")
    return numbers


def _floats(told: Sequence[Any], name: str) -> Floats:
    return np.fromiter(map(attrgetter(name), told), np.float64, len(told))


def _moments(told: Sequence[Any], name: str) -> Floats:
    found = _floats(told, name)
    if not (abs(found) < LATEST_S).all():
        raise ValueError("no clock shows that")
    return found


def _lengths(told: Sequence[Any], name: str) -> Floats:
    found = _floats(told, name)
    if not ((found >= 0) & (found < LONGEST_S)).all():
        raise ValueError("nothing takes so long")
    return found
