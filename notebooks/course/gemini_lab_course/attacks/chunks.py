"""A chunk schedule's planner under attack: which byte is lost, and when does training wait?"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Final

from gemini_lab.errors import kind_of
from gemini_lab.pipeliner.planning import plan_chunks
from gemini_lab.pipeliner.schedule import Chunk, ChunkSchedule
from gemini_lab.pipeliner.timing import Pipeline, modelled_delay_s
from gemini_lab.profiler.profile import IdleSpan, Profile
from gemini_lab_course.attacks.outcome import BesideOurs, StageFault, counted
from gemini_lab_course.attacks.search import Attacked, NotOneError

LENGTHS_S: Final = (1.0, 3.5)
"""Of idle spans."""
LINKS: Final = ((0.0, 1.0), (0.5, 1.0), (0.25, 2.0))
"""What starting a message takes, in seconds, and how many bytes a second there are."""
BUFFERS: Final = ((4, 1), (5, 2), (3, 3))
"""A buffer's bytes, and its parts."""
BUSY_S: Final = 2.0
"""Of an iteration, beside its idle time."""
AFTER_S: Final = 4.0
"""Of an iteration, after the update has begun."""


@dataclass(frozen=True, kw_only=True)
class ChunkCase:
    """A checkpoint of some bytes for the idle spans of an iteration.

    Attributes:
        spans_s: Lengths of the idle spans before the update.
        has_late_span: Whether there is another one, behind the update, which is of no use.
        checkpoint_bytes: Size of the shard.
        replicas: Its copies, the owner's included.
        alpha_s: What starting a message takes.
        buffer_bytes: Memory for chunks on the way.
        sub_buffers: In how many parts.
        bandwidth_bytes_per_s: Of the link.
    """

    spans_s: tuple[float, ...]
    has_late_span: bool = False
    checkpoint_bytes: int
    replicas: int = 2
    alpha_s: float = 0.0
    buffer_bytes: int = 4
    sub_buffers: int = 1
    bandwidth_bytes_per_s: float = 1.0

    @cached_property
    def profile(self) -> Profile:
        """The iteration."""
        update_s = BUSY_S + sum(self.spans_s)
        late = [AFTER_S / 2] if self.has_late_span else []
        profile = Profile.synthetic(
            iteration_s=update_s + AFTER_S, idle_spans_s=self.spans_s, update_s=update_s
        )
        return _with_late(profile, late)

    @property
    def arguments(self) -> dict[str, object]:
        """As `plan_chunks` takes them; spans may be filled to their end."""
        return {
            "profile": self.profile,
            "checkpoint_bytes": self.checkpoint_bytes,
            "replicas": self.replicas,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "alpha_s": self.alpha_s,
            "buffer_bytes": self.buffer_bytes,
            "sub_buffers": self.sub_buffers,
            "mu": 1.0,
        }

    @property
    def room(self) -> str:
        """A receiver's buffer, in words."""
        parts = counted(self.sub_buffers, "sub-buffer")
        return f"{counted(self.buffer_bytes, 'byte')} in {parts}"

    @property
    def part_bytes(self) -> int:
        """The largest chunk that a sub-buffer has room for."""
        return self.buffer_bytes // self.sub_buffers

    def sending_s(self, chunk: Chunk) -> float:
        """Return how long a chunk is on the wire."""
        return self.alpha_s + chunk.size_bytes / self.bandwidth_bytes_per_s

    def delay_s(self, chunks: Sequence[Chunk]) -> float:
        """Return by how much these chunks lengthen the iteration."""
        pipeline = Pipeline(
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s,
            alpha_s=self.alpha_s,
            sub_buffers=self.sub_buffers,
        )
        sends = [(chunk.span, chunk.size_bytes) for chunk in chunks]
        return modelled_delay_s(self.profile, sends, pipeline)

    def __str__(self) -> str:
        spans = " and ".join(f"{each:g} s" for each in self.spans_s)
        late = ", another one behind the update" if self.has_late_span else ""
        return (
            f"{counted(self.checkpoint_bytes, 'byte')}, {counted(self.replicas, 'replica')}, "
            f"{self.bandwidth_bytes_per_s:g} B/s, alpha {self.alpha_s:g} s, a buffer of "
            f"{self.room}, idle for {spans or '0 s'}{late}"
        )


LARGE: Final = ChunkCase(
    spans_s=(90.0, 20.0, 150.0, 40.0),
    checkpoint_bytes=400,
    alpha_s=2.0,
    buffer_bytes=128,
    sub_buffers=4,
)
"""One that is short of time; figures are given for it."""


def _with_late(profile: Profile, lengths_s: Sequence[float]) -> Profile:
    """Return the same with idle spans behind the update."""
    late = [
        IdleSpan(
            start_s=profile.update_s + 1.0,
            duration_s=length_s,
            after=len(profile.collectives),
            before_update=False,
        )
        for length_s in lengths_s
    ]
    return replace(profile, idle_spans=(*profile.idle_spans, *late))


def cases() -> Iterator[ChunkCase]:
    """Few spans first, then few bytes, few replicas, harder sending; and at last `LARGE`."""
    for count in range(4):
        for checkpoint_bytes, replicas in itertools.product(range(6), (1, 2, 3)):
            harder = itertools.product(
                itertools.product(LENGTHS_S, repeat=count), LINKS, BUFFERS, (False, True)
            )
            for spans_s, (alpha_s, rate), (buffer_bytes, sub_buffers), has_late_span in harder:
                yield ChunkCase(
                    spans_s=spans_s,
                    has_late_span=has_late_span,
                    checkpoint_bytes=checkpoint_bytes,
                    replicas=replicas,
                    alpha_s=alpha_s,
                    buffer_bytes=buffer_bytes,
                    sub_buffers=sub_buffers,
                    bandwidth_bytes_per_s=rate,
                )
    yield LARGE


def read(answer: object) -> tuple[Chunk, ...]:
    """Return the chunks of a schedule, or chunks themselves, with plain numbers in them.

    Raises:
        NotOneError: The answer is neither.
    """
    given = answer.chunks if isinstance(answer, ChunkSchedule) else answer
    if not isinstance(given, Iterable):
        raise NotOneError(
            f"the answer has to be chunks, or a ChunkSchedule, and it is {kind_of(given)}"
        )
    return tuple(map(_chunk, given))


def _chunk(given: object) -> Chunk:
    if not isinstance(given, Chunk):
        raise NotOneError(f"the answer has to have Chunks in it, and there is {kind_of(given)}")
    return Chunk(
        span=None if given.span is None else _whole("span", given.span),
        replica=_whole("replica", given.replica),
        offset_bytes=_whole("offset_bytes", given.offset_bytes),
        size_bytes=_whole("size_bytes", given.size_bytes),
    )


def _whole(name: str, value: object) -> int:
    """Return a number of a chunk, whatever library's it was; 4.0 is one."""
    if isinstance(value, Real) and value % 1 == 0:
        return int(float(value))
    said = f"{float(value):g}" if isinstance(value, Real) else kind_of(value)
    raise NotOneError(f"a chunk's {name} has to be a whole number, and one is {said}")


def fault(case: ChunkCase, chunks: tuple[Chunk, ...]) -> StageFault | None:
    """Return what is wrong with a schedule: first lost bytes, then memory, then training's time."""
    return (
        _lost_bytes(case, chunks)
        or _too_large(case, chunks)
        or _strange_span(case, chunks)
        or _overfull(case, chunks)
        or _needless_delay(case, chunks)
    )


def _lost_bytes(case: ChunkCase, chunks: Sequence[Chunk]) -> StageFault | None:
    """Return what is lost: each remote replica needs every byte of the shard, once and in order."""
    for replica in sorted({*range(1, case.replicas), *(chunk.replica for chunk in chunks)}):
        at_bytes = 0
        own = [chunk for chunk in chunks if chunk.replica == replica]
        if not 1 <= replica < case.replicas:
            why = (
                f"a chunk is of replica {replica}, but the owner keeps one of "
                f"{counted(case.replicas, 'replica')}: {case.replicas - 1} are sent, from 1 on"
            )
            return StageFault(why=why)
        for chunk in own:
            if chunk.size_bytes < 1:
                return StageFault(why=f"a chunk of replica {replica} has {chunk.size_bytes} bytes")
            if chunk.offset_bytes != at_bytes:
                where = f"the next one is byte {at_bytes}, and a chunk begins at byte"
                return StageFault(why=f"in replica {replica}, {where} {chunk.offset_bytes}")
            at_bytes += chunk.size_bytes
        if at_bytes != case.checkpoint_bytes:
            sent = f"{at_bytes} of the {case.checkpoint_bytes} bytes are sent"
            return StageFault(
                why=f"of replica {replica}, {sent}: after a failure it cannot be loaded"
            )
    return None


def _too_large(case: ChunkCase, chunks: Sequence[Chunk]) -> StageFault | None:
    largest = max((chunk.size_bytes for chunk in chunks), default=0)
    if largest <= case.part_bytes:
        return None
    why = f"a chunk of {largest} bytes has no room at its receiver, which has {case.room}"
    return StageFault(why=why)


def _strange_span(case: ChunkCase, chunks: Sequence[Chunk]) -> StageFault | None:
    spans = case.profile.idle_spans
    order = [len(spans) if chunk.span is None else chunk.span for chunk in chunks]
    for chunk in chunks:
        if chunk.span is None:
            continue
        if not 0 <= chunk.span < len(spans):
            return StageFault(
                why=f"a chunk is for idle span {chunk.span}, and there are {len(spans)}"
            )
        if not spans[chunk.span].before_update:
            why = f"a chunk is for idle span {chunk.span}, in which the state is already changed"
            return StageFault(why=why, spans=(chunk.span,))
    if order != sorted(order):
        return StageFault(why="a chunk is for a span that is over when the chunk's turn comes")
    return None


def _overfull(case: ChunkCase, chunks: Sequence[Chunk]) -> StageFault | None:
    for number, span in enumerate(case.profile.idle_spans):
        taken_s = sum(case.sending_s(chunk) for chunk in chunks if chunk.span == number)
        if taken_s > span.duration_s * (1 + 1e-9):
            why = (
                f"the chunks for idle span {number} take {taken_s:g} s, and it is idle for "
                f"{span.duration_s:g} s: training's next collective waits"
            )
            return StageFault(why=why, spans=(number,))
    return None


def _needless_delay(case: ChunkCase, chunks: Sequence[Chunk]) -> StageFault | None:
    """Return what is wrong with the rest, which delays the update: a span has room for it."""
    if all(chunk.span is not None for chunk in chunks):
        return None
    for number, span in enumerate(case.profile.idle_spans):
        taken_s = sum(case.sending_s(chunk) for chunk in chunks if chunk.span == number)
        spare_bytes = (span.duration_s - taken_s - case.alpha_s) * case.bandwidth_bytes_per_s
        if span.before_update and spare_bytes >= 1 + 1e-9:
            why = f"bytes wait for the update, and idle span {number} has room for another chunk"
            return StageFault(why=why, spans=(number,))
    more_s = case.delay_s(chunks) - case.delay_s(reference(case))
    # A byte cannot be cut, nor a chunk be part of two replicas: that much is left open.
    if more_s > case.alpha_s + 2 / case.bandwidth_bytes_per_s:
        why = f"the update is delayed {more_s:g} s longer than need be"
        return StageFault(why=why)
    return None


def reference(case: ChunkCase) -> tuple[Chunk, ...]:
    """Return what this package's own planner gives."""
    schedule = plan_chunks(
        case.profile,
        checkpoint_bytes=case.checkpoint_bytes,
        replicas=case.replicas,
        bandwidth_bytes_per_s=case.bandwidth_bytes_per_s,
        alpha_s=case.alpha_s,
        buffer_bytes=case.buffer_bytes,
        sub_buffers=case.sub_buffers,
        mu=1.0,
    )
    return schedule.chunks


def figures(
    answered: Callable[[ChunkCase], tuple[Chunk, ...] | None],
) -> tuple[BesideOurs, ...]:
    """Compare the update's delay and messages, for an iteration that is short of time."""
    chunks = answered(LARGE)
    if chunks is None:
        return ()
    ours = reference(LARGE)
    return (
        BesideOurs(
            what="delay of the update, 400 bytes for 300 s of idle time",
            yours=LARGE.delay_s(chunks),
            reference=LARGE.delay_s(ours),
            optimum=_least_delay_s(LARGE),
            unit="s",
        ),
        BesideOurs(
            what="messages for it",
            yours=len(chunks),
            reference=len(ours),
            optimum=-(-LARGE.checkpoint_bytes // LARGE.part_bytes),
        ),
    )


def _least_delay_s(case: ChunkCase) -> float:
    """Return a bound: every span is filled with the largest chunks, as is the rest."""
    left_bytes = float(case.checkpoint_bytes)
    whole_s = case.alpha_s + case.part_bytes / case.bandwidth_bytes_per_s
    for span_s in case.spans_s:
        chunks, rest_s = divmod(span_s, whole_s)
        carried = chunks * case.part_bytes
        left_bytes -= carried + max(0.0, rest_s - case.alpha_s) * case.bandwidth_bytes_per_s
    messages = -(-max(0.0, left_bytes) // case.part_bytes)
    return messages * case.alpha_s + max(0.0, left_bytes) / case.bandwidth_bytes_per_s


CHUNKS: Final = Attacked(
    name="chunks",
    scope="up to 4 idle spans and 3 replicas, with mu = 1",
    read=read,
    fault=fault,
    figures=figures,
)
"""The stage."""
