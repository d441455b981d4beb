"""A schedule as data: which chunk of a checkpoint goes into which idle span."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Self

from gemini_lab.errors import ConfigError
from gemini_lab.units import MIB, format_bytes, format_seconds

Scheme = Literal["none", "blocking", "naive", "interleaved", "gemini"]
"""The five schemes of the paper's Fig. 16.

none: no checkpoint. blocking: the whole checkpoint at the start of each iteration. naive: one
piece a span, as large as the span. interleaved: many chunks a span through one buffer, sending and
copying in turn. gemini: many chunks through several sub-buffers, one copied while the next arrives.
"""

Algorithm = Literal["drain", "paper"]
"""How the gemini scheme is planned: with the sub-buffers' drain in view, or as in the paper."""

BUFFER_BYTES: Final = 128 * MIB
SUB_BUFFERS: Final = 4
NO_DELAY: Final = 1e-9
"""Share of an iteration that is a rounding error."""
MU: Final = 0.8
"""Share of a span that is planned full.

The paper gives no value. A profile counts as steady up to a normalised standard deviation of 10 %,
so a span two deviations shorter than its mean still has 80 % of it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One message of the checkpoint.

    Attributes:
        span: Number of the idle span (`Profile.idle_spans`) in which it leaves; `None` where it
            leaves in none, and training waits for it.
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
    """Schedule of the chunks that one rank sends of each version.

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
        algorithm: One of `Algorithm`; it is the gemini scheme's alone.
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
    algorithm: Algorithm = "paper"

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
        """The chunks that leave in no span and hold training up."""
        return self.in_span(None)

    @property
    def leftover_bytes(self) -> int:
        """Bytes that leave in no span."""
        return sum(chunk.size_bytes for chunk in self.leftover)

    @property
    def delay_s(self) -> float:
        """By how much sending a version is predicted to lengthen its iteration."""
        return self.predicted_iteration_s - self.iteration_s

    @property
    def mean_iteration_s(self) -> float:
        """Predicted duration of an iteration, averaged over those with and without a version."""
        return self.iteration_s + self.delay_s / self.every_iterations

    @property
    def fits(self) -> bool:
        """Whether sending a version is predicted to delay nothing."""
        return self.delay_s <= NO_DELAY * self.iteration_s

    def in_span(self, span: int | None) -> tuple[Chunk, ...]:
        """Return the chunks planned for idle span number `span`, in order."""
        return tuple(chunk for chunk in self.chunks if chunk.span == span)

    def to_json(self) -> str:
        """Return the schedule as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the schedule that `to_json` wrote.

        Raises:
            ConfigError: The text is not a schedule.
        """
        try:
            fields: Any = json.loads(text)
            chunks = tuple(Chunk(**chunk) for chunk in fields["chunks"])
            return cls(**fields | {"chunks": chunks, "notes": tuple(fields["notes"])})
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"this is no chunk schedule ({error!r}); plan_chunks makes one"
            ) from (error)
