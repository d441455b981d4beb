"""Strikes of a simulated run: machines are lost, become slow, or compute wrong."""

from collections.abc import Sequence
from dataclasses import replace

from gemini_lab.log.events import NodeLost
from gemini_lab.simulator.ailing import Wrong
from gemini_lab.simulator.durations import ANNOUNCED, FOUND
from gemini_lab.simulator.outages import Outage
from gemini_lab.simulator.run_state import RunState, Waits, Word


class Striking:
    """Has a run suffer its outages.

    Args:
        run: The run.
    """

    def __init__(self, run: RunState) -> None:
        self._run = run

    def strike_all(self, outages: Sequence[Outage]) -> Waits:
        """Strike each at its time, as a process; they are in order of it."""
        env, began_s = self._run.env, self._run.durations.first_start_s
        for outage in outages:
            yield env.timeout(max(0.0, began_s + outage.at_s - env.now))
            if (struck := self.strike(outage)) is not None:
                self._run.interrupt(struck)

    def strike(self, outage: Outage) -> Outage | None:
        """Break what the outage names, as far as it is there.

        Returns:
            What training stops for; `None`: for nothing.
        """
        run = self._run
        struck = [p for p in outage.positions if run.cluster.is_up(p)]
        if not struck:
            return None
        if outage.kind in {"straggler", "wrong_sums"}:
            run.failures += 1
            (self._slow_down if outage.kind == "straggler" else self._spoil)(outage)
            return None
        can_move = run.segment is not None and outage.kind in {"gpu", "hardware"}
        if can_move and run.durations.is_announced():
            outage = replace(outage, kind="gpu", failure=ANNOUNCED)
        run.failures += 1
        self._take_out(struck, outage)
        return outage

    def find(self, wrong: Wrong) -> Outage:
        """Take out a machine that computes wrong, if it is still there."""
        found = replace(
            wrong.outage, kind="hardware" if wrong.is_there else "software", failure=FOUND
        )
        self._take_out(found.positions, found)
        return found

    def _take_out(self, positions: Sequence[int], outage: Outage) -> None:
        run = self._run
        run.struck["failures"] += 1
        if run.followed is not None:
            for position in positions:
                run.followed.failed(position, run.env.now)
        if outage.kind != "software":
            self._lose(positions, outage)

    def _lose(self, positions: Sequence[int], outage: Outage) -> None:
        run = self._run
        run.struck["nodes"] += len(positions)
        run.unordered += len(positions)
        for position in positions:
            name = run.cluster.lose(position, memory=outage.kind != "gpu")
            run.stragglers.leave(position)
            run.trust.leave(position)
            run.say(NodeLost(name=name, cause=outage.cause))

    # -- slow ones -------------------------------------------------------------------------------

    def _slow_down(self, outage: Outage) -> None:
        run = self._run
        run.stragglers.slow.append(outage)
        self._change_pace()
        if outage.lasts_s is not None:
            run.env.process(self._speed_up(outage, outage.lasts_s))
        if run.policy.drains_slow_s is not None:
            run.env.process(self._drain(outage, run.policy.drains_slow_s))

    def _speed_up(self, outage: Outage, after_s: float) -> Waits:
        yield self._run.env.timeout(after_s)
        if self._run.stragglers.end(outage):
            self._change_pace()

    def _drain(self, outage: Outage, after_s: float) -> Waits:
        """Exchange a machine that is still slow then, once training runs."""
        run = self._run
        yield run.env.timeout(after_s)
        while outage in run.stragglers.slow:
            if run.segment is not None:
                gone = replace(outage, kind="gpu", failure=ANNOUNCED, factor=1.0, lasts_s=None)
                self._take_out(gone.positions, gone)
                run.interrupt(gone)
                return
            yield run.env.timeout(after_s)

    def _change_pace(self) -> None:
        run = self._run
        if run.segment is not None:
            run.segment = run.segment.at_pace(run.iteration_s(), run.elapsed_s)
            run.interrupt(Word.PACE)

    # -- wrong ones ------------------------------------------------------------------------------

    def _spoil(self, outage: Outage) -> None:
        run, newest = self._run, None
        if run.segment is not None:
            newest = run.segment.newest_at(run.elapsed_s)
            run.interrupt(Word.PACE)  # there may be an iteration now after which it is found
        wrong = run.trust.spoil(outage, newest=newest)
        if outage.lasts_s is not None:
            run.env.process(self._notice(wrong, outage.lasts_s))

    def _notice(self, wrong: Wrong, after_s: float) -> Waits:
        """People find what a machine spoils, unless that was found, or left behind, before."""
        yield self._run.env.timeout(after_s)
        if wrong in self._run.trust.wrong:
            self._run.interrupt(self.find(wrong))
