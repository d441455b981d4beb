"""The protection of one worker while it trains: the script's loops, and the hook in the engine.

`sealing` says when a version is sealed. What tells it so is here: the top of a loop over
`LiveProtection.steps` or `epochs`, or else the next forward pass.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

import torch

from gemini_lab.engine.arguments import require_rewind
from gemini_lab.engine.contract import WorldChange
from gemini_lab.engine.frameworks.stepping import UpdateWatch
from gemini_lab.engine.gradients.update_recorder import UpdateRecorder
from gemini_lab.engine.heartbeat import Heartbeat
from gemini_lab.engine.holding_points import HoldingPoints
from gemini_lab.engine.iteration_log import IterationLog, iteration_in
from gemini_lab.engine.rejoining import Rejoining
from gemini_lab.engine.rewinding import Rewinder, Wish, require_loop, require_steps, wish_of
from gemini_lab.engine.script_loops import Ends, Kind, Loop, LoopPlace, LoopState, ScriptLoops
from gemini_lab.engine.sealing import VersionSealer
from gemini_lab.engine.state.engine_state import EngineState
from gemini_lab.engine.unsaved_state import ScriptWatch
from gemini_lab.engine.verify.verification import Verification
from gemini_lab.errors import CannotGoOnError, ConfigError, GeminiError, UnsupportedError
from gemini_lab.kept.process import KeptProcess
from gemini_lab.limits import require_text
from gemini_lab.recovery.messages import End
from gemini_lab.shard.lineage import Lineage
from gemini_lab.transfer.replicator import Replicator
from gemini_lab.units import check_number

_TOLD_ALONE: Final = (
    "the ranks of this job train different models, as the stages of a pipeline, and begin an "
    "iteration at different times, so that only the top of a loop tells all of them where one "
    "ends; loop `for step in protected.steps(N)` on every rank"
)
_DATA_ALONE: Final = (
    "only some ranks handed loaders to `protect`, and in a loop over protected.epochs the loader "
    "tells where an iteration ends: the others would wait elsewhere; loop "
    "`for step in protected.steps(N)` on every rank, or name a loader on each"
)
_CAPTURED: Final = (
    "optimizer.step is being captured in a CUDA graph: the graph's replays would change the "
    "weights without a call of it, so that versions would be torn and iterations not counted; "
    "capture the forward and backward passes alone (torch.cuda.make_graphed_callables, or "
    'torch.compile with mode="reduce-overhead"), and call optimizer.step outside of the graph'
)
_READ_APART: Final = (
    "another thread than the one that trains reads a loader in data=, so that no version could say "
    "which batches training has used; read it in the thread that trains: a DataLoader reads ahead "
    "by itself with num_workers and prefetch_factor"
)
WAITS_FOR_ENDS: Final = "the end of the other ranks' scripts"


class LiveProtection:
    """Protection of one worker of a lab, made of its parts; it is the hook in the engine's step."""

    def __init__(
        self,
        state: EngineState,
        replicator: Replicator,
        iterations: IterationLog,
        pulse: Heartbeat,
        *,
        lineage: Lineage,  # the history in which versions are made
        place: LoopPlace = (),  # of the restored version in the script's loops
        rewinder: Rewinder | None = None,  # takes iterations back, if versions are kept
        # Keeps what made each version, if peers are to get that instead.
        recorder: UpdateRecorder | None = None,
        verification: Verification | None = None,
        # Called when an iteration begins to compute, to strike what is to be struck.
        flaws: Callable[[], None] = lambda: None,
        remark: Callable[[str], None] = lambda _: None,
        # Called if all ranks stop, so that a node may leave; it does not return.
        hold: Callable[[int], None] = lambda _: None,
        # Lets this process go on when others are lost, if it is to be kept.
        rejoining: Rejoining | None = None,
        # Called once the first version is made in an epoch, with what a recovery puts back.
        rehearse: Callable[[], None] = lambda: None,
        ends: Ends | None = None,
        update_watch: UpdateWatch | None = None,  # looks whether what is protected is what trains
    ) -> None:
        self._state = state
        self._replicator = replicator
        self._iterations = iterations
        self._pulse = pulse
        self._rewinder = rewinder
        self._verification = verification
        self._flaws = flaws
        self._rejoining = rejoining
        self._process = KeptProcess() if rejoining is None else rejoining.process
        self._ends = ends
        self._update_watch = update_watch
        self._script_watch = ScriptWatch(state.script, remark, state.framework.notices)
        self._began_at = state.version
        self._holding_points = HoldingPoints.of_worker()
        self._loops = ScriptLoops(place, state.version)
        self._sealer = VersionSealer(
            state,
            replicator,
            iterations,
            loops=self._loops,
            script_watch=self._script_watch,
            lineage=lineage,
            recorder=recorder,
            guard=None if rewinder is None else rewinder.guard,
            verification=verification,
            hold=hold,
            rehearse=rehearse,
        )
        self._is_computing = False  # gradients of which no update was made yet
        self._wish: Wish | None = None  # the script's, to go back when the iteration ends
        self._is_asked_back = False  # by the user; all ranks know
        self._order_back = 0  # of the orders to go back, the last that was carried out
        iterations.counts = not place
        if ends is not None:
            ends.begin(state.version)
            for watch in state.script.watches[:1]:
                watch.on_over = self._end_pass

    @property
    def step(self) -> int:
        """Return the number of iterations that were done when protection began."""
        self._script_watch.is_asked = True
        return self._began_at

    @property
    def is_early(self) -> bool:
        return self._loops.awaited is not None

    @property
    def world_changed(self) -> WorldChange | None:
        return self._state.world_changed

    # -- the script's loops ------------------------------------------------------------------------

    def steps(self, total: int, /) -> Iterator[int]:
        check_number("steps", total, is_whole=True)
        return self._steps(total)

    def _steps(self, total: int) -> Iterator[int]:
        with self._in_loop("steps", total) as loop:
            if loop is None:
                return
            self._loops.enter(LoopState.TOLD)
            self._iterations.total = total
            if self._rejoining is not None:
                self._rejoining.enter_loop(self._replicator)
            try:
                self.reach_top(ends_at=total)
                while self._loops.leads_to_place or self._state.version < total:
                    if not self._loops.leads_to_place:  # else the pass is given once more
                        loop.begin(self._state.version)
                    yield loop.number
                    # A loop that ends just ends: its last version leaves as any other.
                    self._sealer.is_to_hold &= self._state.version < total
                    self._leave_pass(loop)
                    self.reach_top(ends_at=total)
                self._replicator.wait()  # the script may write, or destroy its process groups now
            finally:  # also if the script breaks off its loop
                self._process.leave_loop()
                self._say_end("break" if self._state.version < total else "loop")

    def epochs(self, total: int, /) -> Iterator[int]:
        check_number("epochs", total, is_whole=True)
        return self._epochs(total)

    def _epochs(self, total: int) -> Iterator[int]:
        with self._in_loop("epochs", total) as loop:
            if loop is None:
                return
            if not self._state.is_data_even:
                raise UnsupportedError(_DATA_ALONE)
            for watch in self._state.script.watches[:1]:
                watch.on_fetch, watch.on_batch = self._reach_fetch, self._sealer.send_sealed
            if self._loops.is_at_place and not self._state.is_to_be_put_back:
                self._arrive()
            try:
                for number in range(loop.number, total):
                    loop.begin(number)
                    self._begin_pass()
                    yield number
                    self._leave_pass(loop)
                    for watch in self._state.script.watches:
                        watch.end_epoch()
                    loop.begin(number + 1)
                    if self._loops.state is not LoopState.TOLD:
                        self._sealer.keep_drawn()
            finally:  # also if the script breaks off its loop
                self._say_end("break" if loop.number < total else "loop")
            self._sealer.is_to_hold = False
            self.reach_top(ends_at=self._state.version)
            self._replicator.wait()

    @contextmanager
    def _in_loop(self, kind: Kind, total: int) -> Iterator[Loop | None]:
        """Run one of the script's loops; `None` if it was over when the version was made."""
        self._script_watch.is_asked = True
        if self._loops.is_at_place:
            self._arrive()
        with self._loops.within(kind, total) as loop:
            done = loop.number if loop is not None and kind == "epochs" else self._began_at
            if loop is None or (self._loops.is_at_place and done >= total):
                self._script_watch.note_empty_loop(f"{kind}({total})", version=self._began_at)
            if loop is None:
                yield None
                return
            self._begin_pass()
            try:
                yield loop
            finally:
                self._sealer.keep_drawn()

    def _begin_pass(self) -> None:
        for watch in self._state.script.watches:
            watch.begin_pass()

    def _leave_pass(self, loop: Loop) -> None:
        self._loops.require_led()
        loop.end_pass()
        if self._loops.is_at_place:
            self._arrive()

    def _arrive(self) -> None:
        """Put the version back once more: the loop that made it is at its top."""
        left_out = self._loops.arrive()
        self._state.restore_again()
        if left_out:
            self._replicator.go_back(self._state.version)
        self._begin_anew()
        self._iterations.go_back(self._iterations.newest)

    def _begin_anew(self) -> None:
        self._is_computing, self._wish, self._is_asked_back = False, None, False
        self._sealer.is_to_hold = False
        self._sealer.drop()
        if self._update_watch is not None:
            self._update_watch.begin_anew()

    def end_iterations_at_fetch(self) -> None:
        """End an iteration whenever the first of `data` is asked for the next batch."""
        self._script_watch.is_asked = True
        for watch in self._state.script.watches[:1]:
            watch.on_fetch = self.reach_top

    def _say_end(self, what: End) -> None:
        if self._ends is not None and not self._process.is_broken:
            self._ends.say(what, self._state.version)

    def _end_pass(self) -> None:
        """Report that the data are over; in a loop over epochs, wait for all ranks."""
        version, epoch = self._state.version, self._loops.epoch
        if self._ends is None or self._process.is_broken or self.is_early:
            return
        if not self._ends.end_pass(version):
            return  # nothing was trained in this pass, such as in an evaluation on one rank
        if epoch is not None:
            self._ends.meet(version, epoch=epoch, rewinds=self._sealer.lineage.rewinds)
        else:
            self._say_end("data")

    def _reach_fetch(self) -> None:
        """End an iteration, because the first of `data` is asked for the next batch."""
        if self._loops.innermost != "epochs":
            return
        self._loops.enter(LoopState.TOLD)
        if self._loops.is_at_place and not self._state.script.watches[0].is_where_put:
            return  # it looks at a batch before the loop over them
        if not self._loops.leads_to_place:
            self.reach_top(sends=False)

    # -- what else the script asks for -------------------------------------------------------------

    def log(self, **values: float) -> None:
        self._iterations.add(values)

    def rewind(self, steps: int, *, skip: bool = True) -> None:
        require_rewind(steps, skip)
        done = self._state.version
        can_rewind = self._loops.state.is_in_loop and self._rewinder is not None
        require_steps(steps, version=done, can_rewind=can_rewind)
        if steps or not self._sealer.is_due:  # else there is nothing to take back
            self._wish = Wish(version=done - steps, skips=skip, cause="script")

    def pause(self, reason: str) -> AbstractContextManager[None]:
        require_text("the pause's reason", reason)
        return self._pulse.pause(reason)

    def send_version(self, *, at_top: bool = False) -> None:
        """Begin to send the engine's state as it is now; `at_top`: of the script's loop."""
        self._sealer.send_now(at_top=at_top)

    # -- the hook ----------------------------------------------------------------------------------

    @property
    def counts(self) -> bool:
        return not self._process.is_broken

    @property
    def remarks(self) -> Sequence[str]:
        return self._script_watch.remarks

    def begin_forward(self) -> None:
        """Begin to compute an iteration; the version before it is sealed now, if it was not yet."""
        self._pulse.enter("step")
        self._is_computing = True
        if self._process.is_broken:
            return
        if self._loops.innermost != "steps":
            self._process.train_without_loop()
        if self._loops.state is not LoopState.TOLD:
            self._sealer.seal()
        if self.is_early:
            return
        for watch in self._state.script.watches:
            watch.note_forward()
        self._flaws()
        if self._verification is not None:
            self._verification.begin(self._state.version + 1)
        self._iterations.begin_forward()

    def before_update(self) -> float:
        """Wait until the version on its way is whole: its tensors are about to change.

        Raises:
            ConfigError: The script has ended.
            UnsupportedError: The update is being captured in a CUDA graph, or another thread reads
                the data.
        """
        if any(watch.is_read_apart for watch in self._state.script.watches):
            raise UnsupportedError(_READ_APART)
        in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if in_use and torch.cuda.is_current_stream_capturing():
            raise UnsupportedError(_CAPTURED)
        if self._loops.state is LoopState.FINISHED:
            raise ConfigError(
                "an update begins after the script's end, when its last version was sent; train "
                "before the script ends, and not in what it registers with atexit"
            )
        if self._update_watch is not None:
            self._update_watch.begin_update()
        self._sealer.drop()  # an update within one pass of the loop: the loop's top comes later
        self._sealer.release()
        waited_s = self._wait_for_version()
        if self._process.is_broken or self.is_early:
            return 0.0
        self._sealer.is_to_hold = self._replicator.is_hold_agreed
        self._is_asked_back = self._replicator.agreed_back[0] > self._order_back
        if self._verification is not None:
            rewinds = self._sealer.lineage.rewinds
            self._verification.before_update(self._state.version + 1, rewinds=rewinds)
        return waited_s

    def before_writing(self) -> None:
        self._wait_for_version()

    def _wait_for_version(self) -> float:
        with self._unless_lost():
            return self._replicator.wait()
        return 0.0

    @contextmanager
    def _unless_lost(self) -> Iterator[None]:
        """Drop an error of a transfer if it failed with a lost rank that this process outlives."""
        try:
            yield
        except RuntimeError:
            if not self._process.is_lost_with_a_rank():
                raise

    def after_update(self, waited_s: float) -> None:
        """Report the iteration; its version is sent once it is sealed, if it is due."""
        if self._update_watch is not None:
            self._update_watch.end_update()
        version = self._state.version
        self._script_watch.end_update()
        self._is_computing = False
        if self._process.is_broken:
            return
        if self._state.framework.is_pipelined and self._loops.state is not LoopState.TOLD:
            # On all ranks alike: they come to an update at one time, but not to a forward pass.
            raise UnsupportedError(_TOLD_ALONE)
        if self.is_early:
            if text := self._loops.leave_out():
                self._script_watch.remark_once(text)
            return
        if self._rewinder is not None and self._rewinder.guard is not None:
            require_loop(is_in_loop=self._loops.state.is_in_loop)
        self._iterations.end(version, waited_s=waited_s)
        is_to_be_sent: bool | None = None
        with self._unless_lost():  # ranks may speak here of how they send versions
            is_to_be_sent = self._replicator.end_iteration(version)
        if is_to_be_sent is None:
            return
        if is_to_be_sent or self._sealer.is_to_hold:
            self._sealer.expect()
            if self._loops.state is not LoopState.TOLD:
                self._sealer.keep_drawn()
        if self._verification is not None:
            lineage, is_sent = self._sealer.lineage, self._sealer.is_due
            self._verification.after_update(version, lineage, is_sent=is_sent)
        self._pulse.enter("between steps")

    # -- the loop's top ----------------------------------------------------------------------------

    def reach_top(self, *, ends_at: int | None = None, sends: bool = True) -> None:
        """End an iteration: the script is at the top of its loop.

        Args:
            ends_at: The version after which the loop gives no further pass.
            sends: Whether the version leaves now; else it leaves when the next batch has come.
        """
        with self._unless_lost():
            if not self._process.is_broken:
                self._end_iteration(ends_at=ends_at, sends=sends)
        while self._rejoining is not None and self._process.is_broken:
            self._rejoin(self._rejoining)
        if not self.is_early and self._holding_points.next == self._state.version:
            with self.pause(f"holds after iteration {self._state.version}, for its user to act"):
                self._holding_points.wait(self._state.version)

    def _end_iteration(self, *, ends_at: int | None, sends: bool) -> None:
        if self._loops.is_at_place:
            self._arrive()
        if self.is_early:
            return
        self._state.restore_again()
        self._sealer.release()
        if self._update_watch is not None:
            self._update_watch.reach_top()
        if self._rewinder is not None and self._loops.state.is_in_loop:
            wish, self._wish = self._wish or self._asked_back(), None
            wish = wish or self._rewinder.judge(self._iterations.newest)
            if wish is not None:
                self._go_back(self._rewinder, wish)
        is_last = ends_at is not None and self._state.version >= ends_at
        self._sealer.seal(at_top=True, sends=sends, is_withheld=is_last)

    def _asked_back(self) -> Wish | None:
        """Return the user's wish to go back, as all ranks know it by now."""
        if not self._is_asked_back:
            return None
        self._is_asked_back = False
        self._order_back, how = self._replicator.agreed_back
        return wish_of(how, version=self._state.version)

    def _go_back(self, rewinder: Rewinder, wish: Wish) -> None:
        """Begin an earlier iteration again; nothing is sealed of the newest one."""
        went = rewinder.go_back(
            wish,
            lineage=self._sealer.lineage,
            place=self._loops.place,
            is_computing=self._is_computing,
        )
        if went is None:
            return
        self._sealer.drop()
        self._is_computing = False
        self._sealer.lineage, extra = went
        if self._verification is not None:
            self._verification.go_back(extra)
        self._iterations.go_back(iteration_in(extra))
        if self._update_watch is not None:
            self._update_watch.begin_anew()
        self._pulse.enter("between steps")

    def _rejoin(self, rejoining: Rejoining) -> None:
        """Begin the iteration after the version of the plan, with other ranks."""
        if self._is_computing:
            raise CannotGoOnError("the engine has computed gradients of which no update was made")
        try:
            ready, replicator, rewinder = rejoining.rejoin(self._replicator, self._loops.place)
            self._state.restore_again()  # as those do that start anew, and come to this top, too
        except (GeminiError, RuntimeError) as error:
            raise CannotGoOnError(
                f"this process cannot go on without a lost peer: {error}"
            ) from error
        self._replicator, self._rewinder = replicator, rewinder
        sealer = self._sealer
        sealer.replicator, sealer.lineage = replicator, ready.place.lineage
        sealer.guard = None if rewinder is None else rewinder.guard
        sealer.rehearse = ready.rehearse
        self._begin_anew()
        self._order_back = 0
        self._iterations.go_back(iteration_in(ready.small))
        self._pulse.enter("between steps")

    # -- the end -----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Wait until the last version is whole everywhere; no more are made. Once is enough."""
        if self._loops.state is LoopState.FINISHED:
            return
        if self._process.is_broken:
            raise CannotGoOnError("a rank is lost, and the script has left its loop")
        self._loops.require_arrived()
        has_looped = self._loops.state is not LoopState.NO_LOOP
        self._loops.enter(LoopState.FINISHED)
        self._sealer.is_to_hold = False
        if has_looped:  # a loop that the script may have broken off
            self._say_end("loop")
        self._say_end("script")
        self._sealer.rehearse = None  # the script may have destroyed its process groups
        waits = self._pulse.pause(WAITS_FOR_ENDS) if self._replicator.is_withheld else nullcontext()
        with waits:
            self._sealer.release()
            self._replicator.end_training()
        if self._sealer.is_due:
            self._sealer.seal()
        elif not self._replicator.is_sent(self._state.version):
            self._sealer.send_now()
        self._replicator.finish()
        if self._update_watch is not None:
            self._update_watch.close()
