"""Which chunk of a checkpoint goes into which idle span (paper, section 5.3, Algorithm 2)."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, Self, get_args

from gemini_lab.errors import CapacityError, ConfigError
from gemini_lab.pipeliner.timing import AT_START, AT_UPDATE, model_iteration
from gemini_lab.profiler.profile import Profile
from gemini_lab.units import MIB, format_bytes, format_seconds

Scheme = Literal["none", "blocking", "naive", "interleaved", "gemini"]
"""The five schemes of the paper's Fig. 16.

none: no checkpoint. blocking: the whole checkpoint at the start of each iteration. naive: one
piece a span, as large as the span. interleaved: many chunks a span through one buffer, sending and
copying in turn. gemini: many chunks through several sub-buffers, one copied while the next arrives.
"""

BUFFER_BYTES: Final = 128 * MIB
SUB_BUFFERS: Final = 4
MU: Final = 0.8
"""Share of a span that is planned full.

The paper gives no value. A profile counts as steady up to a normalised standard deviation of 10 %,
so a span two deviations shorter than its mean still has 80 % of it.
"""

HALVINGS: Final = 10
"""How often the length that makes a span a long one is halved before every span is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One message of the checkpoint.

    Attributes:
        span: Number of the idle span (`Profile.idle_spans`) that it fits; `None` where training
            has to wait for it.
        replica: Which replica it belongs to: 1 is the first holder after the owner, and so on.
        offset_bytes: Where in the shard it begins.
        size_bytes: How much it carries; at least 1.
    """

    span: int | None
    replica: int
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSchedule:
    """What one rank sends of each version, and when.

    Attributes:
        scheme: One of `Scheme`.
        chunks: In the order in which they leave. Chunks without a span leave at the start of the
            iteration under `"blocking"`, otherwise after the last collective before the update.
        every_iterations: Every how many iterations a version is sent (j).
        buffer_bytes: Memory between wire and slab (R), all sub-buffers together.
        sub_buffers: How many chunks are in it at once (p).
        iteration_s: Duration of an iteration without checkpoints, from the profile.
        predicted_iteration_s: Modelled duration of an iteration that sends a version.
        fingerprint: Of the profile that was planned with.
        notes: What the reader should know: what does not fit, and the way out.
    """

    scheme: Scheme
    chunks: tuple[Chunk, ...]
    every_iterations: int
    buffer_bytes: int
    sub_buffers: int
    iteration_s: float
    predicted_iteration_s: float
    fingerprint: str
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return (
            f"ChunkSchedule({self.scheme}, {len(self.chunks)} chunks, "
            f"{format_bytes(self.sent_bytes)}, left over {format_bytes(self.leftover_bytes)}, "
            f"predicted delay {format_seconds(self.delay_s)}, every {self.every_iterations} "
            f"iteration{'s' if self.every_iterations > 1 else ''})"
        )

    @property
    def sent_bytes(self) -> int:
        """Bytes of all chunks together."""
        return sum(chunk.size_bytes for chunk in self.chunks)

    @property
    def leftover(self) -> tuple[Chunk, ...]:
        """The chunks that fit no span and hold training up."""
        return self.in_span(None)

    @property
    def leftover_bytes(self) -> int:
        """Bytes that fit no span."""
        return sum(chunk.size_bytes for chunk in self.leftover)

    @property
    def delay_s(self) -> float:
        """By how much sending a version is predicted to lengthen its iteration."""
        return self.predicted_iteration_s - self.iteration_s

    @property
    def mean_iteration_s(self) -> float:
        """Predicted duration of an iteration, averaged over those with and without a version."""
        return self.iteration_s + self.delay_s / self.every_iterations

    def in_span(self, span: int | None) -> tuple[Chunk, ...]:
        """The chunks planned for idle span number `span`, in order."""
        return tuple(chunk for chunk in self.chunks if chunk.span == span)

    def to_json(self) -> str:
        """The schedule as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The schedule that `to_json` wrote.

        Raises:
            ConfigError: The text is not a schedule.
        """
        try:
            fields: Any = json.loads(text)
            chunks = tuple(Chunk(**chunk) for chunk in fields["chunks"])
            return cls(**fields | {"chunks": chunks, "notes": tuple(fields["notes"])})
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"this is no chunk schedule ({error!r}); plan_chunks makes one"
            ) from (error)


def plan_chunks(
    profile: Profile,
    *,
    checkpoint_bytes: int,
    replicas: int = 2,
    bandwidth_bytes_per_s: float,
    alpha_s: float = 0.0,
    copy_bytes_per_s: float = math.inf,
    scheme: Scheme = "gemini",
    buffer_bytes: int = BUFFER_BYTES,
    sub_buffers: int = SUB_BUFFERS,
    mu: float = MU,
    max_overhead: float | None = None,
) -> ChunkSchedule:
    """Cut a rank's checkpoint into chunks that fit the idle spans (paper, Algorithm 2).

    A span of length t takes chunks worth mu * t, one of s bytes costing alpha + s / B. What fits
    no span goes before the update and delays it. Four slips of the printed algorithm are repaired:
    its line 17 takes the time of the *remaining* bytes off the span, not the chunk's; its line 21
    plans m remote replicas, not m - 1; it loops for ever when what is left of a span is no longer
    than alpha, as the chunk's size is then 0; and it returns sizes without their spans.

    The printed algorithm knows no copy rate. Where copying is slower than the wire, `"gemini"` here
    plans with the copy's rate, which is then the pipeline's. It also takes any span that it meets;
    here those shorter than half of the longest are used only where the others do not suffice, then
    those shorter than a quarter, and so on: chunks in short spans are mostly start-up time, and
    come between collectives that training calls one upon the other.

    Args:
        profile: Of the job at hand; only spans before the update are used.
        checkpoint_bytes: Size of the rank's shard (C).
        replicas: Copies of each shard, the owner's included (m).
        bandwidth_bytes_per_s: The rank's share of its node's link (B).
        alpha_s: What starting a message takes.
        copy_bytes_per_s: How fast a received chunk leaves its sub-buffer; without it, at once.
        scheme: Which of the five.
        buffer_bytes: Memory for chunks between wire and slab (R).
        sub_buffers: How many parts it has (p); the interleaved scheme has one.
        mu: Share of each span to fill, in (0, 1].
        max_overhead: Largest tolerated mean delay as a share of the iteration. Where the delay is
            larger only every j-th version is sent. Without it, every version is.

    Raises:
        ConfigError: A setting is out of its range.
        CapacityError: A piece of the naive scheme is larger than the buffer.
    """
    _check_settings(
        scheme=scheme, replicas=replicas, sub_buffers=sub_buffers, mu=mu, max_overhead=max_overhead
    )
    _check_sizes(
        checkpoint_bytes=checkpoint_bytes,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        alpha_s=alpha_s,
        copy_bytes_per_s=copy_bytes_per_s,
        buffer_bytes=buffer_bytes,
        sub_buffers=sub_buffers,
    )
    parts = 1 if scheme in {"naive", "interleaved"} else sub_buffers
    every_span = [
        (number, mu * span.duration_s)
        for number, span in enumerate(profile.idle_spans)
        if span.before_update and scheme != "blocking"
    ]
    for spans in _choices(every_span):
        chunks = tuple(
            _cut(
                spans,
                checkpoint_bytes=checkpoint_bytes,
                remote=0 if scheme == "none" else replicas - 1,
                most_bytes=checkpoint_bytes if scheme == "naive" else buffer_bytes // parts,
                alpha_s=alpha_s,
                bytes_per_s=min(bandwidth_bytes_per_s, copy_bytes_per_s)
                if scheme == "gemini"
                else bandwidth_bytes_per_s,
                once=scheme == "naive",
            )
        )
        if all(chunk.span is not None for chunk in chunks):
            break
    _check_buffer(chunks, profile=profile, buffer_bytes=buffer_bytes)
    timeline = model_iteration(
        profile,
        [(chunk.span, chunk.size_bytes) for chunk in chunks],
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        alpha_s=alpha_s,
        copy_bytes_per_s=copy_bytes_per_s,
        sub_buffers=parts,
        leftover=AT_START if scheme == "blocking" else AT_UPDATE,
    )
    every = _frequency(timeline.iteration_s - profile.iteration_s, profile, max_overhead)
    schedule = ChunkSchedule(
        scheme=scheme,
        chunks=chunks,
        every_iterations=every,
        buffer_bytes=buffer_bytes,
        sub_buffers=parts,
        iteration_s=profile.iteration_s,
        predicted_iteration_s=timeline.iteration_s,
        fingerprint=profile.fingerprint,
    )
    starts_bytes = alpha_s * bandwidth_bytes_per_s
    return replace(schedule, notes=tuple(_notes(schedule, profile, starts_bytes=starts_bytes)))


def _choices(spans: list[tuple[int, float]]) -> Iterator[list[tuple[int, float]]]:
    """The long ones of the spans, each given with the time to fill; then more, at last all."""
    longest_s = max((fill_s for _, fill_s in spans), default=0.0)
    chosen: list[tuple[int, float]] = []
    for halving in range(1, HALVINGS + 1):
        long_ones = [one for one in spans if one[1] >= longest_s / 2**halving]
        if len(chosen) < len(long_ones) < len(spans):
            yield long_ones
        chosen = long_ones
    yield spans


def _cut(
    spans: list[tuple[int, float]],
    *,
    checkpoint_bytes: int,
    remote: int,
    most_bytes: int,
    alpha_s: float,
    bytes_per_s: float,
    once: bool,
) -> Iterator[Chunk]:
    """Chunks for the spans, each given with the time to fill, and at last for no span at all.

    Ends for every input: each turn of the inner loop either takes at least one byte or leaves.
    """
    replica, offset_bytes = 1, 0
    for span, budget_s in [*spans, (None, math.inf)]:
        left_s = budget_s
        while replica <= remote and checkpoint_bytes > 0:
            size_bytes = min(most_bytes, checkpoint_bytes - offset_bytes)
            if left_s < alpha_s + size_bytes / bytes_per_s:
                size_bytes = min(size_bytes, math.floor((left_s - alpha_s) * bytes_per_s))
            if size_bytes < 1:
                break
            yield Chunk(
                span=span, replica=replica, offset_bytes=offset_bytes, size_bytes=size_bytes
            )
            left_s -= alpha_s + size_bytes / bytes_per_s
            offset_bytes += size_bytes
            if offset_bytes == checkpoint_bytes:
                replica, offset_bytes = replica + 1, 0
            if once and span is not None:
                break


def _check_settings(
    *, scheme: str, replicas: int, sub_buffers: int, mu: float, max_overhead: float | None
) -> None:
    if scheme not in get_args(Scheme):
        raise ConfigError(f"scheme={scheme!r} is unknown; choose one of {get_args(Scheme)}")
    if replicas < 1:
        raise ConfigError(f"replicas={replicas} must be at least 1, which is the owner's own copy")
    if sub_buffers < 1:
        raise ConfigError(f"sub_buffers={sub_buffers} must be at least 1 (the paper has 4)")
    if not 0 < mu <= 1:
        raise ConfigError(f"mu={mu} must be above 0 and at most 1; {MU} suits a steady profile")
    if max_overhead is not None and not max_overhead > 0:
        raise ConfigError(
            f"max_overhead={max_overhead} must be above 0; leave it out to send every version"
        )


def _check_sizes(
    *,
    checkpoint_bytes: int,
    bandwidth_bytes_per_s: float,
    alpha_s: float,
    copy_bytes_per_s: float,
    buffer_bytes: int,
    sub_buffers: int,
) -> None:
    if checkpoint_bytes < 0:
        raise ConfigError(f"checkpoint_bytes={checkpoint_bytes} cannot be negative")
    if not (bandwidth_bytes_per_s > 0 and math.isfinite(bandwidth_bytes_per_s)):
        raise ConfigError(
            f"bandwidth_bytes_per_s={bandwidth_bytes_per_s} must be finite and above 0; calibrate"
        )
    if not copy_bytes_per_s > 0:
        raise ConfigError(f"copy_bytes_per_s={copy_bytes_per_s} must be above 0; calibrate it")
    if not (alpha_s >= 0 and math.isfinite(alpha_s)):
        raise ConfigError(f"alpha_s={alpha_s} must be at least 0 and finite; calibrate it")
    if buffer_bytes < sub_buffers:
        raise ConfigError(
            f"buffer_bytes={buffer_bytes} leaves nothing for each of {sub_buffers} sub-buffers; "
            f"the paper has {format_bytes(BUFFER_BYTES)} in {SUB_BUFFERS}"
        )


def _check_buffer(chunks: tuple[Chunk, ...], *, profile: Profile, buffer_bytes: int) -> None:
    """Refuse a chunk larger than the whole buffer: the paper's out-of-memory case of Fig. 16."""
    largest = max(chunks, key=lambda chunk: chunk.size_bytes, default=None)
    if largest is None or largest.size_bytes <= buffer_bytes:
        return
    where = "what fits no span"
    if largest.span is not None:
        length_s = profile.idle_spans[largest.span].duration_s
        where = f"idle span {largest.span} ({format_seconds(length_s)})"
    raise CapacityError(
        f"the naive scheme sends {format_bytes(largest.size_bytes)} in one piece for {where}, but "
        f"the buffer is {format_bytes(buffer_bytes)}; use 'gemini', or raise buffer_bytes"
    )


def _frequency(delay_s: float, profile: Profile, max_overhead: float | None) -> int:
    """Every how many iterations to send, so that the mean delay stays within `max_overhead`."""
    if max_overhead is None or delay_s <= max_overhead * profile.iteration_s:
        return 1
    if profile.iteration_s <= 0:
        raise ConfigError(
            f"max_overhead={max_overhead} of an iteration of {profile.iteration_s} s allows no "
            "delay; leave it out"
        )
    return math.ceil(delay_s / (max_overhead * profile.iteration_s))


def _notes(schedule: ChunkSchedule, profile: Profile, *, starts_bytes: float) -> Iterator[str]:
    """What a reader of the schedule should know.

    Args:
        schedule: The schedule.
        profile: What it was planned with.
        starts_bytes: What the wire could carry while a message starts (alpha * B).
    """
    if not schedule.chunks:
        return
    if schedule.scheme != "blocking" and not profile.steady:
        yield f"the profile is {profile.verdict}; the traffic may be felt"
    if schedule.scheme != "blocking" and schedule.leftover:
        sent, left = schedule.sent_bytes, schedule.leftover_bytes
        idle_s = sum(span.duration_s for span in profile.idle_spans if span.before_update)
        yield (
            f"{format_bytes(left)} of {format_bytes(sent)} do not fit {format_seconds(idle_s)} of "
            f"idle time and delay the update; use fewer replicas, or set max_overhead"
        )
    part_bytes = schedule.buffer_bytes // schedule.sub_buffers
    if part_bytes < starts_bytes:
        yield (
            f"a chunk of {format_bytes(part_bytes)} takes longer to start than to send; raise "
            f"buffer_bytes to {format_bytes(starts_bytes * schedule.sub_buffers)} or more"
        )
    if schedule.every_iterations > 1:
        yield (
            f"only one version in {schedule.every_iterations} is sent: it delays its iteration by "
            f"{format_seconds(schedule.delay_s)}"
        )
