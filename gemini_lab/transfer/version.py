"""A version on its way: what leaves a rank, between whom it travels, and what moving it took."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import torch

from gemini_lab.errors import ConfigError, IntegrityError
from gemini_lab.memory.slab_form import Bytes, Chunked
from gemini_lab.shard.lineage import NO_LINEAGE, Lineage
from gemini_lab.transfer.device_queues import Lanes
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.link import LinkBucket, sleep_until

Pieces = Sequence[tuple[int, torch.Tensor]]
"""Offset in the payload, and the flat tensor whose bytes belong there; in order."""
CopyUpTo = Callable[[int], object]
"""Returns when so many first bytes of what leaves are in its buffer."""
Carry = Callable[[float], None]
"""Takes that many bytes over an emulated link, and returns when it has carried them."""
SAME_NUMBER: Final = (
    "give every rank as many batches (drop_last=True, a DistributedSampler), and have all leave a "
    "pass or a loop together"
)
SAMPLES: Final = 32
SAMPLE_BYTES: Final = 64
"""So many bytes in so many places tell of a version whether it was written on its way, where torch
does not: whoever swaps weights for their averages meanwhile changes a run of the payload."""


class SealPlace(NamedTuple):
    """A rank's place in its script as it seals a version; each number is -1 if unknown."""

    epoch: int = -1  # of a loop over epochs; those of all ranks are the same
    # Passes through the data that it has begun since the version before. Some scripts begin them on
    # each rank at its own time.
    passes: int = -1
    # Collectives of all ranks that it has begun since then. Sends and receives may count, of which
    # each rank has its own number.
    calls: int = -1


NOWHERE: Final = SealPlace()


def require_together(places: Sequence[SealPlace], version: int) -> None:
    """Refuse ranks that seal a version at different places of the script.

    What they add up from there on would not belong together.
    """
    first = places[0]
    for rank, place in enumerate(places):
        is_known = min(*first, *place) >= 0
        if is_known and place.passes != first.passes and place.calls != first.calls:
            what = f"begun {place.passes} passes through its data and {place.calls} collectives"
            raise ConfigError(
                f"after iteration {version} rank {rank} has {what} since the iteration before, and "
                f"rank 0 {first.passes} and {first.calls}, so gradients would be added up with "
                f"something else; {SAME_NUMBER}"
            )
        if place.epoch != first.epoch:
            raise ConfigError(
                f"after iteration {version} rank {rank} is in epoch {place.epoch} of its loop, and "
                f"rank 0 in epoch {first.epoch}; {SAME_NUMBER}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingVersion:
    """One version of this rank's shard, to be moved."""

    version: int
    pieces: Pieces  # what it is made of; live tensors, which must not change until it is whole
    payload_bytes: int
    lineage: Lineage = NO_LINEAGE  # the history that it is of
    # What made it of the version before, in one step; `None` if that is not known.
    difference: Bytes | None = None
    place: SealPlace = NOWHERE  # where in the script it was sealed
    # Whether it is to exist only when all ranks have let it: see `Replicator.release`.
    is_withheld: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """With whom a rank exchanges versions."""

    rank: int
    sends_to: tuple[int, ...] = ()  # the ranks that keep this rank's replicas 1, 2, ..
    # Rank of each other shard that is kept here, and which replica this is.
    receives_from: Mapping[int, int] = field(default_factory=dict)


class Asked(NamedTuple):
    """The requests of a rank's agent, told to other ranks with each version."""

    hold: bool = False  # to stop where a version is whole
    back: int = 0  # to go back: the newest order's number, which rises; 0 for none
    how: int = 0  # how far, and on by which data


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The connections and devices that a rank's checkpoints travel over."""

    group: CheckpointGroup  # A process group over all ranks, used by nothing else
    link: LinkBucket | None = None  # the node's emulated link, if it has one
    # An emulated bus that brings sub-buffers to the slab, if there is one.
    empty: Carry | None = None
    lanes: Lanes | None = None  # the device's, if training runs on one

    def carry(self, size_bytes: int, copy_up_to: CopyUpTo, *, next_bytes: int) -> None:
        """Return when the link has carried a chunk; copy up to `next_bytes` meanwhile.

        As a real link would: copying the next chunk only afterwards left the link idle for a tenth
        of a version.
        """
        if self.link is not None:
            done_s = self.link.reserve(size_bytes)
            copy_up_to(next_bytes)
            with self.group.waiting():
                sleep_until(done_s)


Memory_co = TypeVar("Memory_co", bound=Chunked, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionBuffers(Generic[Memory_co]):
    """The buffers of a version on this rank: of shards, or of what made them."""

    own: Memory_co
    incoming: Mapping[int, Memory_co]  # what is received, by the ranks that it comes from


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBytes:
    """The bytes sent to one peer in one idle span; times are seconds since the epoch."""

    span: int | None  # number of the idle span; `None` in the background, and on a device
    peer: int
    sent_bytes: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedVersion:
    """The cost of moving one version, on this rank."""

    version: int
    sent_bytes: int
    local_s: float  # seconds that copying and sealing the own shard took
    # Seconds until all that this rank writes of it was whole: own shard and replicas.
    whole_s: float
    duration_s: float  # seconds until the version was whole on all ranks
    sent: tuple[SentBytes, ...] = ()  # what left for which peer, and in which idle span
    form: Literal["copy", "gradients"] = "copy"  # what left: shards, or what peers make them of
    # By shard that is kept here, why what was made of it was not its owner's, and was sent in full.
    differing: Mapping[int, str] = field(default_factory=dict)
    # Why shards are sent in full from here on; empty if they were before, or are not.
    ended: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A record that shows later writes to a version's tensors: see `require_unwritten`."""

    # How often torch has seen each of them, or what it is a view of, written. Writes through
    # `.data`, and those of kernels that do not tell torch, are not among them.
    counts: tuple[int, ...]
    # Where a few of their bytes lie in the payload, evenly: the first, and how many.
    places: tuple[tuple[int, int], ...]
    sample: torch.Tensor  # these bytes, one after another, on the tensors' own device


def moment_of(version: OutgoingVersion) -> Moment:
    """Return the version's tensors as they are now; on a device nothing is waited for."""
    filled = [(o, t) for o, t in version.pieces if t.numel()]
    # `cat` takes tensors of one device; the small state is in CPU memory even on a GPU.
    pieces = [(o, t) for o, t in filled if t.device == filled[-1][1].device]  # small state apart
    ends = [*accumulate(t.nbytes for _, t in pieces)]  # of what they hold, one after another
    evenly = [(2 * n + 1) * ends[-1] // (2 * SAMPLES) for n in range(SAMPLES if pieces else 0)]
    middles = [end - t.nbytes // 2 - 1 for end, (_, t) in zip(ends, pieces, strict=True)]
    places, parts = [], []
    for at in [*evenly, *(middles if len(middles) <= SAMPLES else ())]:
        index = bisect_right(ends, at)
        offset, tensor = pieces[index]
        start = at - ends[index] + tensor.nbytes
        part = tensor.detach().view(torch.uint8)[start : start + SAMPLE_BYTES]
        places.append((offset + start, len(part)))
        parts.append(part)
    return Moment(
        counts=_write_counts(version),
        places=tuple(places),
        sample=torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8),
    )


def _write_counts(version: OutgoingVersion) -> tuple[int, ...]:
    # torch has no public name for the count of writes; inference tensors have none.
    return tuple(0 if t.is_inference() else t._version for _, t in version.pieces)  # noqa: SLF001


def require_unwritten(version: OutgoingVersion, moment: Moment, copied: Bytes) -> None:
    """Refuse a version whose tensors were written since `moment`, as far as that can be told.

    The rank that finds this says nothing more to the others. They wait for its checksums, so no
    replica of the version is committed, and they learn of it as they do of a rank that died.

    Raises:
        IntegrityError: Some were; it says how many.
    """
    pairs = zip(_write_counts(version), moment.counts, strict=True)
    written = sum(now != then for now, then in pairs)
    told = f"{written} of the {len(moment.counts)} tensors"
    if not written:
        sample, at = moment.sample.cpu().numpy(), 0
        for start, size in moment.places:
            written += not np.array_equal(copied[start : start + size], sample[at : at + size])
            at += size
        told = f"{written} of {len(moment.places)} samples of the tensors"
    if written:
        raise IntegrityError(
            f"{told} of version {version.version} were written while "
            "it was on its way, so what was copied is not of one moment, and is dropped; change "
            "weights and optimizer states in the protected step, or after it and before the next "
            'forward pass; where they have to change elsewhere, set "scheme": "blocking"'
        )
