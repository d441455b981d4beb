"""Who counts as hung, and what is said of it."""

import pytest

from gemini_lab.recovery.hangs import Limits, Pulses
from gemini_lab.recovery.messages import Entered, WorkerPulse

LIMITS = Limits(stopped_s=30, step_s=60, idle_s=300)
FIRST_STEP = Limits(stopped_s=30, step_s=None, idle_s=300)
RANKS = range(3)


def pulse(rank, doing="step", *, waits_in="", idle_s=3.0, **seen):
    return WorkerPulse(
        rank=rank, epoch=1, doing=doing, waits_in=waits_in, still_s=3.0, idle_s=idle_s, **seen
    )


def waiting(rank, **seen):
    return pulse(rank, waits_in="all_reduce", **seen)


def in_group(number, *, group="0", what="all_reduce of Float[4]", waits=False):
    return Entered(group=group, number=number, what=what if number else "", waits=waits)


def hung(seen, *, at_s, limits=LIMITS, finished=()):
    pulses = Pulses()
    for one in seen:
        pulses.hear(one, at_s=0.0)
    return pulses.hung(at_s, limits, ranks=RANKS, finished=finished)


def ranks(found):
    return [one.rank for one in found]


def test_a_rank_stuck_in_its_step_is_hung_and_not_those_that_wait_for_it():
    seen = [waiting(0), pulse(1, where="train.py:8 in main"), waiting(2)]
    assert hung(seen, at_s=56) == []
    (found,) = hung(seen, at_s=58)
    assert found.rank == 1
    assert found.seen == (
        "rank 1 has been in a step, at train.py:8 in main for 61 s; "
        "ranks 0, 2 wait in all_reduce for 61 s"
    )


@pytest.mark.parametrize(
    "healthy",
    [
        pulse(1, "between steps"),
        pulse(1, "between steps", idle_s=0.0),
        pulse(1, "paused"),
        pulse(1, "starting"),
        pulse(1, silent_s=3.0),
    ],
    ids=["asleep between steps", "at work between steps", "paused", "starting", "holds the lock"],
)
def test_nobody_is_hung_while_one_rank_may_take_its_time(healthy):
    assert hung([waiting(0), healthy, waiting(2)], at_s=200) == []


def test_nobody_is_hung_while_one_rank_gets_on():
    assert hung([waiting(0), waiting(2)], at_s=10_000) == []


def test_a_pause_has_no_end_but_a_stopped_process():
    seen = [waiting(0), pulse(1, "paused"), waiting(2)]
    assert hung(seen, at_s=1e6) == []
    seen[1] = pulse(1, "paused", silent_s=3.0)
    assert hung(seen, at_s=1e6) == []
    seen[1] = pulse(1, "paused", silent_s=3.0, is_stopped=True)
    assert ranks(hung(seen, at_s=28)) == [1]


def test_who_does_nothing_between_steps_is_hung_in_the_end():
    seen = [waiting(0), pulse(1, "between steps"), waiting(2)]
    assert hung(seen, at_s=296) == []
    assert ranks(hung(seen, at_s=298)) == [1]


def test_a_stopped_process_is_hung_whatever_the_others_do():
    found = hung([pulse(1, silent_s=3.0, is_stopped=True, waits_in="all_reduce")], at_s=28)
    assert ranks(found) == [1]
    assert found[0].seen == (
        "rank 1 has said nothing for 31 s, its process is stopped; it was in a step, in all_reduce"
    )


def test_a_silent_worker_that_is_not_stopped_may_hold_the_interpreter_for_long():
    seen = [waiting(0), pulse(1, silent_s=3.0), waiting(2)]
    assert hung(seen, at_s=290) == []
    assert ranks(hung(seen, at_s=298)) == [1]


def test_where_all_wait_those_are_hung_that_are_furthest_behind():
    pulses = Pulses()
    for rank in RANKS:
        pulses.note_iteration(rank, 7 if rank != 2 else 6)
        pulses.hear(waiting(rank, calls=4), at_s=0.0)
    found = pulses.hung(58, LIMITS, ranks=RANKS, finished=())
    assert ranks(found) == [2]
    assert "ranks 0, 1 wait in all_reduce for 61 s" in found[0].seen


def test_a_rank_that_calls_one_collective_less_is_the_one_behind():
    seen = [waiting(0, calls=5), waiting(1, calls=4), waiting(2, calls=5)]
    assert ranks(hung(seen, at_s=58)) == [1]


def test_on_a_device_whose_waits_are_not_seen_those_are_hung_that_are_behind():
    pulses = Pulses()
    for rank in RANKS:
        pulses.note_iteration(rank, 7 if rank != 0 else 6)
        pulses.hear(pulse(rank), at_s=0.0)
    assert ranks(pulses.hung(58, LIMITS, ranks=RANKS, finished=())) == [0]


def test_all_are_hung_where_nobody_is_behind():
    assert ranks(hung([waiting(rank) for rank in RANKS], at_s=58)) == [0, 1, 2]


def test_those_that_wait_before_their_own_step_excuse_nobody_who_is_stuck_in_it():
    seen = [pulse(0, "between steps", waits_in="broadcast"), pulse(1), waiting(2)]
    assert hung(seen, at_s=56) == []
    assert ranks(hung(seen, at_s=58)) == [1]


def test_where_all_wait_between_steps_they_may_for_longer():
    seen = [pulse(rank, "between steps", waits_in="broadcast") for rank in RANKS]
    assert hung(seen, at_s=290) == []
    assert ranks(hung(seen, at_s=298)) == [0, 1, 2]


def test_the_first_step_may_compile_for_as_long_as_it_works():
    seen = [pulse(rank, idle_s=0.0) for rank in RANKS]
    assert hung(seen, at_s=299, limits=FIRST_STEP) == []
    seen = [pulse(rank) for rank in RANKS]
    assert ranks(hung(seen, at_s=298, limits=FIRST_STEP)) == [0, 1, 2]


def test_a_later_step_may_compile_as_well_for_as_long_as_it_works():
    """Another shape of batch, say; started anew, all would come to the same step and end there."""
    seen = [waiting(0), pulse(1, runs_other=True, idle_s=0.0), waiting(2)]
    assert hung(seen, at_s=299) == []
    seen[1] = pulse(1, runs_other=True)
    assert ranks(hung(seen, at_s=298)) == [1]


def test_a_retrieval_from_memory_that_stands_still_is_noticed_soon():
    seen = [pulse(rank, "restoring", detail="memory") for rank in RANKS]
    assert ranks(hung(seen, at_s=28, limits=FIRST_STEP)) == [0, 1, 2]
    seen[1] = pulse(1, "restoring", detail="persistent")  # a store may be slow
    assert hung(seen, at_s=28, limits=FIRST_STEP) == []


def test_who_has_finished_is_neither_hung_nor_waited_for():
    assert ranks(hung([waiting(0), pulse(1)], at_s=58, finished={2})) == [1]


def test_an_iteration_proves_that_a_rank_got_on():
    pulses = Pulses()
    for rank in RANKS:
        pulses.hear(pulse(rank), at_s=0.0)
    pulses.note_iteration(1, 5)
    assert pulses.hung(1000, LIMITS, ranks=RANKS, finished=()) == []


def test_a_rank_that_is_told_to_get_on_does_until_more_is_told():
    seen = [waiting(0), waiting(2), WorkerPulse(rank=1, epoch=1, doing="step", still_s=1.0)]
    assert hung(seen, at_s=1000) == []


def in_protect(*ranks):
    return [pulse(rank, "meeting", where="train.py:9 in main") for rank in ranks]


def late(seen, *, at_s, finished=()):
    pulses = Pulses()
    for one in seen:
        pulses.hear(one, at_s=0.0)
    told = pulses.late(at_s, FIRST_STEP, ranks=RANKS, finished=finished)
    assert pulses.late(at_s, FIRST_STEP, ranks=RANKS, finished=finished) == ""
    return told


def test_ranks_that_are_late_for_protect_are_named_once_and_soon():
    away = pulse(1, "starting", waits_in="all_reduce", where="train.py:30 in main")
    seen = [*in_protect(0), away, pulse(2, "starting", idle_s=0.0)]
    assert late(seen, at_s=10) == ""
    assert late(seen, at_s=27) == (
        "rank 0 has waited in protect for 30 s for rank 1 (starting, in all_reduce, at "
        "train.py:30 in main, for 30 s), rank 2 (at work); every rank must call protect"
    )
    assert late(in_protect(0, 1, 2), at_s=27) == ""


def test_a_rank_that_is_still_at_work_or_asleep_before_protect_is_not_hung():
    stuck = pulse(1, "starting", waits_in="all_reduce")
    for slow in (pulse(2, "starting", idle_s=0.0), pulse(2, "starting")):
        assert hung([*in_protect(0), stuck, slow], at_s=200, limits=FIRST_STEP) == []
    entered = pulse(2, "starting", waits_in="broadcast", idle_s=0.0)
    assert hung([*in_protect(0), stuck, entered], at_s=200, limits=FIRST_STEP) == []


def test_ranks_that_wait_in_a_collective_where_others_are_in_protect_have_gone_past_it():
    away = [pulse(r, "starting", waits_in="all_reduce", where="t.py:3 in f") for r in (1, 2)]
    assert hung([*in_protect(0), *away], at_s=50, limits=FIRST_STEP) == []
    found = hung([*in_protect(0), *away], at_s=60, limits=FIRST_STEP)
    assert ranks(found) == [1, 2]
    assert all(one.is_past for one in found)
    assert found[0].seen == (
        "rank 0 has waited in protect for 63 s, which was not called by rank 1 (starting, in "
        "all_reduce, at t.py:3 in f, for 63 s), rank 2 (starting, in all_reduce, at t.py:3 in f, "
        "for 63 s)"
    )


def test_a_rank_that_does_nothing_for_long_is_not_waited_for_in_protect_either():
    away = [pulse(1, "starting", where="t.py:9 in f"), pulse(2, "starting", waits_in="barrier")]
    assert hung([*in_protect(0), *away], at_s=290, limits=FIRST_STEP) == []
    assert ranks(hung([*in_protect(0), *away], at_s=298, limits=FIRST_STEP)) == [1, 2]


def test_a_script_that_ended_without_protect_holds_up_nobody_for_long():
    found = hung(in_protect(0, 2), at_s=60, limits=FIRST_STEP, finished=[1])
    assert ranks(found) == [0, 2]
    assert found[0].seen == (
        "ranks 0, 2 have waited in protect for 63 s; the script of rank 1 has ended without "
        "calling it"
    )


def test_a_stopped_process_in_protect_is_hung_as_ever():
    seen = [*in_protect(0, 2), pulse(1, "starting", silent_s=3.0, is_stopped=True)]
    assert ranks(hung(seen, at_s=28, limits=FIRST_STEP)) == [1]


def standing(seen, *, at_s, limits=FIRST_STEP):
    pulses = Pulses()
    for one in seen:
        pulses.hear(one, at_s=0.0)
    told = pulses.standing(at_s, limits, ranks=RANKS, finished=())
    assert pulses.standing(at_s, limits, ranks=RANKS, finished=()) == ""
    return told


def test_a_deadlock_before_the_first_iteration_is_named_once_and_soon():
    seen = [
        *(pulse(r, "starting", waits_in="all_reduce", where="t.py:3 in f") for r in (0, 2)),
        pulse(1, "starting", waits_in="barrier", where="t.py:9 in g"),
    ]
    assert standing(seen, at_s=6) == ""
    assert standing(seen, at_s=8) == (
        "nothing has moved on any rank for 11 s: ranks 0, 2 starting, in all_reduce, at t.py:3 in "
        "f; rank 1 starting, in barrier, at t.py:9 in g; if that stays so, all start again after "
        "300 s (idle_s)"
    )


def test_all_ranks_that_wait_for_a_lock_are_named_with_it():
    seen = [pulse(rank, "starting", lock="/cache/op/lock") for rank in RANKS]
    assert "ranks 0, 1, 2 starting, waiting for /cache/op/lock;" in standing(seen, at_s=8)


@pytest.mark.parametrize(
    "healthy",
    [
        pulse(1, "starting", idle_s=0.0),
        pulse(1, "starting", runs_other=True),
        pulse(1, "paused"),
        pulse(1, "restoring", detail="persistent"),
        pulse(1, "meeting"),
        pulse(1, "starting", silent_s=3.0),
    ],
    ids=["at work", "compiles", "paused", "restores", "in protect", "holds the lock"],
)
def test_nothing_is_said_of_ranks_that_wait_for_one_that_may_take_its_time(healthy):
    assert standing([waiting(0), healthy, waiting(2)], at_s=20) == ""


def test_where_a_pace_is_known_that_tells_a_hang():
    assert standing([waiting(rank) for rank in RANKS], at_s=20, limits=LIMITS) == ""


def test_a_collective_that_a_rank_never_entered_is_named_with_that_rank():
    seen = [
        waiting(0, entered=[in_group(4, waits=True)]),
        pulse(1, entered=[in_group(3)]),
        waiting(2, entered=[in_group(4, waits=True)]),
    ]
    (found,) = hung(seen, at_s=58)
    assert found.rank == 1
    assert found.seen.endswith(
        "; ranks 0, 2 wait in all_reduce for 61 s; collective 4 of process group 0 (all_reduce of "
        "Float[4]) was never entered by rank 1, last in 3 (all_reduce of Float[4])"
    )


def test_a_rank_is_the_one_that_others_wait_for_in_a_call_that_python_does_not_see():
    """As in a backward pass of DistributedDataParallel: all stand in C++, in a step."""
    seen = [
        pulse(0, entered=[in_group(9, waits=True)]),
        pulse(1, entered=[in_group(9, waits=True)]),
        pulse(2, entered=[in_group(0)]),
    ]
    (found,) = hung(seen, at_s=58)
    assert found.rank == 2
    assert "was never entered by rank 2, last in none" in found.seen


def test_in_a_chain_of_waits_only_the_rank_at_its_end_is_hung():
    seen = [
        waiting(0, entered=[in_group(5, waits=True)]),
        waiting(1, entered=[in_group(2, group="7", waits=True), in_group(4)]),
        pulse(2, entered=[in_group(1, group="7"), in_group(4)]),
    ]
    (found,) = hung(seen, at_s=58)
    assert found.rank == 2
    assert "group 7" in found.seen
    assert "group 0" in found.seen


def test_ranks_that_call_another_operation_as_the_same_collective_are_told_apart():
    seen = [
        waiting(0, entered=[in_group(4, waits=True)]),
        waiting(1, entered=[in_group(4, what="broadcast of Float[4]", waits=True)]),
        waiting(2, entered=[in_group(4, waits=True)]),
    ]
    found = hung(seen, at_s=58)
    assert ranks(found) == [0, 1, 2]
    assert found[0].seen.endswith(
        "collective 4 of process group 0 is not the same on all ranks: ranks 0, 2 in all_reduce of "
        "Float[4] and rank 1 in broadcast of Float[4]"
    )


@pytest.mark.parametrize("silent_s", [0.0, 9.0], ids=["has no record", "says nothing"])
def test_of_a_rank_that_tells_of_no_collective_none_is_said_to_be_missed(silent_s):
    seen = [
        waiting(0, entered=[in_group(4, waits=True)]),
        pulse(1, silent_s=silent_s, entered=[in_group(3)] if silent_s else []),
        waiting(2, entered=[in_group(4, waits=True)]),
    ]
    found = hung(seen, at_s=300)
    assert ranks(found) == [1]
    assert "never entered" not in found[0].seen


def test_a_deadlock_before_the_first_pace_names_the_open_collectives():
    pulses = Pulses()
    seen = [
        waiting(0, entered=[in_group(1, waits=True)]),
        pulse(1, entered=[in_group(0)]),
        waiting(2, entered=[in_group(1, waits=True)]),
    ]
    for one in seen:
        pulses.hear(one, at_s=0.0)
    told = pulses.standing(12, FIRST_STEP, ranks=RANKS, finished=())
    assert "collective 1 of process group 0 (all_reduce of Float[4]) was never entered by" in told
