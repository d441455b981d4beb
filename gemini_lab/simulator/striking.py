"""Strikes of a simulated run: processes die, machines are lost."""

from collections.abc import Sequence
from dataclasses import replace

from gemini_lab.log.events import NodeLost
from gemini_lab.simulator.durations import ANNOUNCED
from gemini_lab.simulator.outages import Outage
from gemini_lab.simulator.run_state import RunState, Waits


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
        can_move = run.segment is not None and outage.kind in {"gpu", "hardware"}
        if can_move and run.durations.is_announced():
            outage = replace(outage, kind="gpu", failure=ANNOUNCED)
        run.failures += 1
        self._take_out(struck, outage)
        return outage

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
            run.say(NodeLost(name=name, cause=outage.cause))
