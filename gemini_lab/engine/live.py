"""The hook in a protected engine: when a version is sealed, sent and waited for.

A version's weights are those that its update made. Its small state is sealed later, when the next
iteration begins, because what the script does in between (a schedule, an average, an evaluation) is
not done again after a failure. The top of the script's loop tells exactly when that is:
`LiveProtection.steps` and `epochs`. Where the script loops otherwise, its next forward pass does;
but what is drawn (random numbers, data) or counted by the script may by then be of the next
iteration, so of these the version keeps what there was right after the step.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from gemini_lab.engine.carried import carried
from gemini_lab.engine.contract import WorldChange
from gemini_lab.engine.ends import UNKNOWN, Ends, collectives_so_far
from gemini_lab.engine.gradients.update_recorder import UpdateRecorder
from gemini_lab.engine.iterations import IterationLog, iteration_in
from gemini_lab.engine.pulse import Pulse
from gemini_lab.engine.rejoining import Rejoining
from gemini_lab.engine.rewinding import Rewinder, Wish, require_loop, require_steps, wish_of
from gemini_lab.engine.state.engine_state import EngineState
from gemini_lab.engine.unkept.script_watch import ScriptWatch
from gemini_lab.engine.verify.verification import Verification
from gemini_lab.errors import CannotGoOnError, GeminiError
from gemini_lab.recovery.messages import End
from gemini_lab.shard.lineage import Lineage
from gemini_lab.transfer.traffic import CheckpointTraffic
from gemini_lab.transfer.version import OutgoingVersion, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsealed:
    """A version that is to be sent, but whose small state may still change.

    Attributes:
        drawn: What was drawn and counted when its update ended; `None` where the top of the loop
            will tell.
    """

    drawn: bytes | None


class LiveProtection:
    """Protection of one worker of a lab, made of its parts; it is the hook in the engine's step.

    Args:
        state: The engine's.
        traffic: Sends versions.
        iterations: Says what an iteration took.
        pulse: Says what training does.
        lineage: The history in which versions are made.
        epoch: Epochs that were over when the restored version was made.
        rewinder: Takes iterations back, where versions are kept.
        recorder: Keeps what made each version, where peers are to get that in its place.
        verification: Has iterations verified, where the settings ask for it.
        remark: Called with a thing that the script's author should know, once each.
        flaws: Called where an iteration begins to compute, to strike what is to be struck.
        hold: Called where all ranks stop, so that a node may leave; it does not return.
        rejoining: Has this process go on when others are lost, where it is to be kept.
        ends: Tells where this rank's data, its loop or its script is over.
    """

    def __init__(
        self,
        state: EngineState,
        traffic: CheckpointTraffic,
        iterations: IterationLog,
        pulse: Pulse,
        *,
        lineage: Lineage,
        epoch: int = 0,
        rewinder: Rewinder | None = None,
        recorder: UpdateRecorder | None = None,
        verification: Verification | None = None,
        flaws: Callable[[], None] = lambda: None,
        remark: Callable[[str], None] = lambda _: None,
        hold: Callable[[int], None] = lambda _: None,
        rejoining: Rejoining | None = None,
        ends: Ends,
    ) -> None:
        # Its parts.
        self._state = state
        self._traffic = traffic
        self._iterations = iterations
        self._pulse = pulse
        self._rewinder = rewinder
        self._recorder = recorder
        self._verification = verification
        self._flaws = flaws
        self._hold = hold
        self._rejoining = rejoining
        self._ends = ends
        self._script_watch = ScriptWatch(state.script, remark)
        self._lineage = lineage
        # The script's loop, and where in it training is.
        self._began_at = state.version
        self._epoch = epoch
        self._is_asked = False  # by the script, where to go on
        self._is_in_loop = False
        self._top_is_told = False  # that of this very loop, by `steps`
        self._is_in_epochs = False  # a loop over those
        self._has_loop = False  # the script, over steps or epochs
        self._seen_place = (UNKNOWN, UNKNOWN)  # when the last version was sealed
        self._is_computing = False  # an iteration: gradients are there, and no update yet
        # The newest version.
        self._unsealed: Unsealed | None = None
        self._is_judged = True  # by the guard
        self._is_finished = False
        ends.begin(state.version)
        for watch in state.script.watches[:1]:
            watch.on_over = self._end_pass
        # What is to be done at the loop's top.
        self._is_to_hold = False
        self._is_asked_back = False  # by a person; all ranks know
        self._order_back = 0  # of those to go back, the last that was carried out
        self._wish: Wish | None = None  # the script's own, to go back

    @property
    def step(self) -> int:
        """Iterations that were done when protection began."""
        self._is_asked = True
        return self._began_at

    @property
    def world_changed(self) -> WorldChange | None:
        """Whether another number of ranks made the version that was loaded; see `Protected`."""
        return self._state.world_changed

    def steps(self, total: int, /) -> Iterator[int]:
        """The script's loop; see `Protected`."""
        self._top_is_told = self._is_asked = self._is_in_loop = self._has_loop = True
        if self._rejoining is not None:
            self._rejoining.enter_loop(self._traffic)
        try:
            self.reach_top()
            while self._state.version < total:
                yield self._state.version
                self._is_to_hold &= self._state.version < total  # where training ends, it ends
                self.reach_top()
            self._traffic.wait()  # the script may destroy its process groups now
        finally:  # also where the script breaks off its loop
            if self._rejoining is not None:
                self._rejoining.standing.leave_loop()
            self._top_is_told = self._is_in_loop = False
            self._keep_drawn()
            self._say_end("break" if self._state.version < total else "loop")

    def epochs(self, total: int, /) -> Iterator[int]:
        """The outer of the script's loops; see `Protected`."""
        self.end_iterations_at_fetch()
        self._is_in_loop = self._is_in_epochs = self._has_loop = True
        try:
            while self._epoch < total:
                self._state.script.epoch = self._epoch
                yield self._epoch
                self._epoch += 1
        finally:  # also where the script breaks off its loop
            self._is_in_loop = self._is_in_epochs = False
            self._say_end("break" if self._epoch < total else "loop")

    def end_iterations_at_fetch(self) -> None:
        """Say that an iteration ends where the first of `data` is asked for the next batch."""
        self._is_asked = True
        for watch in self._state.script.watches[:1]:
            watch.on_fetch = self.reach_top

    def _say_end(self, what: End) -> None:
        if not self._is_broken:
            self._ends.say(what, self._state.version)

    def _end_pass(self) -> None:
        """The script has no batch left: in a loop over epochs, one ends on all ranks together."""
        version = self._state.version
        if self._is_broken or not self._ends.end_pass(version):
            return  # nothing was trained in this pass, such as in an evaluation on one rank
        if self._is_in_epochs:
            self._ends.meet(version, epoch=self._epoch, rewinds=self._lineage.rewinds)
        else:
            self._say_end("data")

    def log(self, **values: float) -> None:
        """Attach values to the iteration that is computed, or was just done; see `Protected`."""
        self._iterations.add(values)

    def rewind(self, steps: int, *, skip: bool = True) -> None:
        """Take iterations back when the loop comes to its top; see `Protected`."""
        done = self._state.version
        can_rewind = self._is_in_loop and self._rewinder is not None
        require_steps(steps, version=done, can_rewind=can_rewind)
        if steps or self._unsealed is None:  # else there is nothing to take back
            self._wish = Wish(version=done - steps, skips=skip, cause="script")

    def pause(self, reason: str) -> AbstractContextManager[None]:
        """Long work of the script's own; see `Protected`."""
        return self._pulse.pause(reason)

    # -- the hook --------------------------------------------------------------------------------

    @property
    def counts(self) -> bool:
        """Whether the iteration under way counts: no rank is lost."""
        return not self._is_broken

    @property
    def remarks(self) -> Sequence[str]:
        """What the script's author was told."""
        return self._script_watch.remarks

    def begin_forward(self) -> None:
        """An iteration computes: the version before it is sealed now, if that was not done yet."""
        self._pulse.enter("step")
        self._is_computing = True
        if self._is_broken:
            return
        if self._rejoining is not None and not self._top_is_told:
            self._rejoining.standing.train_without_loop()
        if not self._top_is_told:
            self._seal()
        self._flaws()
        if self._verification is not None:
            self._verification.begin(self._state.version + 1)
        self._iterations.begin_forward()

    def before_update(self) -> float:
        """Wait until the version on its way is whole: its tensors are about to change."""
        self._unsealed = None  # an update within one pass of the loop: the loop's top comes later
        waited_s = self._wait_for_version()
        if self._is_broken:
            return 0.0
        self._is_to_hold = self._traffic.is_hold_agreed
        self._is_asked_back = self._traffic.agreed_back[0] > self._order_back
        if self._verification is not None:
            self._verification.before_update(self._state.version + 1, rewinds=self._lineage.rewinds)
        return waited_s

    def before_writing(self) -> None:
        """Wait until the version on its way is whole: its tensors are about to be written."""
        self._wait_for_version()

    def _wait_for_version(self) -> float:
        try:
            return self._traffic.wait()
        except RuntimeError:
            if not self._is_lost_with_a_rank():
                raise
        return 0.0

    def after_update(self, waited_s: float) -> None:
        """Say the iteration; the version that it made is sent when it is sealed, if it is to be."""
        version = self._state.version
        self._script_watch.end_update()
        self._is_computing = self._is_judged = False
        if self._is_broken:
            return
        if self._rewinder is not None and self._rewinder.guard is not None:
            require_loop(is_in_loop=self._is_in_loop)
        self._iterations.end(version, waited_s=waited_s)
        try:
            is_to_be_sent = self._traffic.end_iteration(version)
        except RuntimeError:  # ranks may speak here of how they send versions
            if not self._is_lost_with_a_rank():
                raise
            return
        if is_to_be_sent or self._is_to_hold:
            self._unsealed = Unsealed(drawn=None)
            if not self._top_is_told:
                self._keep_drawn()
        if self._verification is not None:
            is_sent = self._unsealed is not None
            self._verification.after_update(version, self._lineage, is_sent=is_sent)
        self._pulse.enter("between steps")

    # -- lost ranks ------------------------------------------------------------------------------

    @property
    def _is_broken(self) -> bool:
        """Whether a rank is lost, and the iteration under way counts no more."""
        return self._rejoining is not None and self._rejoining.standing.is_broken

    def _is_lost_with_a_rank(self) -> bool:
        """Whether a transfer failed because a rank is lost without which this process can go on."""
        return self._rejoining is not None and self._rejoining.standing.is_lost_with_a_rank()

    def _rejoin(self, rejoining: Rejoining) -> None:
        """Be at the top of the iteration after the version of the plan, with other ranks."""
        if self._is_computing:
            raise CannotGoOnError("the engine has computed gradients of which no update was made")
        try:
            went = rejoining.rejoin(self._traffic)
        except (GeminiError, RuntimeError) as error:
            raise CannotGoOnError(
                f"this process cannot go on without a lost peer: {error}"
            ) from error
        self._traffic, self._rewinder = went.traffic, went.rewinder
        self._lineage, small = went.ready.place.lineage, went.ready.small
        self._unsealed = self._wish = None
        self._is_to_hold = self._is_asked_back = False
        self._order_back = 0
        self._is_judged = True
        self._iterations.go_back(iteration_in(small))
        self._pulse.enter("between steps")

    # -- versions --------------------------------------------------------------------------------

    def reach_top(self) -> None:
        """The script is at the top of its loop: what follows is of the next iteration."""
        try:
            if not self._is_broken:
                self._end_iteration()
        except RuntimeError:
            if not self._is_lost_with_a_rank():
                raise
        while self._rejoining is not None and self._is_broken:
            self._rejoin(self._rejoining)

    def _end_iteration(self) -> None:
        self._state.restore_small_again()
        if self._rewinder is not None and self._is_in_loop:
            wish = self._wish or self._asked_back()
            if wish is None and not self._is_judged:
                wish = self._rewinder.judge(self._iterations.newest)
            self._is_judged, self._wish = True, None
            if wish is not None:
                self._go_back(self._rewinder, wish)
        if self._unsealed is not None:
            self._unsealed = Unsealed(drawn=None)  # what was kept of it is older than this moment
            self._seal(at_top=True)

    def _asked_back(self) -> Wish | None:
        """What a person has asked for, as all ranks know by now."""
        if not self._is_asked_back:
            return None
        self._is_asked_back = False
        self._order_back, how = self._traffic.agreed_back
        return wish_of(how, version=self._state.version)

    def _go_back(self, rewinder: Rewinder, wish: Wish) -> None:
        """Be at the top of an earlier iteration; nothing is sealed of the newest one."""
        went = rewinder.go_back(
            wish, lineage=self._lineage, epoch=self._epoch, is_computing=self._is_computing
        )
        if went is None:
            return
        self._unsealed, self._is_computing = None, False
        self._lineage = went.lineage
        if self._verification is not None:
            self._verification.go_back(went.extra)
        self._iterations.go_back(iteration_in(went.extra))
        self._pulse.enter("between steps")

    def _keep_drawn(self) -> None:
        if self._unsealed is not None:
            self._unsealed = Unsealed(drawn=self._state.capture_drawn())

    def _seal(self, *, at_top: bool = False) -> None:
        if self._unsealed is not None:
            drawn, self._unsealed = self._unsealed.drawn, None
            drawn = self._state.capture_drawn() if drawn is None else drawn
            self._script_watch.see_version(drawn, at_top=at_top, is_asked=self._is_asked)
            if self._is_to_hold:
                self._traffic.end_training()  # this version leaves at once, whatever the plan says
            self.send_version(drawn, at_top=at_top)
            if self._is_to_hold:
                self._traffic.wait()
                self._hold(self._state.version)

    def send_version(self, drawn: bytes | None = None, *, at_top: bool = False) -> None:
        """Begin to send the engine's state as it is now.

        Args:
            drawn: What was drawn and counted when its update ended; by default what there is now.
            at_top: The script is at the top of its loop.
        """
        drawn = self._state.capture_drawn() if drawn is None else drawn
        guard = None if self._rewinder is None else self._rewinder.guard
        extra = carried(
            self._iterations, epoch=self._epoch, guard=guard, verification=self._verification
        )
        small = bytearray(self._state.capture_small(extra, drawn=drawn, at_top=at_top))
        layout, version = self._state.layout, self._state.version
        difference = None
        if self._recorder is not None and self._traffic.wants_differences:
            difference = self._recorder.take(version, bytes(small))
            # What lay there of an older version is not the same everywhere.
            small += bytes(layout.small_capacity_bytes - len(small))
        elif self._recorder is not None:
            self._recorder.close()
        whole = [(layout.small_offset_bytes, torch.frombuffer(small, dtype=torch.uint8))]
        whole += self._state.pieces()
        self._traffic.send(
            OutgoingVersion(
                version=version,
                lineage=self._lineage,
                pieces=whole,
                payload_bytes=layout.payload_bytes,
                difference=difference,
                place=self._place(),
            )
        )

    def _place(self) -> Place:
        """Where in the script this version is sealed, as it is to be on every rank."""
        made = sum(one.passes for one in self._state.script.watches[:1])
        begun = collectives_so_far()
        (passes, calls), self._seen_place = self._seen_place, (made, begun)
        is_known = UNKNOWN not in {passes, calls, begun}
        return Place(
            epoch=self._epoch,
            passes=made - passes if is_known else UNKNOWN,
            calls=begun - calls if is_known else UNKNOWN,
        )

    def finish(self) -> None:
        """Wait until the last version is whole everywhere; no more are made. Once is enough."""
        if self._is_finished:
            return
        if self._is_broken:
            raise CannotGoOnError("a rank is lost, and the script has left its loop")
        self._is_finished, self._is_to_hold = True, False
        if self._has_loop:  # which the script may have broken off
            self._say_end("loop")
        self._say_end("script")
        self._traffic.end_training()
        if self._unsealed is not None:
            self._seal()
        elif not self._traffic.is_sent(self._state.version):
            self.send_version()
        self._traffic.close()
