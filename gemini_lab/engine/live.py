"""The hook in a protected engine: when a version is sealed, sent and waited for.

A version's weights are those that its update made. Its small state is sealed later, when the next
iteration begins, because what the script does in between (a schedule, an average, an evaluation) is
not done again after a failure. The top of the script's loop tells exactly when that is:
`LiveProtection.steps` and `epochs`. Where the script loops otherwise, its next forward pass does;
but what is drawn (random numbers, data) or counted by the script may by then be of the next
iteration, so of these the version keeps what there was right after the step.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import torch

from gemini_lab.engine.arguments import require_rewind, require_total
from gemini_lab.engine.contract import WorldChange
from gemini_lab.engine.ends import UNKNOWN, Ends, collectives_so_far
from gemini_lab.engine.gradients.update_recorder import UpdateRecorder
from gemini_lab.engine.heartbeat import Heartbeat
from gemini_lab.engine.iterations import IterationLog, iteration_in
from gemini_lab.engine.rejoining import Rejoining
from gemini_lab.engine.rewinding import Rewinder, Wish, require_loop, require_steps, wish_of
from gemini_lab.engine.script_loops import Kind, Loop, LoopPlace, ScriptLoops
from gemini_lab.engine.state.engine_state import EngineState
from gemini_lab.engine.unsaved_state.script_watch import ScriptWatch
from gemini_lab.engine.update_watch import UpdateWatch
from gemini_lab.engine.verify.verification import Verification
from gemini_lab.engine.version_extras import carried
from gemini_lab.errors import CannotGoOnError, ConfigError, GeminiError
from gemini_lab.kept.process import KeptProcess
from gemini_lab.limits import require_text
from gemini_lab.recovery.messages import End
from gemini_lab.shard.lineage import Lineage
from gemini_lab.transfer.traffic import CheckpointTraffic
from gemini_lab.transfer.version import OutgoingVersion, Place

SAID_AFTER: Final = 3  # updates that do not count
MOST_LEFT_OUT: Final = 1_000
"""So many of them are no search for a rate any more: the loop does not come."""
SAME_LOOPS: Final = (
    "have each start of the script begin the same loops, or leave those out that are over, by "
    "`protected.step`"
)
IS_OVER: Final = (
    "{loop} was over when version {version} was made, so this start gives it no pass; what only "
    "its body makes, such as a last loss, is not there: give such names a value before it, or "
    "keep them in `client_state`"
)
LEFT_OUT: Final = (
    "the script makes updates before it comes to protected.{loop}, where version {version} was "
    "made: they do not count, and leave no trace there"
)
WAITS_FOR_ENDS: Final = "the end of the other ranks' scripts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsealed:
    """A version that is to be sent, but whose small state may still change.

    Attributes:
        drawn: What was drawn and counted when its update ended; `None` where the top of the loop
            will tell.
        place: In the script's loops, at that moment.
        small: The small state, where it is as it will be sent.
        at_top: Whether the script was at the top of its loop then.
    """

    drawn: bytes | None = None
    place: LoopPlace = ()
    small: bytes | None = None
    at_top: bool = False


class LoopTop(Enum):
    """The part that the script's loop has in sealing versions."""

    NONE = auto()  # there is no loop of ours: the next forward pass seals
    UNTOLD = auto()  # nothing has said when this loop comes to its top
    TOLD = auto()  # `steps` or its loader says so: the top seals


@dataclass(slots=True, kw_only=True)
class IterationState:
    """An iteration under way, and what is due at its end; after a return, another one begins.

    Attributes:
        is_computing: Whether there are gradients of which no update was made yet.
        is_judged: Whether the guard has seen its numbers.
        unsealed: The version that it began with, until that is sent.
        wish: The script's wish to go back.
        is_to_hold: Whether all ranks stop here, as they have agreed.
        is_asked_back: Whether the user asked to go back; all ranks know.
    """

    is_computing: bool = False
    is_judged: bool = True
    unsealed: Unsealed | None = None
    wish: Wish | None = None
    is_to_hold: bool = False
    is_asked_back: bool = False


class LiveProtection:
    """Protection of one worker of a lab, made of its parts; it is the hook in the engine's step.

    Args:
        state: The engine's.
        traffic: Sends versions.
        iterations: Says what an iteration took.
        pulse: Says what training does.
        lineage: The history in which versions are made.
        place: Of the restored version in the script's loops.
        rewinder: Takes iterations back, where versions are kept.
        recorder: Keeps what made each version, where peers are to get that in its place.
        verification: Has iterations verified, where the settings ask for it.
        remark: Called with a thing that the script's author should know, once each.
        flaws: Called where an iteration begins to compute, to strike what is to be struck.
        hold: Called where all ranks stop, so that a node may leave; it does not return.
        rejoining: Lets this process go on when others are lost, if it is to be kept.
        ends: Tells where this rank's data, its loop or its script is over.
        rehearse: Called once the first version is made in an epoch, with what a recovery puts back.
        update_watch: Looks whether what is protected is what trains.
    """

    def __init__(
        self,
        state: EngineState,
        traffic: CheckpointTraffic,
        iterations: IterationLog,
        pulse: Heartbeat,
        *,
        lineage: Lineage,
        place: LoopPlace = (),
        rewinder: Rewinder | None = None,
        recorder: UpdateRecorder | None = None,
        verification: Verification | None = None,
        flaws: Callable[[], None] = lambda: None,
        remark: Callable[[str], None] = lambda _: None,
        hold: Callable[[int], None] = lambda _: None,
        rejoining: Rejoining | None = None,
        rehearse: Callable[[], None] = lambda: None,
        ends: Ends | None = None,
        update_watch: UpdateWatch | None = None,
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
        self._process = KeptProcess() if rejoining is None else rejoining.process
        self._ends = ends
        self._rehearse = rehearse
        self._update_watch = update_watch
        self._remark = remark
        self._script_watch = ScriptWatch(state.script, remark, state.framework.notices)
        self._lineage = lineage
        # The script's loop, and where in it training is.
        self._began_at = state.version
        self._loops = ScriptLoops(place)
        iterations.counts = not place
        self._left_out = 0  # updates that do not count
        self._is_over_said = False
        self._is_asked = False  # by the script, where to go on
        self._top = LoopTop.NONE
        self._has_loop = False  # the script, over steps or epochs
        self._seen_place = (UNKNOWN, UNKNOWN)  # when the last version was sealed
        self._now = IterationState()
        # The newest version.
        self._is_withheld = False  # it was sent, and is to exist where the next loop begins
        self._is_finished = False
        if ends is not None:
            ends.begin(state.version)
            for watch in state.script.watches[:1]:
                watch.on_over = self._end_pass
        self._is_rehearsed = False  # in this epoch
        self._thread = 0  # which makes updates
        self._order_back = 0  # of the orders to go back, the last that was carried out

    @property
    def step(self) -> int:
        """Iterations that were done when protection began."""
        self._is_asked = True
        return self._began_at

    @property
    def is_early(self) -> bool:
        """Whether the loop that made the restored version is still to come."""
        return self._loops.awaited is not None

    @property
    def world_changed(self) -> WorldChange | None:
        """Whether another number of ranks made the version that was loaded; see `Protected`."""
        return self._state.world_changed

    def steps(self, total: int, /) -> Iterator[int]:
        """The script's loop; see `Protected`."""
        require_total("steps", total)
        return self._steps(total)

    def _steps(self, total: int) -> Iterator[int]:
        with self._in_loop("steps", total) as loop:
            if loop is None:
                return
            self._top = LoopTop.TOLD
            if self._rejoining is not None:
                self._rejoining.enter_loop(self._traffic)
            try:
                self.reach_top(ends_at=total)
                while self._loops.leads_to_place or self._state.version < total:
                    if not self._loops.leads_to_place:  # else the pass is given once more
                        loop.begin(self._state.version)
                    yield loop.number
                    self._now.is_to_hold &= self._state.version < total  # where it ends, it ends
                    self._leave_pass(loop)
                    self.reach_top(ends_at=total)
                self._traffic.wait()  # the script may write, or destroy its process groups now
            finally:  # also where the script breaks off its loop
                self._process.leave_loop()
                self._say_end("break" if self._state.version < total else "loop")

    def epochs(self, total: int, /) -> Iterator[int]:
        """The outer of the script's loops; see `Protected`."""
        require_total("epochs", total)
        return self._epochs(total)

    def _epochs(self, total: int) -> Iterator[int]:
        with self._in_loop("epochs", total) as loop:
            if loop is None:
                return
            for watch in self._state.script.watches[:1]:
                watch.on_fetch, watch.on_batch = self._reach_fetch, self._send_sealed
            if self._loops.is_at_place and not self._state.is_to_be_put_back:
                self._arrive()
            try:
                for number in range(loop.number, total):
                    loop.begin(number)
                    self._begin_pass()
                    yield number
                    self._leave_pass(loop)
                    loop.begin(number + 1)
                    if self._top is not LoopTop.TOLD:
                        self._keep_drawn()
            finally:  # also where the script breaks off its loop
                self._say_end("break" if loop.number < total else "loop")
            self._now.is_to_hold = False
            self.reach_top(ends_at=self._state.version)
            self._traffic.wait()

    @contextmanager
    def _in_loop(self, kind: Kind, total: int) -> Iterator[Loop | None]:
        """One of the script's loops runs; `None` if it was over when the version was made."""
        self._is_asked = True
        if self._loops.is_at_place:
            self._arrive()
        outside = self._top
        with self._loops.within(kind, total) as loop:
            if loop is None:
                self._say_over(kind, total)
                yield None
                return
            done = loop.number if kind == "epochs" else self._began_at
            if self._loops.is_at_place and done >= total:
                self._say_over(kind, total)
            self._top, self._has_loop = LoopTop.UNTOLD, True
            self._begin_pass()
            try:
                yield loop
            finally:
                self._keep_drawn()
                self._top = outside

    def _begin_pass(self) -> None:
        for watch in self._state.script.watches:
            watch.begin_pass()

    def _leave_pass(self, loop: Loop) -> None:
        """A pass of a loop is over, and with it the loops inside of that."""
        if self._loops.leads_to_place:
            raise ConfigError(
                f"version {self._began_at} was made in protected.{self._loops.awaited} inside of "
                f"another loop, whose pass is over now and had no such loop; {SAME_LOOPS}"
            )
        loop.end_pass()
        if self._loops.is_at_place:
            self._arrive()

    def _arrive(self) -> None:
        """The loop that made the restored version is at its top: put that back once more."""
        self._loops.arrive()
        self._state.restore_again()
        if self._left_out:
            self._traffic.go_back(self._state.version)
        self._left_out = 0
        self._now = IterationState()
        self._iterations.go_back(self._iterations.newest)
        if self._update_watch is not None:
            self._update_watch.begin_anew()

    def _leave_out(self) -> None:
        """An update was made before the script came to the loop that made the version."""
        self._left_out += 1
        if self._left_out == SAID_AFTER:
            self._remark(LEFT_OUT.format(version=self._began_at, loop=self._loops.awaited))
        if self._left_out == MOST_LEFT_OUT:
            raise ConfigError(
                f"version {self._began_at} was made in protected.{self._loops.awaited}, and this "
                f"start has made {MOST_LEFT_OUT} updates, which do not count, and has not begun "
                f"that loop; {SAME_LOOPS}"
            )

    def _say_over(self, kind: Kind, total: int) -> None:
        """Say once that a loop gives no pass, for what its body makes is not there."""
        if not self._is_over_said:
            self._is_over_said = True
            loop = f"protected.{kind}({total})"
            self._remark(IS_OVER.format(loop=loop, version=self._began_at))

    def end_iterations_at_fetch(self) -> None:
        """Say that an iteration ends where the first of `data` is asked for the next batch."""
        self._is_asked = True
        for watch in self._state.script.watches[:1]:
            watch.on_fetch = self.reach_top

    def _say_end(self, what: End) -> None:
        if self._ends is not None and not self._is_broken:
            self._ends.say(what, self._state.version)

    def _end_pass(self) -> None:
        """The script has no batch left: in a loop over epochs, one ends on all ranks together."""
        version, epoch = self._state.version, self._loops.epoch
        if self._ends is None or self._is_broken or self._loops.awaited is not None:
            return
        if not self._ends.end_pass(version):
            return  # nothing was trained in this pass, such as in an evaluation on one rank
        if epoch is not None:
            self._ends.meet(version, epoch=epoch, rewinds=self._lineage.rewinds)
        else:
            self._say_end("data")

    def _reach_fetch(self) -> None:
        """The first of `data` is asked for a batch, which there may be or not."""
        if self._loops.innermost != "epochs":
            return
        self._top = LoopTop.TOLD
        if self._loops.is_at_place and not self._state.script.watches[0].is_where_put:
            return  # it looks at a batch before the loop over them
        if not self._loops.leads_to_place:
            self.reach_top(sends=False)

    def log(self, **values: float) -> None:
        """Attach values to the iteration that is computed, or was just done; see `Protected`."""
        self._iterations.add(values)

    def rewind(self, steps: int, *, skip: bool = True) -> None:
        """Take iterations back when the loop comes to its top; see `Protected`."""
        require_rewind(steps, skip)
        done = self._state.version
        can_rewind = self._top is not LoopTop.NONE and self._rewinder is not None
        require_steps(steps, version=done, can_rewind=can_rewind)
        if steps or self._now.unsealed is None:  # else there is nothing to take back
            self._now.wish = Wish(version=done - steps, skips=skip, cause="script")

    def pause(self, reason: str) -> AbstractContextManager[None]:
        """Long work of the script's own; see `Protected`."""
        require_text("the pause's reason", reason)
        return self._pulse.pause(reason)

    # -- the hook --------------------------------------------------------------------------------

    @property
    def counts(self) -> bool:
        """Whether the iteration under way counts: no rank is lost."""
        return not self._is_broken

    @property
    def remarks(self) -> Sequence[str]:
        """Return the remarks to the user."""
        return self._script_watch.remarks

    def begin_forward(self) -> None:
        """An iteration computes: the version before it is sealed now, if that was not done yet."""
        self._pulse.enter("step")
        self._now.is_computing = True
        if self._is_broken:
            return
        if self._loops.innermost != "steps":
            self._process.train_without_loop()
        if self._top is not LoopTop.TOLD:
            self._seal()
        if self._loops.awaited is not None:
            return
        self._flaws()
        if self._verification is not None:
            self._verification.begin(self._state.version + 1)
        self._iterations.begin_forward()

    def before_update(self) -> float:
        """Wait until the version on its way is whole: its tensors are about to change."""
        if self._update_watch is not None:
            self._update_watch.begin_update()
        self._now.unsealed = (
            None  # an update within one pass of the loop: the loop's top comes later
        )
        self._release()
        waited_s = self._wait_for_version()
        if self._is_broken or self._loops.awaited is not None:
            return 0.0
        self._now.is_to_hold = self._traffic.is_hold_agreed
        self._now.is_asked_back = self._traffic.agreed_back[0] > self._order_back
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
        self._thread = threading.get_ident()
        if self._update_watch is not None:
            self._update_watch.end_update()
        version = self._state.version
        self._script_watch.end_update()
        self._now.is_computing = self._now.is_judged = False
        if self._is_broken:
            return
        if self._loops.awaited is not None:
            self._leave_out()
            return
        if self._rewinder is not None and self._rewinder.guard is not None:
            require_loop(is_in_loop=self._top is not LoopTop.NONE)
        self._iterations.end(version, waited_s=waited_s)
        try:
            is_to_be_sent = self._traffic.end_iteration(version)
        except RuntimeError:  # ranks may speak here of how they send versions
            if not self._is_lost_with_a_rank():
                raise
            return
        if is_to_be_sent or self._now.is_to_hold:
            self._now.unsealed = Unsealed(drawn=None)
            if self._top is not LoopTop.TOLD:
                self._keep_drawn()
        if self._verification is not None:
            is_sent = self._now.unsealed is not None
            self._verification.after_update(version, self._lineage, is_sent=is_sent)
        self._pulse.enter("between steps")

    # -- lost ranks ------------------------------------------------------------------------------

    @property
    def _is_broken(self) -> bool:
        """Whether a rank is lost, and the iteration under way counts no more."""
        return self._process.is_broken

    def _is_lost_with_a_rank(self) -> bool:
        """Whether a transfer failed because a rank is lost without which this process can go on."""
        return self._process.is_lost_with_a_rank()

    def _rejoin(self, rejoining: Rejoining) -> None:
        """Be at the top of the iteration after the version of the plan, with other ranks."""
        if self._now.is_computing:
            raise CannotGoOnError("the engine has computed gradients of which no update was made")
        try:
            went = rejoining.rejoin(self._traffic, self._loops.place)
            self._state.restore_again()  # as those do that start anew, and come to this top, too
        except (GeminiError, RuntimeError) as error:
            raise CannotGoOnError(
                f"this process cannot go on without a lost peer: {error}"
            ) from error
        self._traffic, self._rewinder = went.traffic, went.rewinder
        self._lineage, small = went.ready.place.lineage, went.ready.small
        self._now, self._order_back = IterationState(), 0
        self._is_withheld = self._is_rehearsed = False
        self._iterations.go_back(iteration_in(small))
        self._pulse.enter("between steps")

    # -- versions --------------------------------------------------------------------------------

    def reach_top(self, *, ends_at: int | None = None, sends: bool = True) -> None:
        """The script is at the top of its loop: what follows is of the next iteration.

        Args:
            ends_at: The version after which the loop gives no further pass.
            sends: Whether the version leaves now; else where the next batch has come.
        """
        try:
            if not self._is_broken:
                self._end_iteration(ends_at=ends_at, sends=sends)
        except RuntimeError:
            if not self._is_lost_with_a_rank():
                raise
        while self._rejoining is not None and self._is_broken:
            self._rejoin(self._rejoining)

    def _end_iteration(self, *, ends_at: int | None, sends: bool) -> None:
        if self._loops.is_at_place:
            self._arrive()
        if self._loops.awaited is not None:
            return
        self._state.restore_again()
        self._release()
        if self._update_watch is not None:
            self._update_watch.reach_top()
        if self._rewinder is not None and self._top is not LoopTop.NONE:
            wish = self._now.wish or self._asked_back()
            if wish is None and not self._now.is_judged:
                wish = self._rewinder.judge(self._iterations.newest)
            self._now.is_judged, self._now.wish = True, None
            if wish is not None:
                self._go_back(self._rewinder, wish)
        if self._now.unsealed is not None:
            self._now.unsealed = Unsealed()  # what was kept of it is older than this moment
            is_last = ends_at is not None and self._state.version >= ends_at
            self._seal(at_top=True, sends=sends, is_withheld=is_last)

    def _asked_back(self) -> Wish | None:
        """Return the user's wish to go back, as all ranks know it by now."""
        if not self._now.is_asked_back:
            return None
        self._now.is_asked_back = False
        self._order_back, how = self._traffic.agreed_back
        return wish_of(how, version=self._state.version)

    def _go_back(self, rewinder: Rewinder, wish: Wish) -> None:
        """Be at the top of an earlier iteration; nothing is sealed of the newest one."""
        went = rewinder.go_back(
            wish,
            lineage=self._lineage,
            place=self._loops.place,
            is_computing=self._now.is_computing,
        )
        if went is None:
            return
        self._now.unsealed, self._now.is_computing = None, False
        self._lineage = went.lineage
        if self._verification is not None:
            self._verification.go_back(went.extra)
        self._iterations.go_back(iteration_in(went.extra))
        if self._update_watch is not None:
            self._update_watch.begin_anew()
        self._pulse.enter("between steps")

    def _keep_drawn(self) -> None:
        """Keep what was drawn by now, and where: no top of a loop may follow that tells."""
        if self._now.unsealed is not None:
            self._now.unsealed = Unsealed(
                drawn=self._state.capture_drawn(), place=self._loops.place
            )

    def _seal(self, *, at_top: bool = False, sends: bool = True, is_withheld: bool = False) -> None:
        if self._now.unsealed is None:
            return
        drawn, place = self._now.unsealed.drawn, self._now.unsealed.place
        if drawn is None:
            drawn, place = self._state.capture_drawn(), self._loops.place
        # All ranks have to come here at one place among their collectives, which what reads data in
        # a thread of its own does not.
        if not self._is_rehearsed and self._thread == threading.get_ident():
            self._rehearse()
            self._is_rehearsed = True
        small = self._capture(drawn, place, at_top=at_top)
        self._now.unsealed = Unsealed(drawn=drawn, place=place, small=small, at_top=at_top)
        if sends:
            self._send_sealed(is_withheld=is_withheld)

    def _send_sealed(self, *, is_withheld: bool = False) -> None:
        """Send the version that was sealed, if one was and has not left."""
        sealed = self._now.unsealed
        if sealed is None or sealed.small is None or sealed.drawn is None:
            return
        self._now.unsealed = None
        self._script_watch.see_version(sealed.drawn, at_top=sealed.at_top, is_asked=self._is_asked)
        if self._now.is_to_hold:
            self._traffic.end_training()  # this version leaves at once, whatever the plan says
        self._send(sealed.small, is_withheld=is_withheld)
        if self._now.is_to_hold:
            self._traffic.wait()
            self._hold(self._state.version)

    def _release(self) -> None:
        """Release a loop's last version: the script is at its next loop, or at its end."""
        if self._is_withheld:
            self._is_withheld = False
            self._traffic.release()

    def send_version(self, *, at_top: bool = False) -> None:
        """Begin to send the engine's state as it is now.

        Args:
            at_top: The script is at the top of its loop.
        """
        drawn = self._state.capture_drawn()
        self._send(self._capture(drawn, self._loops.place, at_top=at_top))

    def _capture(self, drawn: bytes, place: LoopPlace, *, at_top: bool) -> bytes:
        guard = None if self._rewinder is None else self._rewinder.guard
        extra = carried(self._iterations, place=place, guard=guard, verification=self._verification)
        return self._state.capture_small(extra, drawn=drawn, at_top=at_top)

    def _send(self, captured: bytes, *, is_withheld: bool = False) -> None:
        small = bytearray(captured)
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
                is_withheld=is_withheld,
            )
        )
        self._is_withheld = is_withheld

    def _place(self) -> Place:
        """Return where in the script this version is sealed, which every rank must share."""
        made = sum(one.passes for one in self._state.script.watches[:1])
        begun = collectives_so_far()
        (passes, calls), self._seen_place = self._seen_place, (made, begun)
        is_known = UNKNOWN not in {passes, calls, begun}
        return Place(
            epoch=self._loops.epoch or 0,
            passes=made - passes if is_known else UNKNOWN,
            calls=begun - calls if is_known else UNKNOWN,
        )

    def finish(self) -> None:
        """Wait until the last version is whole everywhere; no more are made. Once is enough."""
        if self._is_finished:
            return
        if self._is_broken:
            raise CannotGoOnError("a rank is lost, and the script has left its loop")
        self._require_arrived()
        self._is_finished, self._now.is_to_hold = True, False
        if self._has_loop:  # which the script may have broken off
            self._say_end("loop")
        self._say_end("script")
        self._is_rehearsed = True  # the script may have destroyed its process groups
        with self._pulse.pause(WAITS_FOR_ENDS) if self._is_withheld else nullcontext():
            self._release()
            self._traffic.end_training()
        if self._now.unsealed is not None:
            self._seal()
        elif not self._traffic.is_sent(self._state.version):
            self.send_version()
        self._traffic.close()
        if self._update_watch is not None:
            self._update_watch.close()

    def _require_arrived(self) -> None:
        """Refuse an end of the script that never came to the loop which made the version.

        Raises:
            ConfigError: It did not, and that loop has passes left.
        """
        awaited = self._loops.awaited
        if awaited is not None and not awaited.is_last(self._began_at):
            raise ConfigError(
                f"version {self._began_at} was made in protected.{awaited}, and this start came to "
                f"its end without that loop; {SAME_LOOPS}"
            )
