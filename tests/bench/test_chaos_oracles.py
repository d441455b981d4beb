"""The oracles of a campaign: each sees what it is there for, and nothing in a run that held."""

import re
from dataclasses import replace

import msgspec
import pytest
from made import made

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    Diverged,
    Iteration,
    NodeLost,
    Note,
    PersistFinished,
    ProcessesKept,
    Protected,
    RecoveryFinished,
    RecoveryPlanned,
    RecoveryStarted,
    RecoveryStep,
    RecoveryWaiting,
    ReplicaRejected,
    Rewound,
    RootElected,
    RunFailed,
    RunFinished,
    RunStarted,
    ShardRestored,
    VersionComplete,
    VersionRejected,
    WorkerExited,
)
from gemini_lab.placement.planner import Placement
from gemini_lab.settings import Settings
from gemini_lab_bench.chaos import lost
from gemini_lab_bench.chaos.aftermath import NOTHING, Aftermath, Seen
from gemini_lab_bench.chaos.oracles import (
    harmed,
    losses_of,
    problems,
    standstill_s,
    unsaid,
)

RANKS = (0, 1)


def entry(event, at_s=0.0):
    return Entry(at_s=at_s, node="node-0", event=event)


def iteration(number, rank, *, epoch=1, loss=None, restored=False, at_s=0.0):
    loss = 1 / number + rank if loss is None else loss
    event = Iteration(
        rank=rank,
        epoch=epoch,
        iteration=number,
        duration_s=1.0,
        waited_s=0.0,
        values={"loss": loss},
        restored=restored,
    )
    return entry(event, at_s)


def planned(epoch, version, *, recovery=0, made_in=0, tier="memory"):
    return entry(
        made(
            RecoveryPlanned,
            recovery=recovery,
            epoch=epoch,
            version=version,
            made_in=made_in,
            tier=tier,
            members=("node-0", "node-1"),
        )
    )


def loaded(rank, version, *, epoch=2):
    return entry(
        made(
            ShardRestored,
            rank=rank,
            epoch=epoch,
            shard=rank,
            version=version,
            holder="node-0",
            verified=True,
        )
    )


def whole(version, rank, *, epoch=1):
    event = made(VersionComplete, rank=rank, epoch=epoch, version=version, next_version=version + 1)
    return entry(event)


BEGUN = entry(
    RecoveryStarted(
        recovery=1, epoch=2, cause="node_lost", lost=("node-1",), failed_at_s=3.0, iteration=2
    )
)
OVER = entry(made(RecoveryFinished, epoch=2, version=2, iteration=3, duration_s=1.0))
QUIET = [iteration(number, rank) for number in (1, 2, 3, 4) for rank in RANKS]
LOG = (
    entry(RunStarted(name="job", script="job", nodes=2)),
    entry(RootElected(name="node-0", term=1)),
    planned(1, None),
    *(iteration(number, rank, at_s=number) for number in (1, 2) for rank in RANKS),
    *(whole(version, rank) for version in (1, 2) for rank in RANKS),
    iteration(3, 0, at_s=3.0),
    BEGUN,
    entry(RootElected(name="node-2", term=2)),
    planned(2, 2, recovery=1, made_in=1),
    *(loaded(rank, 2) for rank in RANKS),
    *(iteration(2, rank, epoch=2, restored=True, at_s=7) for rank in RANKS),
    *(iteration(3, rank, epoch=2, at_s=8.0) for rank in RANKS),
    OVER,
    *(iteration(4, rank, epoch=2, at_s=9.0) for rank in RANKS),
    entry(RunFinished(iteration=4)),
)
HELD = Aftermath(entries=LOG, undisturbed=losses_of(QUIET), iterations=4)


def test_a_run_that_held_has_no_problem():
    assert problems(HELD) == []


def test_an_iteration_that_is_said_once_more_was_not_done_twice():
    """A script that logs its loss after the update has it said again; durations tell them apart."""
    late = after(LOG[-2], LOG[-2])
    assert problems(replace(HELD, entries=late)) == []
    said = LOG[-2].event
    again = entry(msgspec.structs.replace(said, duration_s=said.duration_s + 0.5), LOG[-2].at_s)
    twice = after(LOG[-2], again)
    (found,) = problems(replace(HELD, entries=twice))
    assert "did iteration 4 after 4" in found


OTHER = entry(
    Diverged(rank=1, epoch=2, iteration=4, differs="order", before="3", after="4", cause="")
)


def without(*gone):
    return tuple(one for one in LOG if one not in gone)


def after(place, *more):
    number = LOG.index(place) + 1
    return (*LOG[:number], *more, *LOG[number:])


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (after(OVER, iteration(4, 1, epoch=3, loss=0.25 + 2**-40)), "loss of iteration 4, rank 1"),
        (after(OVER, iteration(5, 1, epoch=3)), "loss of iteration 5.*undisturbed None"),
        (without(LOG[-3], LOG[-2]), "2 losses are not in the log: iteration 4 of rank 0"),
        (after(BEGUN, entry(RootElected(name="node-1", term=1))), "term 1 has the roots node-0"),
        (after(LOG[-1], entry(RootElected(name="node-1", term=1))), "term 1 after node-2 of 2"),
        (after(OVER, planned(2, 1)), "epoch 2 has two plans"),
        (after(OVER, loaded(1, 1)), "shard 1 of version 1 was loaded where 2 was planned"),
        (without(LOG[-5]), "rank 1 did iteration 4 after 2"),
        (after(LOG[10], whole(3, 0), whole(3, 1)), "from version 2, though 3 was whole"),
        (after(OVER, OTHER), "it was said: rank 1, iteration 4: iteration number 4 now"),
        (without(OVER), r"the end of the recoveries \[1\]"),
        (without(LOG[-1]), "does not say that the run finished"),
        ((*LOG[:-1], entry(RunFailed(reason="no luck"))), "given up: no luck"),
    ],
)
def test_each_oracle_sees_what_it_is_there_for(entries, said):
    found = problems(replace(HELD, entries=entries))
    assert any(re.search(said, problem) for problem in found), found


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"hang": "no iteration for 120 s"}, "no iteration for 120 s"),
        ({"left": ("process 7",)}, "left behind: process 7"),
        ({"exit_status": 1}, "ended with status 1"),
        ({"bad_lines": 2}, "2 lines of the log are no events"),
        ({"gaps_s": [8.5]}, "no version was whole in memory at 8.5"),
    ],
)
def test_what_is_no_event_is_judged_too(what, said):
    assert any(said in problem for problem in problems(replace(HELD, **what)))


def resized(*, loss=None, last=4):
    """The run again, on three ranks from epoch 2 on: all samples are theirs, in other shares."""
    three = ("node-0", "node-1", "node-3")
    plan = entry(msgspec.structs.replace(planned(2, 2, recovery=1, made_in=1).event, members=three))
    mean = {3: 1 / 3 + 0.5, 4: 1 / 4 + 0.5}
    told = [
        iteration(number, rank, epoch=2, loss=mean[number] * (1 + 1e-6) if loss is None else loss)
        for number in range(3, last + 1)
        for rank in (0, 1, 2)
    ]
    begun = LOG[: LOG.index(BEGUN) + 2]
    return (*begun, plan, *(loaded(rank, 2) for rank in (0, 1, 2)), *told, OVER, LOG[-1])


def test_after_a_resize_losses_are_near_those_of_the_undisturbed_run_and_before_it_the_same():
    assert problems(replace(HELD, entries=resized())) == []
    (far,) = problems(replace(HELD, entries=resized(loss=0.9)))
    assert "iteration 3, epoch 2: mean loss 0.9" in far
    (missing,) = problems(replace(HELD, entries=resized(last=3)))
    assert "no loss of 1 iterations is in the log: [4]" in missing
    wrong = [iteration(2, 1, loss=7.0), *resized()]
    assert "loss of iteration 2, rank 1" in problems(replace(HELD, entries=wrong))[0]
    some = [iteration(2, rank, epoch=2, loss=0.9, restored=True) for rank in (0, 1, 2)]
    assert problems(replace(HELD, entries=(*resized()[:-2], *some, *resized()[-2:]))) == []


def test_what_was_saved_is_gone_on_from_unless_it_was_spoilt_or_let_go():
    saved = entry(made(PersistFinished, version=2))
    from_start = planned(2, None, recovery=1, tier="start")
    log = (*LOG[: LOG.index(BEGUN)], saved, BEGUN, from_start, OVER)
    found = problems(replace(HELD, entries=log))
    assert "epoch 2 goes on from version None, though 2 was saved" in found
    for excuse in ({"spoilt": frozenset({2})}, {"let_go_s": [0.0]}):
        fell = problems(replace(HELD, entries=log, **excuse))
        assert not any("saved" in problem for problem in fell), excuse


# -- what must not be lost -------------------------------------------------------------------------

START_OVER = planned(2, None, recovery=1, tier="start")
SAVED = entry(made(PersistFinished, version=2), 4.0)
BACK = made(Rewound, iteration=2, version=1, rewinds=1, cause="person")


def lost_in(entries, **what):
    """What the oracles of what must not be lost say of a run with these entries."""
    run = replace(HELD, entries=entries, **what)
    oracles = (
        lost.left_in_memory,
        lost.forgotten,
        lost.misled,
        lost.removed,
        lost.unsaved,
        lost.untrue,
    )
    return [problem for oracle in oracles for problem in oracle(run)]


def test_no_plan_goes_back_behind_what_was_saved_from_memory_neither():
    older = planned(2, 1, recovery=1, made_in=1)
    told = (*LOG[: LOG.index(BEGUN)], SAVED, BEGUN, older)
    assert lost_in(told) == ["epoch 2 goes on from version 1, though 2 was saved"]
    assert lost_in((*told[:-1], planned(2, 2, recovery=1, made_in=1))) == []
    rewound = (*LOG[: LOG.index(BEGUN)], SAVED, entry(BACK), BEGUN, older)
    assert lost_in(rewound) == []  # a person's word


def test_a_persons_word_is_for_the_recovery_under_way_and_no_later_one():
    told = (*LOG[: LOG.index(BEGUN)], SAVED, BEGUN, START_OVER)
    assert lost_in(told, let_go_s=[0.0]) == []
    finished = entry(
        msgspec.structs.replace(OVER.event, recovery=0, version=0, lost_iterations=3), 3.0
    )
    late = (*LOG[: LOG.index(BEGUN)], finished, SAVED, BEGUN, entry(START_OVER.event, 9.0))
    found = lost_in(late, let_go_s=[1.0])
    assert found == ["epoch 2 goes on from version None, though 2 was saved"]


def test_what_is_seen_whole_in_memory_when_a_plan_is_made_is_what_it_goes_on_from():
    plan = entry(START_OVER.event, 6.0)
    told = (*LOG[: LOG.index(BEGUN)], BEGUN, plan)
    there = [NOTHING, Seen(at_s=1.0, version=2, epoch=1)]
    (found,) = lost_in(told, memory=there)
    assert "goes on from version None, though 2 of epoch 1 was seen whole in memory" in found
    gone = [*there, Seen(at_s=5.9)]  # with its nodes, as agents were asked
    assert lost_in(told, memory=gone) == []
    assert lost_in(told, memory=[NOTHING, Seen(at_s=6.05, version=2, epoch=1)]) == []  # too late
    rejected = entry(VersionRejected(recovery=1, epoch=2, version=2, reason="checksum"))
    assert lost_in((*told[:-1], rejected, plan), memory=there) == []
    assert lost_in(told, memory=there, let_go_s=[5.0]) == []


def test_what_older_histories_left_in_memory_is_not_gone_on_from():
    plan = entry(planned(3, 1, recovery=2, made_in=2, tier="persistent").event, 9.0)
    assert lost_in((*LOG, plan), memory=[Seen(at_s=8.0, version=7, epoch=1)]) == []
    assert lost_in((*LOG, plan), memory=[Seen(at_s=8.0, version=7, epoch=2)])


def test_what_was_saved_stays_in_the_tier_until_a_newer_version_is_there():
    told = (*LOG[: LOG.index(BEGUN)], SAVED)
    both, none, newer = frozenset({1, 2}), frozenset[int](), frozenset({3})
    assert lost_in(told, tier=[(0.0, none), (3.9, both)]) == []
    (found,) = lost_in(told, tier=[(0.0, none), (3.9, both), (7.0, frozenset({1}))])
    assert "version 2 was saved, but later neither it nor a newer one was in the tier" in found
    assert lost_in(told, tier=[(0.0, none), (3.9, both), (7.0, newer)]) == []
    assert lost_in(told, tier=[(0.0, none), (3.9, none)], spoilt=frozenset({2})) == []
    assert lost_in((*told, entry(BACK, 6.9)), tier=[(3.9, both), (7.0, none)]) == []
    next_one = entry(made(PersistFinished, version=3), 7.0)
    assert lost_in((*told, next_one), tier=[(3.9, both), (6.9, newer)]) == []


def test_no_person_is_told_that_nothing_is_left_while_the_tier_has_a_version():
    waiting = made(RecoveryWaiting, epoch=2, reason="no copy of version 3 is left anywhere")
    told = (*LOG[: LOG.index(BEGUN)], BEGUN, entry(waiting, 6.0))
    there = [(0.0, frozenset[int]()), (4.0, frozenset({2}))]
    (found,) = lost_in(told, tier=there)
    assert "version 2 was whole in the tier as the run said: no copy of version 3" in found
    assert lost_in(told, tier=there, spoilt=frozenset({2})) == []
    assert lost_in(told, tier=[there[0], (5.9, there[1][1])]) == []  # too late to be known
    other = msgspec.structs.replace(waiting, reason="node-1 fell silent and may come back")
    assert lost_in((*told[:-1], entry(other, 6.0)), tier=there) == []


def test_what_was_saved_last_can_be_read_at_the_end():
    told = (*LOG[: LOG.index(BEGUN)], SAVED)
    assert lost_in(told, readable=frozenset({2})) == []
    (found,) = lost_in(told, readable=frozenset({1}))
    assert "version 2 was saved, but at the end only [1] can be read" in found
    assert lost_in(told, readable=frozenset({1}), spoilt=frozenset({2})) == []


def test_a_run_that_is_done_has_saved_its_last_version_or_says_that_it_has_not():
    last = entry(made(PersistFinished, version=4), 9.0)
    there = [(0.0, frozenset({2, 4}))]
    assert lost_in((*LOG[:-1], last, LOG[-1]), tier=there) == []
    (found,) = lost_in((*LOG[:-1], SAVED, LOG[-1]), tier=there)
    assert "the last version that was saved is 2 of 4, and nothing says so" in found
    said = entry(Note(text="version 4, the run's last one, is not in s3://x: it is full"))
    assert lost_in((*LOG[:-1], SAVED, said, LOG[-1]), tier=there) == []


@pytest.mark.parametrize(("told", "is_true"), [(0, True), (2, True), (3, False), (9, False)])
def test_what_a_recovery_says_to_have_cost_is_what_is_done_again(told, is_true):
    """Both ranks had done 2 and one 3, and they go on from 2: give or take one."""
    over = entry(msgspec.structs.replace(OVER.event, lost_iterations=told))
    entries = tuple(over if one is OVER else one for one in LOG)
    assert (lost_in(entries) == []) == is_true


def test_a_recovery_that_goes_back_to_the_start_and_says_that_nothing_was_lost_lies():
    begun = without(LOG[1])  # by one root agent all along
    told = [
        *begun[: begun.index(BEGUN)],
        *(iteration(3, rank) for rank in RANKS),
        BEGUN,
        START_OVER,
    ]

    def says(count, *before):
        over = entry(msgspec.structs.replace(OVER.event, version=0, lost_iterations=count))
        return lost_in((*told, *before, over))

    (found,) = says(0)
    assert "says that 0 iterations were lost: ranks had done 3 to 3" in found
    assert says(1)
    assert says(2) == says(3) == []
    elected = entry(RootElected(name="node-2", term=3))
    assert says(0, elected)
    assert says(1, elected) == []  # it knows that something was, and not all of it
    lost_nodes = [entry(NodeLost(name=f"node-{one}", cause="connection")) for one in RANKS]
    assert says(0, elected, lost_nodes[0])
    assert says(0, elected, *lost_nodes) == []  # nobody who knew of it is left


# -- people ----------------------------------------------------------------------------------------


def step(name, *, epoch=2, start_s=6.0, at_s=7.0):
    event = RecoveryStep(recovery=1, epoch=epoch, step=name, start_s=start_s, end_s=at_s)
    return entry(event, at_s)


def test_a_start_with_an_edited_script_says_so():
    told = (*LOG[: LOG.index(BEGUN)], BEGUN, step("start"), entry(OVER.event, 8.0))
    (found,) = problems_of_people(told, edits=[(5.0, 9.0)])
    assert "epoch 2 began with an edited own_part.py, and nothing says so" in found
    said = entry(Note(text="own_part.py is another one than at the run's start"), 7.0)
    assert problems_of_people((*told, said), edits=[(5.0, 9.0)]) == []
    assert problems_of_people(told, edits=[(6.5, 9.0)]) == []  # they had begun before
    assert problems_of_people(told, edits=[(5.0, 7.5)]) == []  # they may have read it after that
    kept = entry(ProcessesKept(recovery=1, epoch=2, ranks=(0,)), 7.0)
    assert problems_of_people((*told, kept), edits=[(5.0, 9.0)]) == []


def test_no_person_sees_a_traceback_and_no_rank_falls_over_in_our_code():
    assert problems_of_people(LOG, said=["`rewind RUN 1` and a traceback"])

    def ended(*output):
        event = made(WorkerExited, rank=1, pid=7, exit_code=1, output=output)
        return problems_of_people((*LOG, entry(event)))

    assert ended("Traceback", "OverflowError: int too big to convert")
    assert ended("Traceback", "struct.error: argument out of range")
    assert ended("RuntimeError: Connection closed by peer") == []
    fell = entry(Note(text="node-0's agent: AssertionError: "))
    assert problems_of_people((*LOG, fell, fell)) == ["node-0's agent: AssertionError: "]
    full = entry(Note(text="node-0's agent: OSError: [Errno 24] Too many open files"))
    assert problems_of_people((*LOG, full)) == []
    assert ended() == []


def problems_of_people(entries, **what):
    run = replace(HELD, entries=entries, **what)
    return [*unsaid(run), *harmed(run)]


def test_a_run_whose_owner_was_killed_need_not_finish_but_nothing_else_is_forgiven():
    short = replace(HELD, entries=LOG[:6], exit_status=-9, is_cut_short=True)
    assert problems(short) == []
    assert problems(replace(short, left=("process 7",)))
    wrong = (*LOG[:6], iteration(3, 1, loss=7.0))
    assert problems(replace(short, entries=wrong))


@pytest.mark.parametrize(
    ("lost", "is_excused"), [(("node-0", "node-1"), True), (("node-1",), False), ((), False)]
)
def test_memory_gives_an_older_version_only_if_all_holders_of_a_shard_are_lost(lost, is_excused):
    pair = Placement(
        nodes=2, replicas=2, strategy="group", groups=((0, 1),), holders=((0, 1), (1, 0))
    )
    told = made(Protected, fingerprint="x", settings=Settings(), placement=pair)
    newer = [entry(told), whole(3, 0), whole(3, 1)]
    gone = [entry(NodeLost(name=name, cause="connection")) for name in lost]
    said = problems(replace(HELD, entries=after(LOG[10], *newer, *gone)))
    assert any("though 3 was whole" in one for one in said) != is_excused, said


def test_memory_may_be_bare_after_the_last_iteration_and_where_copies_were_bad():
    assert problems(replace(HELD, gaps_s=[9.5])) == []
    event = made(ReplicaRejected, epoch=2, version=2, holder="node-0", reason="checksum")
    bad = entry(event, 3.5)
    assert problems(replace(HELD, entries=after(BEGUN, bad), gaps_s=[4.0])) == []


def test_memory_may_be_bare_while_a_version_comes_from_the_tier_and_no_longer():
    plan = planned(2, 2, recovery=1, made_in=1, tier="persistent")
    moved = {LOG.index(BEGUN) + 2: entry(plan.event, 4.0), LOG.index(OVER): entry(OVER.event, 6.0)}
    entries = tuple(moved.get(index, one) for index, one in enumerate(LOG))
    for gap_s, is_excused in [(3.0, False), (4.5, True), (6.2, True), (7.0, False)]:
        said = problems(replace(HELD, entries=entries, gaps_s=[gap_s]))
        assert any("whole in memory" in one for one in said) != is_excused, (gap_s, said)


def test_a_run_that_was_told_to_end_saves_a_version_and_says_so():
    ended = entry(RunFailed(reason="SIGTERM: version 4 is whole", cause="notice"))
    told = replace(HELD, entries=(*LOG[:-1], ended), exit_status=75, was_told_to_end=True)
    assert problems(told) == []
    assert "given up" in problems(replace(told, was_told_to_end=False))[0]  # by nobody's order
    unsaved = problems(replace(told, exit_status=143))
    assert unsaved == ["the run was told to end, and its command ended with status 143"]
    lost = entry(RunFailed(reason="no machine is left", cause="machines"))
    assert "given up" in problems(replace(told, entries=(*LOG[:-1], lost)))[0]


def test_a_standstill_is_the_longest_time_without_a_new_iteration_of_all():
    assert standstill_s(LOG, since_s=2.5, until_s=9.0) == 5.5  # from the strike to 8.0
    assert standstill_s(LOG, since_s=0.5, until_s=2.0) == 1.0
    assert standstill_s(LOG, since_s=9.5, until_s=12.0) == 2.5  # nothing came any more
