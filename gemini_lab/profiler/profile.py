"""When the training network is busy and when it is idle, in one iteration (paper, section 5.4).

A `Profile` is made of the records of some iterations that ran without checkpoints. Times are
offsets from the iteration's start, in seconds; an iteration lasts from the end of one optimizer
step to the end of the next, and `update_s` is where that next step begins to change the states.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from gemini_lab.errors import ConfigError
from gemini_lab.units import format_bytes, format_seconds

STEADY_VARIATION: Final = 0.10
"""Largest normalised standard deviation of a profile to plan with (paper, section 5.4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRecord:
    """One collective as it was seen in one iteration.

    Attributes:
        name: The operation's name in torch.distributed, such as `"all_gather_into_tensor"`.
        size_bytes: The full tensor's size: of the gathered, the reduced or the broadcast one.
        start_s: When it was called, since the iteration's start.
        end_s: When its result was there, since the iteration's start.
    """

    name: str
    size_bytes: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective of the iteration: mean and standard deviation over the profiled ones."""

    name: str
    size_bytes: int
    start_s: float
    end_s: float
    start_std_s: float = 0.0
    end_std_s: float = 0.0

    @property
    def duration_s(self) -> float:
        """Return the mean seconds for which it occupies the network."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSpan:
    """A time between two collectives in which the network carries no training traffic.

    Attributes:
        start_s: Where it begins, since the iteration's start.
        duration_s: Its mean length.
        std_s: Standard deviation of its length over the profiled iterations.
        after: How many collectives of the iteration have been called when it begins.
        before_update: Whether it lies before the optimizer step, so that a checkpoint may use it.
    """

    start_s: float
    duration_s: float
    std_s: float = 0.0
    after: int = 0
    before_update: bool = True

    @property
    def end_s(self) -> float:
        """Return its end, in seconds since the iteration's start."""
        return self.start_s + self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The network's time line of one iteration, seen from one rank.

    Attributes:
        collectives: In the order of their calls.
        idle_spans: In order of time; `ChunkSchedule`s number the spans as they stand here.
        iteration_s: Mean duration of an iteration.
        iteration_std_s: Its standard deviation.
        update_s: Mean offset at which the optimizer step begins.
        iterations: How many iterations it is the mean of, without those that stalled; 0 for a
            synthetic profile.
        world_size: Number of ranks of the job.
        conditions: What made the machine unlike its bare self (a paced link, emulated accelerator
            time), in words; every result made with the profile names them.
    """

    collectives: tuple[Collective, ...]
    idle_spans: tuple[IdleSpan, ...]
    iteration_s: float
    iteration_std_s: float = 0.0
    update_s: float
    iterations: int
    world_size: int
    conditions: tuple[str, ...] = ()

    def __repr__(self) -> str:
        made = f"{self.iterations} iterations" if self.iterations else "synthetic"
        return (
            f"Profile({len(self.collectives)} collectives, {format_bytes(self.traffic_bytes)}, "
            f"iteration {format_seconds(self.iteration_s)}, idle {format_seconds(self.idle_s)} in "
            f"{len(self.idle_spans)} spans, {made}, {'steady' if self.steady else 'UNSTEADY'})"
        )

    @property
    def traffic_bytes(self) -> int:
        """Sum of the collectives' sizes."""
        return sum(collective.size_bytes for collective in self.collectives)

    @property
    def idle_s(self) -> float:
        """Network idle time of one iteration, before and after the update (paper, Fig. 8)."""
        return sum(span.duration_s for span in self.idle_spans)

    @property
    def collectives_before_update(self) -> int:
        """Return the number of collectives before the update."""
        return sum(collective.start_s < self.update_s for collective in self.collectives)

    @property
    def last_collective_end_s(self) -> float:
        """Return the end of the last collective before the update; leftovers can go from here."""
        ends = [c.end_s for c in self.collectives if c.start_s < self.update_s]
        return min(max(ends, default=0.0), self.update_s)

    @property
    def sequence(self) -> list[tuple[str, int]]:
        """Name and bytes of each collective, in order."""
        return [(collective.name, collective.size_bytes) for collective in self.collectives]

    @property
    def fingerprint(self) -> str:
        """Short hash of the sequence; the same for the same job."""
        text = "\n".join(f"{name} {size_bytes}" for name, size_bytes in self.sequence)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def variation(self) -> float:
        """Normalised standard deviation: of the iteration, or of the idle spans if larger."""
        iteration = self.iteration_std_s / self.iteration_s if self.iteration_s else 0.0
        idle = sum(span.std_s for span in self.idle_spans) / self.idle_s if self.idle_s else 0.0
        return max(iteration, idle)

    @property
    def steady(self) -> bool:
        """Return whether the timeline repeats closely enough to plan with."""
        return self.variation <= STEADY_VARIATION

    @property
    def verdict(self) -> str:
        """Steady or not, and why, in one sentence."""
        share = f"{self.variation:.1%}"
        if self.steady:
            return f"steady: times vary by {share} (limit {STEADY_VARIATION:.0%})"
        worst = max(self.idle_spans, key=lambda span: span.std_s, default=None)
        where = ""
        if worst is not None:
            length = f"{format_seconds(worst.duration_s)} +- {format_seconds(worst.std_s)}"
            where = f"; the span at {format_seconds(worst.start_s)} is {length}"
        return f"unsteady: times vary by {share} (limit {STEADY_VARIATION:.0%}){where}"

    def check_fits(self, *, sequence: Sequence[tuple[str, int]], world_size: int) -> None:
        """Refuse to be used for another job.

        Args:
            sequence: Name and bytes of each collective of the job at hand, in order.
            world_size: Number of ranks of the job at hand.

        Raises:
            ConfigError: The job differs; the message says where.
        """
        if world_size != self.world_size:
            raise ConfigError(
                f"the profile was made with {self.world_size} ranks, this job has {world_size}; "
                "profile this job"
            )
        difference = first_difference(self.sequence, sequence)
        if difference:
            raise ConfigError(f"the profile is of another job: {difference}; profile this job")

    def to_json(self) -> str:
        """Return the profile as JSON text."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the profile that `to_json` wrote.

        Raises:
            ConfigError: The text is not a profile.
        """
        try:
            fields: Any = json.loads(text)
            return cls(
                **fields
                | {
                    "collectives": tuple(Collective(**c) for c in fields["collectives"]),
                    "idle_spans": tuple(IdleSpan(**s) for s in fields["idle_spans"]),
                    "conditions": tuple(fields["conditions"]),
                }
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"this is no profile ({error!r}); `gemini-lab profile` makes one"
            ) from error

    @classmethod
    def synthetic(
        cls,
        *,
        iteration_s: float,
        idle_spans_s: Sequence[float],
        update_s: float | None = None,
        world_size: int = 1,
    ) -> Self:
        """Make a profile for simulations: idle spans of given lengths, busy time spread between.

        Args:
            iteration_s: Duration of an iteration.
            idle_spans_s: Lengths of the idle spans, in order; all lie before the update.
            update_s: Where the update begins; without it, at the iteration's end.
            world_size: Number of ranks.

        Raises:
            ConfigError: The spans are longer than the time before the update, or a time is no
                finite number.
        """
        update_s = iteration_s if update_s is None else update_s
        if not all(map(math.isfinite, [iteration_s, update_s, *idle_spans_s])):
            raise ConfigError(
                f"a profile's times are finite (got iteration_s={iteration_s}, "
                f"update_s={update_s}, idle_spans_s={list(idle_spans_s)})"
            )
        idle_s = sum(idle_spans_s)
        busy_s = update_s - idle_s
        if min([busy_s, iteration_s - update_s, *idle_spans_s]) < -1e-9 * iteration_s:
            raise ConfigError(
                f"idle spans of {idle_s} s do not fit before the update at {update_s} s of an "
                f"iteration of {iteration_s} s; no length may be negative"
            )
        piece_s = max(0.0, busy_s) / (len(idle_spans_s) + 1)
        collectives: list[Collective] = []
        spans: list[IdleSpan] = []
        at_s = 0.0
        for length_s in [*idle_spans_s, None]:
            busy = Collective(name="training", size_bytes=0, start_s=at_s, end_s=at_s + piece_s)
            collectives.append(busy)
            at_s = busy.end_s
            if length_s is not None:
                spans.append(IdleSpan(start_s=at_s, duration_s=length_s, after=len(collectives)))
                at_s += length_s
        return cls(
            collectives=tuple(collectives),
            idle_spans=tuple(spans),
            iteration_s=iteration_s,
            update_s=update_s,
            iterations=0,
            world_size=world_size,
        )


def first_difference(expected: Sequence[tuple[str, int]], found: Sequence[tuple[str, int]]) -> str:
    """Describe the first difference of two sequences of (name, bytes); empty if they agree."""
    for number, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one != other:
            return (
                f"collective {number} is {other[0]} of {format_bytes(other[1])} ({other[1]} B), "
                f"was {one[0]} of {format_bytes(one[1])} ({one[1]} B)"
            )
    if len(expected) != len(found):
        return f"{len(found)} collectives in an iteration, were {len(expected)}"
    return ""


BUSY: Final = "█"
PARTLY: Final = "▒"
IDLE: Final = "·"


def timeline(profile: Profile, *, width: int = 72) -> str:
    """One iteration as three lines: the network, the place of the update, a scale.

    A column is busy when training holds the network for all of it, partly so above a twentieth.
    """
    scale = width / profile.iteration_s if profile.iteration_s else 0.0
    idle = [0.0] * width
    for span in profile.idle_spans:
        for column in range(width):
            low, high = max(span.start_s * scale, column), min(span.end_s * scale, column + 1)
            idle[column] += max(0.0, high - low)
    marks = [BUSY if share < 0.05 else IDLE if share > 0.95 else PARTLY for share in idle]
    update = min(width - 1, int(profile.update_s * scale))
    return (
        f"network {''.join(marks)}\n"
        f"        {' ' * update}^ update\n"
        f"        0 ms{f'{profile.iteration_s * 1e3:.1f} ms':>{width - 4}}\n"
        f"        {BUSY} training traffic  {PARTLY} partly  {IDLE} idle"
    )


def report(profile: Profile, *, longest: int = 10) -> str:
    """Describe the profile, with at most `longest` idle spans."""
    parts = [repr(profile), "", timeline(profile), "", *_collectives(profile), ""]
    parts += [*_spans(profile, longest), "", f"verdict: {profile.verdict}"]
    parts += [f"made with {condition}" for condition in profile.conditions]
    return "\n".join(parts)


def _collectives(profile: Profile) -> Iterator[str]:
    """Yield the collectives, one line for each name and size."""
    yield f"{'collective':<26}{'calls':>6}{'each':>12}{'total time':>14}{'mean':>13}{'+-':>13}"
    kinds: dict[tuple[str, int], list[Collective]] = {}
    for collective in profile.collectives:
        kinds.setdefault((collective.name, collective.size_bytes), []).append(collective)
    for (name, size_bytes), ones in kinds.items():
        total_ms = sum(one.duration_s for one in ones) * 1e3
        deviation_ms = sum(one.end_std_s for one in ones) / len(ones) * 1e3
        yield (
            f"{name:<26}{len(ones):>6}{format_bytes(size_bytes):>12}{total_ms:>11.2f} ms"
            f"{total_ms / len(ones):>10.2f} ms{deviation_ms:>10.2f} ms"
        )


def _spans(profile: Profile, longest: int) -> Iterator[str]:
    yield f"{'idle span':<12}{'from':>12}{'length':>12}{'+-':>12}   {'share of idle':<15}"
    numbered = sorted(enumerate(profile.idle_spans), key=lambda pair: -pair[1].duration_s)
    for number, span in numbered[:longest]:
        place = "" if span.before_update else "after the update began"
        yield (
            f"{number:<12}{span.start_s * 1e3:>9.2f} ms{span.duration_s * 1e3:>9.2f} ms"
            f"{span.std_s * 1e3:>9.2f} ms   {span.duration_s / profile.idle_s:<9.0%}{place}"
        )
    rest = numbered[longest:]
    if rest:
        rest_ms = sum(span.duration_s for _, span in rest) * 1e3
        yield f"{f'{len(rest)} shorter':<12}{'':>12}{rest_ms:>9.2f} ms"
