"""The versions of one worker: sealed once their iteration has ended, and then sent.

A version's weights are those that its update made. Its small state is sealed later, when the next
iteration begins, because what the script does in between (a schedule, an average, an evaluation) is
not done again after a failure. The top of the script's loop tells exactly when that is. If the
script loops otherwise, its next forward pass does; but what is drawn (random numbers, data) or
counted by the script may by then be of the next iteration, so of these the version keeps what there
was right after the step.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gemini_lab.engine.gradients.update_recorder import UpdateRecorder
from gemini_lab.engine.iteration_log import IterationLog
from gemini_lab.engine.rewinding import GUARD
from gemini_lab.engine.script_loops import (
    UNKNOWN,
    LoopPlace,
    ScriptLoops,
    collectives_so_far,
    place_to_small,
)
from gemini_lab.engine.state.engine_state import EngineState
from gemini_lab.engine.unsaved_state import ScriptWatch
from gemini_lab.engine.verify.verification import Verification
from gemini_lab.recovery.guard import Guard
from gemini_lab.shard.lineage import Lineage
from gemini_lab.transfer.replicator import Replicator
from gemini_lab.transfer.version import OutgoingVersion, SealPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class DueVersion:
    """A version that is to be sent, but whose small state may still change."""

    # What was drawn and counted when its update ended; `None` if the top of the loop will tell.
    drawn: bytes | None = None
    place: LoopPlace = ()  # the script's place in its loops at that moment
    small: bytes | None = None  # the small state, once it is sealed
    at_top: bool = False  # whether the script was at the top of its loop then


class VersionSealer:
    """Seals and sends the versions of one worker; training's thread calls it."""

    def __init__(
        self,
        state: EngineState,
        replicator: Replicator,
        iterations: IterationLog,
        *,
        loops: ScriptLoops,
        script_watch: ScriptWatch,
        lineage: Lineage,  # the history in which versions are made
        # Keeps what made each version, if peers are to get that instead.
        recorder: UpdateRecorder | None,
        guard: Guard | None,  # what it knows travels along, if there is one
        verification: Verification | None,
        # Called if all ranks stop, so that a node may leave; it does not return.
        hold: Callable[[int], None],
        # Tries what a recovery does; called once, before the first version is sealed.
        rehearse: Callable[[], None],
    ) -> None:
        self.replicator, self.lineage, self.guard = replicator, lineage, guard
        self.rehearse: Callable[[], None] | None = rehearse
        # Whether all ranks stop once the next version is whole, as they have agreed.
        self.is_to_hold = False
        self._state, self._iterations = state, iterations
        self._loops, self._script_watch = loops, script_watch
        self._recorder, self._verification = recorder, verification
        self._hold = hold
        self._due: DueVersion | None = None
        self._thread = 0  # which makes updates
        self._seen_place = (UNKNOWN, UNKNOWN)  # when the last version was sealed

    @property
    def is_due(self) -> bool:
        return self._due is not None

    def expect(self) -> None:
        """Seal the version that was just made, once its iteration has ended."""
        self._due, self._thread = DueVersion(), threading.get_ident()

    def drop(self) -> None:
        """Send nothing of the newest version: training goes back, or makes another update first."""
        self._due = None

    def keep_drawn(self) -> None:
        """Keep what was drawn by now, and where: no top of a loop may follow that tells."""
        if self._due is not None:
            self._due = DueVersion(drawn=self._state.capture_drawn(), place=self._loops.place)

    def seal(self, *, at_top: bool = False, sends: bool = True, is_withheld: bool = False) -> None:
        """Seal the version that is due, if one is.

        Args:
            at_top: The script is at the top of its loop: what was kept before does not count.
            sends: Whether it leaves now; else `send_sealed` sends it.
            is_withheld: Whether it is to exist only after `release`.
        """
        if self._due is None:
            return
        due = DueVersion() if at_top else self._due
        drawn, place = due.drawn, due.place
        if drawn is None:
            drawn, place = self._state.capture_drawn(), self._loops.place
        # A rehearsal is collective: all ranks must begin it at one place among their collectives.
        # A thread that reads data ahead may seal as well, and is at another place on each rank.
        if self.rehearse is not None and self._thread == threading.get_ident():
            self.rehearse()
            self.rehearse = None
        small = self._capture(drawn, place, at_top=at_top)
        self._due = DueVersion(drawn=drawn, place=place, small=small, at_top=at_top)
        if sends:
            self.send_sealed(is_withheld=is_withheld)

    def send_sealed(self, *, is_withheld: bool = False) -> None:
        """Send the version that was sealed, if one was and has not left."""
        sealed = self._due
        if sealed is None or sealed.small is None or sealed.drawn is None:
            return
        self._due = None
        self._script_watch.see_version(sealed.drawn, at_top=sealed.at_top)
        if self.is_to_hold:
            self.replicator.end_training()  # this version leaves at once, whatever the plan says
        self._send(sealed.small, is_withheld=is_withheld)
        if self.is_to_hold:
            self.replicator.wait()
            self._hold(self._state.version)

    def send_now(self, *, at_top: bool = False) -> None:
        """Begin to send the engine's state as it is now; for `at_top` see `seal`."""
        drawn = self._state.capture_drawn()
        self._send(self._capture(drawn, self._loops.place, at_top=at_top))

    def release(self) -> None:
        """Release a loop's last version: the script is at its next loop, or at its end."""
        if self.replicator.is_withheld:
            self.replicator.release()

    def _capture(self, drawn: bytes, place: LoopPlace, *, at_top: bool) -> bytes:
        extra = {**self._iterations.to_small(), **place_to_small(place)}
        if self.guard is not None:
            extra[GUARD] = self.guard.to_small()
        if self._verification is not None:
            extra |= self._verification.to_small()
        return self._state.capture_small(extra, drawn=drawn, at_top=at_top)

    def _send(self, captured: bytes, *, is_withheld: bool = False) -> None:
        small = bytearray(captured)
        layout, version = self._state.layout, self._state.version
        difference = None
        if self._recorder is not None and self.replicator.wants_differences:
            difference = self._recorder.take(version, bytes(small))
            # The rest of the room has bytes of an older version, which differ between holders.
            small += bytes(layout.small_capacity_bytes - len(small))
        elif self._recorder is not None:
            self._recorder.close()
        whole = [(layout.small_offset_bytes, torch.frombuffer(small, dtype=torch.uint8))]
        whole += self._state.pieces()
        self.replicator.send(
            OutgoingVersion(
                version=version,
                lineage=self.lineage,
                pieces=whole,
                payload_bytes=layout.payload_bytes,
                difference=difference,
                place=self._place(),
                is_withheld=is_withheld,
            )
        )

    def _place(self) -> SealPlace:
        """Return where in the script this version is sealed, which every rank must share."""
        # Only some ranks of a pipeline read data.
        made = next((one.passes for one in self._state.script.watches), UNKNOWN)
        begun = collectives_so_far()
        (passes, calls), self._seen_place = self._seen_place, (made, begun)
        is_known = UNKNOWN not in {passes, calls, begun}
        return SealPlace(
            epoch=self._loops.epoch or 0,
            passes=made - passes if is_known else UNKNOWN,
            calls=begun - calls if is_known else UNKNOWN,
        )
