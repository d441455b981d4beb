"""When a campaign strikes: told by a run that is played, with faults that only count."""

import time
from pathlib import Path

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.recovery.plan import RecoveryPlan, Unclear
from gemini_lab.recovery.progress_at_risk import Hopes, reason_to_wait
from gemini_lab_bench.chaos.faults import Fault
from gemini_lab_bench.chaos.turn import NEVER_CAME, RunUnderFaults, StoodStillError


class PlayedRun:
    """A run, its log and what strikes it in one: an iteration a look, until it is struck.

    A kill stops training for some looks, and causes a recovery; with a hang it never goes on.
    """

    def __init__(self, iterations=60, saves=8, waits_for=""):
        self.progress, self.iterations = 0, iterations
        self.since_s, self.waits_for = {}, waits_for
        self.hits, self.mended = [], []
        self._stalled, self._steps, self._is_told_to_end = 0, [], False
        self._saves = saves

    def poll(self):
        """As the owner's process, it is over or not; as the log, it is read on."""
        if self._stalled:
            self._stalled -= 1
            if self._steps:
                self.since_s[self._steps.pop(0)] = time.monotonic()
            return None
        self.progress += self.progress < self.iterations
        if self.progress % self._saves == 0:
            self.since_s["commit"] = time.monotonic()
        return 0 if self.progress == self.iterations or self._is_told_to_end else None

    def terminate(self):
        self._is_told_to_end = True

    def strike(self, fault):
        if fault.kind == "standby_kill":
            raise ConfigError("nobody has no such process now")
        self.hits.append((fault.kind, self.progress))
        if fault.kind == "worker_hang":
            self._stalled = 10**6
        elif fault.kind.endswith(("_kill", "_loss")):
            self._stalled, self._steps = 20, ["fence", "inventory", "plan", "start"]
        return "somebody", (lambda: self.mended.append(fault.kind)) if fault.lasts_s else None


def play(*faults, limit_s=5.0, stop_s=None, tier=(0, 0), **form):
    run, said = PlayedRun(**form), []
    turn = RunUnderFaults(
        run,
        run,
        run,
        Path("nowhere"),
        limit_s=limit_s,
        stop_s=stop_s,
        say=said.append,
        tier=lambda: tier,
    )
    turn.go_through(faults)
    assert len(said) == len(turn.struck)  # each is told once
    return run, turn


def go_through(*faults, **options):
    run, turn = play(*faults, **options)
    return run, turn.struck


def test_in_calm_two_iterations_come_between_a_fault_and_the_next():
    run, struck = go_through(Fault(kind="node_loss"), Fault(kind="agent_kill"))
    (_, first), (_, second) = run.hits
    assert first >= 2
    assert second >= first + 2
    assert all(one.until_s > one.at_s for one in struck)


def test_together_comes_while_the_fault_before_still_stops_training():
    run, _ = go_through(
        Fault(kind="node_loss"), Fault(kind="agent_kill", moment="together", after_s=0.02)
    )
    (_, first), (_, second) = run.hits
    assert first == second


def test_an_aimed_fault_strikes_when_its_step_has_begun():
    run, struck = go_through(Fault(kind="node_loss"), Fault(kind="agent_kill", moment="plan"))
    assert [kind for kind, _ in run.hits] == ["node_loss", "agent_kill"]
    assert run.hits[0][1] == run.hits[1][1]
    assert struck[1].happened


def test_without_a_recovery_an_aimed_fault_never_comes():
    run, struck = go_through(Fault(kind="bit_flip"), Fault(kind="agent_kill", moment="plan"))
    assert [kind for kind, _ in run.hits] == ["bit_flip"]
    assert (struck[1].happened, struck[1].hit) == (False, NEVER_CAME)


def test_what_lasts_is_mended_before_the_next_comes():
    run, struck = go_through(Fault(kind="etcd_stop", lasts_s=0.2), Fault(kind="node_loss"))
    assert run.mended == ["etcd_stop"]
    assert struck[0].until_s >= struck[0].at_s + 0.2


def test_meanwhile_comes_while_the_fault_before_still_lasts_but_training_goes_on():
    run, struck = go_through(
        Fault(kind="etcd_stop", lasts_s=60.0), Fault(kind="node_loss", moment="meanwhile")
    )
    (_, first), (_, second) = run.hits
    assert first + 2 <= second < run.iterations
    assert run.mended == ["etcd_stop"]  # at the end
    assert struck[0].until_s <= struck[1].at_s


def test_meanwhile_does_not_come_before_training_goes_on():
    run, _ = go_through(
        Fault(kind="etcd_kill", lasts_s=0.01), Fault(kind="node_loss", moment="meanwhile")
    )
    (_, first), (_, second) = run.hits
    assert second >= first + 2


def test_a_run_whose_time_is_up_is_struck_no_more_and_told_to_end_in_calm():
    run, turn = play(Fault(kind="node_loss"), stop_s=time.monotonic(), iterations=10**9)
    assert turn.has_told_to_end
    assert run.hits == []


def test_a_run_that_ends_before_its_time_is_up_is_not_told_to():
    _, turn = play(Fault(kind="node_loss"), stop_s=time.monotonic() + 600)
    assert not turn.has_told_to_end


def test_a_fault_for_the_end_is_not_waited_for_when_time_is_up():
    run, turn = play(
        Fault(kind="node_loss"),
        Fault(kind="agent_kill", moment="end"),
        stop_s=time.monotonic() + 0.5,
        iterations=10**9,
    )
    assert turn.has_told_to_end
    assert "agent_kill" not in [kind for kind, _ in run.hits]


def test_what_comes_again_is_broken_and_mended_as_often_as_it_is_to():
    run, struck = go_through(
        Fault(kind="etcd_stop", lasts_s=0.1, times=3, pause_s=0.1), iterations=10**9, stop_s=soon(3)
    )
    assert [kind for kind, _ in run.hits] == ["etcd_stop"] * 3
    assert run.mended == ["etcd_stop"] * 3
    assert len(struck) == 1


def test_what_was_to_come_again_does_not_once_the_run_is_over():
    run, _ = go_through(Fault(kind="etcd_stop", lasts_s=60.0, times=3, pause_s=0.1))
    assert run.mended == ["etcd_stop"]
    assert len(run.hits) == 1


def test_a_fault_for_a_save_waits_for_the_next_one():
    run, struck = go_through(
        Fault(kind="save_kill", moment="commit"), Fault(kind="save_kill", moment="commit"), saves=16
    )
    first, second = (at for _, at in run.hits)
    assert 16 <= first < 20
    assert second > first + 12
    assert all(one.happened for one in struck)


def test_a_fault_for_a_save_never_comes_where_nothing_is_saved():
    run, struck = go_through(Fault(kind="save_kill", moment="commit"), saves=1000)
    assert run.hits == []
    assert struck == []  # the run was over first


def test_a_store_is_broken_once_there_is_something_in_it():
    run, _ = go_through(Fault(kind="tier_unread", lasts_s=0.1), saves=16)
    assert run.hits[0][1] >= 16


def soon(after_s):
    return time.monotonic() + after_s


GONE = "no copy of version 7 is left anywhere; going on from the start would lose 7 iterations"
UNREAD = "version 16 in the persistent tier did not load (damaged); it is tried again after 2 s"
FROM_START = RecoveryPlan(
    version=None, tier="start", members=(), sources=(), transfers=(), reason=""
)
TORN = Unclear(version=16, seen="version 16 cannot be read from webhdfs://store/runs: cut short")
OF_TIER = [
    UNREAD,
    *(
        str(reason_to_wait(FROM_START, hopes))
        for hopes in (
            Hopes(newest=22, unclear=[TORN]),
            Hopes(newest=22, saved=16, stored=[8]),
            Hopes(newest=22, unread="503 Service Unavailable"),
        )
    ),
]


@pytest.mark.parametrize(
    ("waits_for", "tier", "lets_go"),
    [
        (GONE, (0, 0), True),
        (GONE, (16, 0), False),  # the run is wrong: a version is whole
        *((of_tier, (16, 0), False) for of_tier in OF_TIER),
        *((of_tier, (8, 16), True) for of_tier in OF_TIER),  # the campaign itself has spoilt it
        ("node-1 fell silent and may come back; going on would lose 3 iterations", (0, 0), True),
        ("no machine for position 2", (0, 0), False),
    ],
)
def test_a_person_lets_go_of_what_is_gone_and_of_nothing_that_is_whole(
    waits_for, tier, lets_go, monkeypatch
):
    monkeypatch.setattr("gemini_lab_bench.chaos.turn.LET_GO_S", 0.1)
    monkeypatch.setattr("gemini_lab_bench.chaos.turn.RETURN_S", 0.1)
    _, turn = play(waits_for=waits_for, tier=tier)
    assert bool(turn.let_go_s) == lets_go


def test_nothing_is_let_go_while_something_is_broken(monkeypatch):
    monkeypatch.setattr("gemini_lab_bench.chaos.turn.LET_GO_S", 0.1)
    _, turn = play(Fault(kind="tier_away", lasts_s=60.0), waits_for=GONE, iterations=30)
    assert turn.let_go_s == []


def test_who_waits_for_what_is_whole_in_the_tier_hangs_and_that_is_told():
    with pytest.raises(StoodStillError, match=r"left anywhere.*version 16 is whole in the tier"):
        play(Fault(kind="worker_hang"), limit_s=0.2, waits_for=GONE, tier=(16, 0))


def test_what_still_lasts_at_the_end_is_mended_then():
    run, _ = go_through(Fault(kind="tier_away", lasts_s=60.0), iterations=5)
    assert run.mended == ["tier_away"]


def test_training_that_does_not_go_on_in_time_hangs():
    with pytest.raises(StoodStillError, match="no iteration for"):
        go_through(Fault(kind="worker_hang"), limit_s=0.2)


def test_what_is_not_there_did_not_happen_and_the_rest_goes_on():
    run, struck = go_through(Fault(kind="standby_kill"), Fault(kind="node_loss"))
    assert [one.happened for one in struck] == [False, True]
    assert "no such process" in struck[0].hit
    assert len(run.hits) == 1


def test_a_run_that_is_over_is_not_struck_any_more():
    run, struck = go_through(*[Fault(kind="etcd_kill", after_s=0.3)] * 3, iterations=20)
    assert len(struck) <= 1
    assert len(run.hits) == len(struck)
