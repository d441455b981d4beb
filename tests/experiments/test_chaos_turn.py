"""When a campaign strikes: told by a run that is played, with faults that only count."""

import time
from pathlib import Path

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.experiments.chaos.faults import Fault
from gemini_lab.experiments.chaos.turn import NEVER_CAME, StoodStillError, Turn


class PlayedRun:
    """A run, its log and what strikes it in one: an iteration a look, until it is struck.

    A kill stops training for some looks, and causes a recovery; with a hang it never goes on.
    """

    def __init__(self, iterations=60):
        self.progress, self.iterations = 0, iterations
        self.since_s, self.waits_for = {}, ""
        self.hits, self.mended = [], []
        self._stalled, self._steps, self._is_told_to_end = 0, [], False

    def poll(self):
        """As the owner's process, it is over or not; as the log, it is read on."""
        if self._stalled:
            self._stalled -= 1
            if self._steps:
                self.since_s[self._steps.pop(0)] = time.monotonic()
            return None
        self.progress += self.progress < self.iterations
        return 0 if self.progress == self.iterations or self._is_told_to_end else None

    def terminate(self):
        self._is_told_to_end = True

    def strike(self, fault):
        if fault.kind == "standby_kill":
            raise ConfigError("nobody has no such process now")
        self.hits.append((fault.kind, self.progress))
        if fault.kind == "worker_hang":
            self._stalled = 10**6
        elif fault.kind.endswith("_kill"):
            self._stalled, self._steps = 20, ["fence", "inventory", "plan", "start"]
        return "somebody", (lambda: self.mended.append(fault.kind)) if fault.lasts_s else None


def play(*faults, limit_s=5.0, stop_s=None, **form):
    run, said = PlayedRun(**form), []
    turn = Turn(run, run, run, Path(), limit_s=limit_s, stop_s=stop_s, say=said.append)
    turn.go_through(faults)
    assert len(said) == len(turn.struck)  # each is told once
    return run, turn


def go_through(*faults, **options):
    run, turn = play(*faults, **options)
    return run, turn.struck


def test_in_calm_two_iterations_come_between_a_fault_and_the_next():
    run, struck = go_through(Fault(kind="node_kill"), Fault(kind="agent_kill"))
    (_, first), (_, second) = run.hits
    assert first >= 2
    assert second >= first + 2
    assert all(one.until_s > one.at_s for one in struck)


def test_together_comes_while_the_fault_before_still_stops_training():
    run, _ = go_through(
        Fault(kind="node_kill"), Fault(kind="agent_kill", moment="together", after_s=0.02)
    )
    (_, first), (_, second) = run.hits
    assert first == second


def test_an_aimed_fault_strikes_when_its_step_has_begun():
    run, struck = go_through(Fault(kind="node_kill"), Fault(kind="agent_kill", moment="plan"))
    assert [kind for kind, _ in run.hits] == ["node_kill", "agent_kill"]
    assert run.hits[0][1] == run.hits[1][1]
    assert struck[1].happened


def test_without_a_recovery_an_aimed_fault_never_comes():
    run, struck = go_through(Fault(kind="bit_flip"), Fault(kind="agent_kill", moment="plan"))
    assert [kind for kind, _ in run.hits] == ["bit_flip"]
    assert (struck[1].happened, struck[1].hit) == (False, NEVER_CAME)


def test_what_lasts_is_mended_before_the_next_comes():
    run, struck = go_through(Fault(kind="etcd_stop", lasts_s=0.2), Fault(kind="node_kill"))
    assert run.mended == ["etcd_stop"]
    assert struck[0].until_s >= struck[0].at_s + 0.2


def test_meanwhile_comes_while_the_fault_before_still_lasts_but_training_goes_on():
    run, struck = go_through(
        Fault(kind="etcd_stop", lasts_s=60.0), Fault(kind="node_kill", moment="meanwhile")
    )
    (_, first), (_, second) = run.hits
    assert first + 2 <= second < run.iterations
    assert run.mended == ["etcd_stop"]  # at the end
    assert struck[0].until_s <= struck[1].at_s


def test_meanwhile_does_not_come_before_training_goes_on():
    run, _ = go_through(
        Fault(kind="etcd_kill", lasts_s=0.01), Fault(kind="node_kill", moment="meanwhile")
    )
    (_, first), (_, second) = run.hits
    assert second >= first + 2


def test_a_run_whose_time_is_up_is_struck_no_more_and_told_to_end_in_calm():
    run, turn = play(Fault(kind="node_kill"), stop_s=time.monotonic(), iterations=10**9)
    assert turn.has_told_to_end
    assert run.hits == []


def test_a_run_that_ends_before_its_time_is_up_is_not_told_to():
    _, turn = play(Fault(kind="node_kill"), stop_s=time.monotonic() + 600)
    assert not turn.has_told_to_end


def test_a_fault_for_the_end_is_not_waited_for_when_time_is_up():
    run, turn = play(
        Fault(kind="node_kill"),
        Fault(kind="agent_kill", moment="end"),
        stop_s=time.monotonic() + 0.5,
        iterations=10**9,
    )
    assert turn.has_told_to_end
    assert "agent_kill" not in [kind for kind, _ in run.hits]


def test_what_still_lasts_at_the_end_is_mended_then():
    run, _ = go_through(Fault(kind="tier_away", lasts_s=60.0), iterations=5)
    assert run.mended == ["tier_away"]


def test_training_that_does_not_go_on_in_time_hangs():
    with pytest.raises(StoodStillError, match="no iteration for"):
        go_through(Fault(kind="worker_hang"), limit_s=0.2)


def test_what_is_not_there_did_not_happen_and_the_rest_goes_on():
    run, struck = go_through(Fault(kind="standby_kill"), Fault(kind="node_kill"))
    assert [one.happened for one in struck] == [False, True]
    assert "no such process" in struck[0].hit
    assert len(run.hits) == 1


def test_a_run_that_is_over_is_not_struck_any_more():
    run, struck = go_through(*[Fault(kind="etcd_kill", after_s=0.3)] * 3, iterations=20)
    assert len(struck) <= 1
    assert len(run.hits) == len(struck)
