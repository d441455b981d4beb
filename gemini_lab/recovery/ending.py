"""How a run ends: its last version is saved, or what counts no more is said, and all go."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from gemini_lab.log import events
from gemini_lab.recovery.disowning import disown, not_disowned, with_way_on
from gemini_lab.recovery.messages import Disowned, Release
from gemini_lab.recovery.protocol import Emit, Instruction, Send, WriteState
from gemini_lab.recovery.steps import KnownRun

LAST_TRIES_S: Final = 32.0  # after that the last version is tried to be saved no more
DISOWN_LIMIT_S: Final = 60.0  # a line in a file; a store that takes longer hangs


class EndingRun(KnownRun):
    """A run that comes to its end."""

    def _save_last(self, at_s: float) -> Iterator[Instruction]:
        """Save the last version, and again after a pause where that failed; then that was all.

        A tier that is away for a moment costs a run no version after which none comes.
        """
        if self._saver.has_failed_last:
            next_s = self._asked_s + self._retry_s
            if max(at_s, next_s) > self._entered_s + LAST_TRIES_S:
                yield from self._saver.end(state=self.state)
                yield from self._done(at_s)
                return
            if at_s < next_s:
                return
            self._asked_s, self._retry_s = at_s, 2 * self._retry_s
        yield from self._saver.begin_last(at_s, state=self.state)
        if self._saver.version is None:
            yield from self._done(at_s)

    def _done(self, at_s: float) -> Iterator[Instruction]:
        self.state = replace(self.state, ending=events.RunFinished(iteration=self._saver.complete))
        yield from self._enter("done", at_s)
        yield from self._tell_ending()

    def _fail(
        self,
        at_s: float,
        reason: str,
        *,
        cause: events.FailureCause = "machines",
        output: tuple[str, ...] = (),
    ) -> Iterator[Instruction]:
        yield from self._end(at_s, events.RunFailed(reason=reason, cause=cause, output=output))

    def _end(self, at_s: float, ending: events.RunFailed) -> Iterator[Instruction]:
        self.state = replace(self.state, epoch=self.state.epoch + 1, ending=ending, parting=None)
        yield from self._enter("failed", at_s)
        yield from self._part(at_s)

    def _part(self, at_s: float) -> Iterator[Instruction]:
        """Before a failed run's end is told, its persistent tier learns what counts no more."""
        told = list(disown(self.state, self.living)) if self.state.is_disowning else []
        self._asked_s = at_s
        yield from told or self._tell_ending()

    def _on_disowned(self, at_s: float, said: Disowned) -> Iterator[Instruction]:
        """The persistent tier knows what was left behind, or could not be told."""
        if not self.state.is_disowning:
            if said.reason:
                yield Emit(event=events.Note(text=not_disowned(self.state, said.reason)))
            return
        newest = self.state.left[-1].version
        if not said.reason and newest > max(said.versions, default=0):
            yield from self._saver.begin(at_s, newest, state=self.state)
        else:
            yield from self._end_disowned(said.versions, reason=said.reason)

    def _end_disowned(
        self, versions: Sequence[int] = (), *, reason: str = ""
    ) -> Iterator[Instruction]:
        """Tell the end, with what there is to go on from."""
        self.state = with_way_on(self.state, versions, reason)
        yield from self._tell_ending()

    def _tell_ending(self) -> Iterator[Instruction]:
        """The run is over: let everybody go, and say so; a root that dies leaves it to the next."""
        if self.state.ending is None:
            return
        yield from self._release()
        yield Emit(event=self.state.ending)
        self.state = replace(self.state, ending=None)
        yield WriteState(state=self.state)
        yield from self._adopt(self._drains.let_go(self.state, self.living))

    def _release(self) -> Iterator[Instruction]:
        for node in self.living:
            yield Send(to=node, order=Release(epoch=self.state.epoch))

    def _hurry(self, at_s: float) -> Iterator[Instruction]:
        """A run that has failed waits for its persistent tier no longer than for a save."""
        if self._saver.version is not None:
            yield from self._saver.give_up_if_late(at_s, state=self.state)
            if self._saver.version is None:
                yield from self._end_disowned()
        elif at_s - self._asked_s > DISOWN_LIMIT_S:
            reason = f"no answer within {DISOWN_LIMIT_S:.0f} s"
            yield from self._end_disowned(reason=reason)
