"""Which copies are whole, what memory survives, and what would follow a loss."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import made
from told_runs import ToldRun, with_one_loss

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.placement import Placement, enumerated_probability, plan_placement
from gemini_lab.recovery.plan import Copy, RecoveryPlan, Stored, plan_recovery
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.reducers.copies import NONE
from gemini_lab.report.tables import Tables, tables_of
from gemini_lab.report.tables.replica_map import planned, what_if


def tables(run: ToldRun) -> Tables:
    reducer = RunReducer()
    reducer.extend(run.entries)
    return tables_of(reducer)


# -- which copies are whole ------------------------------------------------------------------------


def test_a_version_is_whole_when_every_shard_is_whole_somewhere() -> None:
    """One node of each group suffices: it keeps the shards of all of them."""
    run = ToldRun().protect().train(1, 3).iterate(4)
    assert tables(run.complete(4, ranks=[0])).replicas.version == 3
    assert tables(run.complete(4, ranks=[3])).replicas.version == 4


def test_a_rejected_version_does_not_count() -> None:
    run = ToldRun().protect().train(1, 5).fail("node-2", known=5)
    run.recover_say(events.VersionRejected, version=5, reason="checksums")
    assert tables(run).replicas.version is None


def test_a_copy_is_being_written_until_its_version_is_whole() -> None:
    run = ToldRun().protect().train(1, 3).iterate(4).complete(4, ranks=[0, 1])
    writing = {copy.position for copy in tables(run).replicas.copies if copy.is_writing}
    assert writing == {2, 3}


def test_the_placement_follows_from_the_settings_until_workers_tell_it() -> None:
    run = ToldRun(nodes=6, replicas=3)
    assert tables(run).replicas.groups == plan_placement(nodes=6, replicas=3).groups
    other = ToldRun(nodes=6, placement=plan_placement(nodes=6, strategy="ring")).protect()
    assert tables(other).replicas.strategy == "ring"


# -- what memory survives --------------------------------------------------------------------------


def test_three_copies_survive_any_two_losses() -> None:
    assert tables(ToldRun(nodes=7, replicas=3).protect().train(1, 2)).status.survivable == 2


def test_the_paper_states_the_chances_of_16_nodes() -> None:
    """Section 7.2: N = 16, m = 2 gives 93.3 % (k = 2) and 80.0 % (k = 3)."""
    survival = tables(ToldRun(nodes=16).protect()).replicas.survival
    chances = {one.lost: (round(one.chance, 3), one.how) for one in survival}
    assert chances[1] == (1.0, "exact")
    assert chances[2] == (0.933, "exact")
    assert chances[3] == (0.8, "exact")


@pytest.mark.parametrize(("nodes", "how"), [(8, "enumerated"), (150, "sampled")])
def test_chances_without_a_closed_form_say_how_they_were_found(nodes: int, how: str) -> None:
    placement = plan_placement(nodes=nodes, strategy="random", seed=3)
    survival = tables(ToldRun(nodes=nodes, placement=placement).protect()).replicas.survival
    assert survival[-1].how == how


@pytest.mark.parametrize(
    "placement",
    [
        plan_placement(nodes=8, replicas=2),
        plan_placement(nodes=7, replicas=3),
        plan_placement(nodes=9, replicas=2, strategy="random"),
    ],
    ids=lambda placement: placement.strategy,
)
def test_the_chances_of_a_placement_are_those_of_trying_every_loss(placement) -> None:
    for one in planned(placement).survival:
        tried = float(enumerated_probability(placement, one.lost))
        assert one.chance == pytest.approx(tried)


@st.composite
def situations(draw: st.DrawFn) -> RunReducer:
    """Some placement, and on each node the newest version, the one before it, or none."""
    nodes = draw(st.integers(1, 6))
    replicas = draw(st.integers(1, min(3, nodes)))
    strategies = ["auto", "ring", "random"] if nodes > 1 else ["auto"]
    placement = plan_placement(
        nodes=nodes, replicas=replicas, strategy=draw(st.sampled_from(strategies)), seed=1
    )
    told: list[events.AnyEvent] = [
        events.RunStarted(name="some", script=None, nodes=nodes, placement=placement)
    ]
    for rank in range(nodes):
        version = draw(st.sampled_from([7, 7, 8, 8, NONE]))
        if version != NONE:
            told.append(
                made(
                    events.VersionComplete,
                    rank=rank,
                    version=version,
                    sent_bytes=0,
                    next_version=version + 1,
                )
            )
    lost = draw(st.sets(st.integers(0, nodes - 1), max_size=2))
    told += [events.NodeLost(name=f"node-{position}", cause="lease") for position in lost]
    persistent = draw(st.sampled_from([NONE, 3, 7, 9]))
    if persistent != NONE:
        told.append(made(events.PersistFinished, version=persistent, size_bytes=0))
    run = RunReducer()
    run.extend(Entry(at_s=1.0, node="lab", event=event) for event in told)
    assert run.unread == 0
    return run


def real_plan(run: RunReducer, lost: Sequence[int], *, persistent: int = NONE) -> RecoveryPlan:
    """What the recovery's planner decides when positions `lost` are gone, too."""
    copies = run.copies
    assert copies.placement is not None
    gone = {*lost, *run.nodes.gone}
    held = [
        Copy(shard=shard, version=version, node=f"node-{holder}")
        for shard, holders in enumerate(copies.placement.holders)
        for holder in holders
        for version in (7, 8)
        if copies.complete[holder] >= version
    ]
    living = {f"node-{p}" for p in range(copies.positions) if p not in gone}
    return plan_recovery(
        placement=copies.placement,
        members=[f"node-{p}" for p in range(copies.positions)],
        copies=held,
        living=living,
        persistent=() if persistent == NONE else (Stored(version=persistent),),
    )


@settings(max_examples=200, deadline=None)
@given(run=situations())
def test_so_many_failures_are_survivable_as_the_recovery_planner_survives(run: RunReducer) -> None:
    """Every set of k nodes is tried, and so is one of k + 1 that takes the last copy."""

    def always(k: int) -> bool:
        sets = itertools.combinations(range(run.copies.positions), k)
        return all(real_plan(run, lost).tier == "memory" for lost in sets)

    most = run.copies.survivable()
    assert most is not None
    k = most[0]
    assert k == -1 or always(k)
    assert not always(k + 1)


@settings(max_examples=200, deadline=None)
@given(run=situations())
def test_the_newest_whole_version_is_the_one_that_the_recovery_planner_loads(
    run: RunReducer,
) -> None:
    plan = real_plan(run, [])
    assert run.copies.newest() == (plan.version if plan.tier == "memory" else None)


@settings(max_examples=200, deadline=None)
@given(run=situations())
def test_what_if_is_what_the_recovery_planner_would_do(run: RunReducer) -> None:
    for answer in what_if(run.copies):
        plan = real_plan(run, [answer.position], persistent=run.copies.persistent)
        assert (answer.tier, answer.version) == (plan.tier, plan.version)
        if answer.tier == "memory":
            assert answer.holder is not None
            assert answer.holder != answer.position
            assert run.copies.complete[answer.holder] >= (answer.version or 0)


# -- memory ----------------------------------------------------------------------------------------


def test_a_lost_node_has_no_memory() -> None:
    run = ToldRun().protect().train(1, 3).fail("node-2", known=3)
    assert [row.taken_bytes for row in tables(run).memory.rows] == [4000, 4000, 0, 4000]


def test_what_is_not_known_of_memory_is_said() -> None:
    assert "has not told the size" in tables(ToldRun()).memory.notes[0]
    memory = tables(with_one_loss()).memory
    assert memory.limit_bytes is None
    assert "no limit" in " ".join(memory.notes)


def test_a_placement_for_another_number_of_nodes_is_not_believed() -> None:
    run = ToldRun(
        placement=Placement(nodes=1, replicas=1, strategy="group", groups=((0,),), holders=((0,),))
    ).protect()
    found = tables(run)
    assert found.status.unread == 1
    assert len(found.replicas.copies) == 8
