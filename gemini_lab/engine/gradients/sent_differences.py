"""What `"replicate": "gradients"` takes: a recorder of own steps, makers of others' versions."""

from dataclasses import dataclass
from typing import Self

from gemini_lab.engine.gradients.update_recorder import UpdateRecorder
from gemini_lab.engine.gradients.version_maker import VersionMaker
from gemini_lab.engine.state.engine_state import EngineState
from gemini_lab.memory.slab import Slab
from gemini_lab.settings import Settings
from gemini_lab.transfer.differences import Differences
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.version import Peers, Wire


def recorder_of(state: EngineState, settings: Settings) -> UpdateRecorder | None:
    """What records this rank's steps, if the settings want that and there are peers.

    Raises:
        UnsupportedError: They want it, and nobody could make such steps again.
        CapacityError: Memory is short.
    """
    if settings.replicate != "gradients" or settings.scheme == "none" or settings.replicas == 1:
        return None
    return UpdateRecorder(
        state.framework,
        state.layout,
        small_bytes=len(state.capture_small()),
        chunk_bytes=settings.chunk_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SentDifferences:
    """Both ends of what travels instead of shards, on this rank.

    Attributes:
        recorder: Records what leaves.
        makers: By rank whose shard is kept here, who makes its versions.
        sizes_bytes: What each rank sends of a version.
        slab: Keeps the versions.
        peers: With whom this rank exchanges them.
        full_every: Of so many versions one is sent in full.
    """

    recorder: UpdateRecorder
    makers: dict[int, VersionMaker]
    sizes_bytes: tuple[int, ...]
    slab: Slab
    peers: Peers
    full_every: int | None

    @classmethod
    def of(
        cls,
        recorder: UpdateRecorder,
        group: CheckpointGroup,
        slab: Slab,
        peers: Peers,
        settings: Settings,
    ) -> Self:
        """Start the processes that make versions here; all ranks call it together."""
        sizes_bytes = tuple(size for (size,) in group.all_gather([recorder.room.data.nbytes]))
        makers = {
            rank: VersionMaker(
                slab,
                difference_bytes=sizes_bytes[rank],
                chunk_bytes=settings.chunk_bytes,
                kind=recorder.kind,
            )
            for rank in peers.receives_from
        }
        return cls(
            recorder=recorder,
            makers=makers,
            sizes_bytes=sizes_bytes,
            slab=slab,
            peers=peers,
            full_every=settings.full_copy_every,
        )

    def over(self, wire: Wire) -> Differences:
        """What sends them over a wire."""
        return Differences(
            wire,
            self.peers,
            self.slab,
            own=self.recorder.room,
            makers=self.makers,
            full_every=self.full_every,
        )
