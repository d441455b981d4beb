"""The end of a run: a last save, or word to the tier of what counts no more, and a release."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from gemini_lab.log import events
from gemini_lab.recovery.discarded_versions import disown, not_disowned, with_way_on
from gemini_lab.recovery.messages import Disowned, Release
from gemini_lab.recovery.protocol import Emit, Instruction, Send, WriteState
from gemini_lab.recovery.root.known_run import PartOfRoot

LAST_TRIES_S: Final = 32.0  # after that the last version is tried to be saved no more
DISOWN_LIMIT_S: Final = 60.0  # a line in a file; a store that takes longer hangs


class Ending(PartOfRoot):
    """The end of a run."""

    def save_last(self, at_s: float) -> Iterator[Instruction]:
        """Save the last version, and try again after a pause if that failed.

        A tier that is away for a moment costs a run no version after which none comes.
        """
        if self.run.saver.has_failed_last:
            next_s = self.run.asked_s + self.run.retry_s
            if max(at_s, next_s) > self.run.entered_s + LAST_TRIES_S:
                yield from self.run.saver.end(state=self.state)
                yield from self._done(at_s)
                return
            if at_s < next_s:
                return
            self.run.asked_s, self.run.retry_s = at_s, 2 * self.run.retry_s
        yield from self.run.saver.begin_last(at_s, state=self.state)
        if self.run.saver.version is None:
            yield from self._done(at_s)

    def _done(self, at_s: float) -> Iterator[Instruction]:
        self.run.change(
            replace(self.state.story, ending=events.RunFinished(iteration=self.run.saver.complete))
        )
        yield from self.run.enter("done", at_s)
        yield from self._tell_ending()

    def fail(
        self,
        at_s: float,
        reason: str,
        *,
        cause: events.FailureCause = "machines",
        output: tuple[str, ...] = (),
    ) -> Iterator[Instruction]:
        yield from self.end(at_s, events.RunFailed(reason=reason, cause=cause, output=output))

    def end(self, at_s: float, ending: events.RunFailed) -> Iterator[Instruction]:
        self.run.state = replace(
            self.state,
            epoch=self.state.epoch + 1,
            story=replace(self.state.story, ending=ending, parting=None),
        )
        yield from self.run.enter("failed", at_s)
        yield from self.part(at_s)

    def part(self, at_s: float) -> Iterator[Instruction]:
        """Tell the persistent tier what counts no more, before a failed run's end is emitted."""
        told = list(disown(self.state, self.run.living)) if self.state.is_disowning else []
        self.run.asked_s = at_s
        yield from told or self._tell_ending()

    def on_disowned(self, at_s: float, said: Disowned) -> Iterator[Instruction]:
        """Act on the persistent tier's answer to what was left behind."""
        if not self.state.is_disowning:
            if said.reason:
                yield Emit(event=events.Note(text=not_disowned(self.state, said.reason)))
            return
        newest = self.state.discarded.left[-1].version
        if not said.reason and newest > max(said.versions, default=0):
            yield from self.run.saver.begin(at_s, newest, state=self.state)
        else:
            yield from self.end_disowned(said.versions, reason=said.reason)

    def end_disowned(
        self, versions: Sequence[int] = (), *, reason: str = ""
    ) -> Iterator[Instruction]:
        """Emit the end, with the version that another run can go on from."""
        self.run.state = with_way_on(self.state, versions, reason)
        yield from self._tell_ending()

    def _tell_ending(self) -> Iterator[Instruction]:
        """Release all agents and emit the end; a root agent that dies leaves this to the next."""
        if self.state.story.ending is None:
            return
        yield from self._release()
        yield Emit(event=self.state.story.ending)
        self.run.change(replace(self.state.story, ending=None))
        yield WriteState(state=self.state)
        yield from self.run.adopt(self.run.drains.let_go(self.state, self.run.living))

    def _release(self) -> Iterator[Instruction]:
        for node in self.run.living:
            yield Send(to=node, order=Release(epoch=self.state.epoch))

    def hurry(self, at_s: float) -> Iterator[Instruction]:
        """End a failed run whose persistent tier takes too long."""
        if self.run.saver.version is not None:
            yield from self.run.saver.give_up_if_late(at_s, state=self.state)
            if self.run.saver.version is None:
                yield from self.end_disowned()
        elif at_s - self.run.asked_s > DISOWN_LIMIT_S:
            reason = f"no answer within {DISOWN_LIMIT_S:.0f} s"
            yield from self.end_disowned(reason=reason)
