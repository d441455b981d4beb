"""What a peer is: a way to save tensors while training goes on, and to get them back."""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

TENSORS: Final = 64
"""How many tensors make a rank's state."""
Region = Path | NDArray[np.uint8]
"""Where stored bytes lie: a file, or memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTask:
    """What a rank is asked to measure."""

    peer: str  # which one, by its name in the catalog
    rank: int  # this one; each rank stands for a node of its own
    ranks: int  # how many there are; even
    size_bytes: int  # fp32 state of a rank
    iteration_s: float  # time that each iteration computes on an accelerator: the CPU is idle in it
    flips: int  # bits to flip, one at a time, in what rank 0 stored
    seed: int  # draws them
    folder: Path  # A folder of this turn, in memory where the system has such


@dataclass(slots=True, kw_only=True)
class Findings:
    """What one rank found in one turn; a measure that the peer does not offer is `None`."""

    # Time for which training waited for a save, in the call and before its update.
    held_up_s: float | None = None
    peer_copy_s: float | None = None  # from the call until a copy is whole on another rank
    # Time of a save, until it is over everywhere, when nothing else happens.
    back_to_back_s: float | None = None
    restore_s: float | None = None  # from asking until the tensors can be used
    # How many flipped bits were silent, refused, or harmless; empty if none was flipped.
    flips: dict[str, int] = field(default_factory=dict)
    # Tensors of a restored state that have later values, when the update came after the peer's own
    # guard (`before_update`).
    guarded_torn: int | None = None
    torn: int | None = None  # the same when the update came as soon as the call returned
    refuses_torn: bool = False  # whether the peer then refused to save or to restore
    # From the moment at which a rank had noticed that another was killed in the middle of a save,
    # until it had that one's tensors.
    take_over_s: float | None = None
    # How many saves older than the one under way these tensors were; `None` if no rank had them.
    lost_saves: int | None = None
    details: dict[str, float] = field(default_factory=dict)  # further times, by name, in seconds
    versions: str = ""  # of the peer's package
    error: str = ""  # why the turn was not finished


class Peer(ABC):
    """One rank's side of a system under test.

    An iteration calls `update`, `begin`, then computes, then `before_update`; `finish` waits for
    whatever still goes on in the background. All ranks call the same methods in the same order.

    Attributes:
        restores_in_place: Whether `restore` puts what it reads into `state`.
        keeps_copies: Whether a rank's state outlives its node: `take_over` gives it on another.
        keeps_saves: Whether `restore` gives what was saved; else it gives what is live.
    """

    restores_in_place = False
    keeps_copies = False
    keeps_saves = True

    def __init__(self, task: PeerTask) -> None:
        self.task = task
        # The tensors to be saved; `update` changes them in place.
        self.state = make_state(task.rank, task.size_bytes)
        # Further times that `begin` or `restore` took, by name, in seconds.
        self.details: dict[str, float] = {}
        self._updates = 0

    def update(self) -> None:
        """Change every tensor, as an optimizer does."""
        self._updates += 1
        for tensor in self.state.values():
            tensor.add_(1)

    def live_of(self, rank: int) -> dict[str, torch.Tensor]:
        """Return the live state of a rank: made again, and changed as often."""
        state = make_state(rank, self.task.size_bytes)
        for _ in range(self._updates):
            for tensor in state.values():
                tensor.add_(1)
        return state

    @abstractmethod
    def begin(self, step: int) -> None:
        """Save the state; returns when training may compute, but not yet change it."""

    def before_update(self) -> None:
        """Return when the state may change."""
        return

    @abstractmethod
    def finish(self) -> float | None:
        """Wait until the save is over; gives when the copy on another rank became whole.

        Returns:
            A value of `time.perf_counter`; `None` if this peer makes no such copy.
        """

    @abstractmethod
    def restore(self) -> dict[str, torch.Tensor] | None:
        """Return the newest saved state, ready for use; `None` on a rank that restores nothing."""

    def measure_more(self) -> None:
        """Measure what only this peer has, into `details`."""
        return

    def expected(self) -> dict[str, torch.Tensor]:
        """Return what `restore` ought to give, as a copy."""
        return {name: tensor.clone() for name, tensor in self.state.items()}

    def take_over(self, lost: int) -> dict[str, torch.Tensor] | None:  # noqa: ARG002 - for those that can
        """Return a killed rank's newest whole state, from what is here; by no collective.

        Returns:
            `None` if this rank keeps nothing of it.
        """
        return None

    def stored(self) -> Sequence[Region]:
        """Return where this rank's newest saved bytes lie; nothing if the peer stores none."""
        return ()

    def start_over(self) -> None:
        """Be ready to save again after a refusal, as a worker is that was started again."""
        return

    def close(self) -> None:
        """Give back what outlives the process."""
        return


class FilePeer(Peer):
    """A peer whose ranks write the files of a save into one folder; no other rank has a copy."""

    restores_in_place = True
    step = 0  # the newest save

    @property
    def folder(self) -> Path:
        return self.task.folder / f"step{self.step}"

    def drop_older(self) -> None:
        """Remove the files of the save before, once all ranks have the newest one."""
        torch.distributed.barrier()
        if self.task.rank == 0:
            shutil.rmtree(self.folder.with_name(f"step{self.step - 1}"), ignore_errors=True)


def make_state(rank: int, size_bytes: int) -> dict[str, torch.Tensor]:
    """Return a rank's tensors: fp32 in equal parts, other values on every rank."""
    draw = torch.Generator().manual_seed(rank)
    numel = size_bytes // 4 // TENSORS
    return {f"tensor{i}": torch.rand(numel, generator=draw) for i in range(TENSORS)}


def are_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Return whether both have the same names and the same values."""
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


def size_of(region: Region) -> int:
    """Return bytes of a region."""
    return region.stat().st_size if isinstance(region, Path) else region.nbytes


def flip(regions: Sequence[Region], bit: int) -> None:
    """Flip one bit; a second call flips it back."""
    byte, shift = divmod(bit, 8)
    for region in regions:
        if byte < size_of(region):
            _flip(region, byte, 1 << shift)
            return
        byte -= size_of(region)
    raise IndexError(f"bit {bit} is beyond the {sum(map(size_of, regions))} stored bytes")


def _flip(region: Region, byte: int, mask: int) -> None:
    if not isinstance(region, Path):
        region[byte] ^= np.uint8(mask)
        return
    with region.open("r+b") as file:
        file.seek(byte)
        (old,) = file.read(1)
        file.seek(byte)
        file.write(bytes([old ^ mask]))
