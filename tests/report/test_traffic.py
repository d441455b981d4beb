"""A run's traffic as bars: what is drawn where, and what counts as hidden."""

import itertools
import sys
from array import array
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import made

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import KINDS, Call, Collectives
from gemini_lab.placement import plan_placement
from gemini_lab.report.bars import COLUMNS, ROW_BYTES, Bars, Kind
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.reducers.exposure import Sending, judge, merge
from gemini_lab.settings import Settings

MIB = 2**20


def event(kind, at_s, node="node-0", **data):
    return Entry(at_s=at_s, node=node, event=made(KINDS[kind], **data))


def iteration(number, at_s, *, rank=0, node="node-0", duration_s=1.0, waited_s=0.0, **more):
    return event(
        "iteration",
        at_s,
        node,
        rank=rank,
        iteration=number,
        duration_s=duration_s,
        waited_s=waited_s,
        values={},
        **more,
    )


def complete(version, at_s):
    return event(
        "version_complete",
        at_s,
        version=version,
        sent_bytes=MIB,
        duration_s=0.5,
        next_version=version + 1,
    )


def planned(at_s, *members, epoch=1):
    return event("recovery_planned", at_s, recovery=0, epoch=epoch, version=0, members=members)


def transfer(version, start_s, end_s, *, rank=0, peer=1, sent_bytes=MIB, span=0):
    return event(
        "transfer",
        end_s,
        f"node-{rank}",
        rank=rank,
        version=version,
        peer=peer,
        span=span,
        sent_bytes=sent_bytes,
        start_s=start_s,
        end_s=end_s,
    )


def collectives(number, began_s, *times, rank=0):
    made = Collectives.of(
        (Call("all_reduce", 8, start_s, end_s) for start_s, end_s in times),
        rank=rank,
        epoch=1,
        iteration=number,
        began_s=began_s,
    )
    return Entry(at_s=began_s + 1, node=f"node-{rank}", event=made)


def told(*entries):
    run = RunReducer()
    run.extend(entries)
    return run.traffic


def rows(traffic, kind):
    """The bars of one kind as dictionaries."""
    columns = {name: traffic.bars.column(name) for name in COLUMNS}
    table = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [row for row in table if row["kind"] == kind]


def test_a_transfer_in_an_idle_span_is_hidden():
    traffic = told(
        iteration(1, 1.0),
        transfer(1, 1.1, 1.4),
        iteration(2, 2.0),
        collectives(2, 1.0, (0.5, 0.9)),
        iteration(3, 3.0),
    )
    assert (traffic.hidden_bytes, traffic.exposed_bytes) == (MIB, 0)
    assert traffic.basis == "collectives"


def test_the_part_under_a_collective_is_exposed():
    traffic = told(
        iteration(1, 1.0),
        transfer(1, 1.0, 1.4),
        iteration(2, 2.0),
        collectives(2, 1.0, (0.3, 0.9)),
        iteration(3, 3.0),
    )
    assert traffic.exposed_bytes == pytest.approx(MIB / 4)
    [exposed] = rows(traffic, Kind.EXPOSED)
    assert exposed["start_s"] == pytest.approx(1.3)
    assert exposed["size_bytes"] == pytest.approx(MIB / 4)


def test_the_part_for_which_the_step_waited_is_exposed():
    traffic = told(
        iteration(1, 1.0),
        transfer(1, 1.5, 1.9),
        complete(1, 1.9),
        iteration(2, 2.0, waited_s=0.1),
        iteration(3, 3.0),
    )
    assert traffic.exposed_bytes == pytest.approx(MIB / 4)
    assert traffic.basis == "waits"
    [wait] = rows(traffic, Kind.WAIT)
    assert wait["start_s"] == pytest.approx(1.8)


def test_a_collective_of_another_node_exposes_nothing():
    traffic = told(
        iteration(1, 1.0),
        transfer(1, 1.0, 1.4),
        iteration(2, 2.0),
        collectives(2, 1.0, (0.0, 0.9), rank=1),
        iteration(3, 3.0),
    )
    assert traffic.exposed_bytes == 0


def test_a_blocking_version_is_exposed_as_a_whole():
    traffic = told(
        event(
            "protected",
            0.5,
            fingerprint="f",
            settings=Settings(scheme="blocking"),
            placement=plan_placement(nodes=2),
        ),
        iteration(1, 1.0),
        transfer(1, 1.0, 1.4),
        complete(1, 1.5),
        iteration(2, 2.0),
        iteration(3, 3.0),
    )
    assert (traffic.hidden_bytes, traffic.exposed_bytes) == (0, MIB)


def test_bytes_are_open_until_the_next_iteration_has_ended():
    story = [iteration(1, 1.0), transfer(1, 1.1, 1.4), iteration(2, 2.0)]
    assert told(*story).open_bytes == MIB
    over = told(*story, event("run_finished", 2.1, iteration=2))
    assert (over.open_bytes, over.hidden_bytes, over.is_over) == (0, MIB, True)


def test_a_replaced_node_receives_in_its_own_lane():
    traffic = told(
        planned(0.1, "node-0", "node-1"),
        transfer(1, 1.0, 1.4),
        planned(2.0, "node-0", "node-4", epoch=2),
        transfer(2, 3.0, 3.4),
    )
    peers = [traffic.lanes[row["peer"]] for row in rows(traffic, Kind.TRANSFER)]
    assert peers == ["node-1", "node-4"]


def test_an_iteration_told_twice_is_one_bar():
    traffic = told(iteration(1, 1.0), iteration(1, 1.1), iteration(1, 5.0, restored=True))
    assert len(rows(traffic, Kind.ITERATION)) == 1


def test_a_recovery_is_a_mark_from_the_failure_to_its_end():
    traffic = told(
        event("injected", 1.0, "node-2", failure="node_loss"),
        event("recovery_started", 1.2, epoch=2, cause="node_lost", failed_at_s=1.1, iteration=7),
        event("recovery_finished", 4.0, epoch=2, version=7, iteration=8, duration_s=3.0),
    )
    injected, recovery = traffic.marks
    assert (injected.kind, injected.text) == ("injected", "node loss on node-2")
    assert (recovery.start_s, recovery.end_s) == (1.1, 4.0)


def test_it_is_told_when_nodes_were_gone_and_came_back():
    lost = [event("node_lost", at_s, name="node-1", cause="lease") for at_s in (1.0, 1.5)]
    joined = [event("node_joined", at_s, name="node-1") for at_s in (3.0, 3.5)]
    traffic = told(*lost, *joined, event("node_lost", 5.0, name="node-2", cause="lease"))
    assert traffic.nodes.comings == [
        (1.0, "node-1", False),
        (3.0, "node-1", True),
        (5.0, "node-2", False),
    ]


def test_a_replica_that_is_read_back_leads_from_holder_to_reader():
    traffic = told(
        event(
            "shard_restored",
            5.0,
            "node-4",
            rank=1,
            epoch=2,
            shard=1,
            version=7,
            tier="peer",
            holder="node-0",
            size_bytes=MIB,
            verified=True,
            retrieve_s=0.5,
            verify_s=0.1,
            load_s=0.4,
        )
    )
    [read] = rows(traffic, Kind.RESTORE)
    assert [traffic.lanes[read["lane"]], traffic.lanes[read["peer"]]] == ["node-0", "node-4"]
    assert (read["start_s"], read["duration_s"]) == (4.0, 0.5)


@pytest.mark.parametrize(
    "odd",
    [
        iteration(1, nan),
        iteration(1, 1.0, duration_s=inf),
        transfer(1, nan, 1.0),
        collectives(1, nan, (0.0, 0.5)),
    ],
    ids=lambda odd: odd.kind,
)
def test_an_odd_event_is_left_out_and_counted(odd):
    run = RunReducer()
    run.extend([odd, iteration(1, 1.0)])
    assert len(run.traffic.bars) == 1
    assert run.unread == 1


def test_full_columns_forget_their_oldest_rows():
    bars = Bars(limit=100)
    for number in range(250):
        bars.add(Kind.TRANSFER, number, number + 0.5, lane=0, number=number)
    assert bars.end == 250
    assert 75 <= len(bars) <= 100
    assert list(bars.column("number")) == list(range(bars.first, 250))


def test_a_value_that_does_not_fit_leaves_the_columns_whole():
    run = RunReducer()
    run.extend([complete(2**36, 1.0), iteration(2, 2.0)])
    traffic = run.traffic
    assert run.unread == 1
    assert {len(traffic.bars.column(name)) for name in COLUMNS} == {1}


def test_a_packed_block_has_column_after_column_each_aligned():
    bars = Bars()
    for number in range(3):
        bars.add(Kind.RESTORE, number, number + 1, lane=number, number=10 + number, peer=2)
    packed = bars.packed(1, 3)
    assert len(packed) == 2 * ROW_BYTES
    offset, found = 0, {}
    for name, code in COLUMNS.items():
        column = array(code)
        assert offset % column.itemsize == 0
        column.frombytes(packed[offset : offset + 2 * column.itemsize])
        found[name] = list(column)
        offset += 2 * column.itemsize
    assert (found["start_s"], found["number"], found["kind"]) == ([1, 2], [11, 12], [7, 7])


def one_by_one(bars, event, *, lane):
    for call in event.calls():
        bars.add(
            Kind.COLLECTIVE,
            event.began_s + call.start_s,
            event.began_s + call.end_s,
            lane=lane,
            size_bytes=float(call.size_bytes),
            number=event.iteration,
            rank=event.rank,
            name=call.size_bytes,
        )


microseconds = st.integers(0, 3_000_000).map(lambda us: us / 1e6)
called = st.lists(st.tuples(st.integers(0, 3), microseconds, microseconds), max_size=6)


@settings(max_examples=50)
@given(st.lists(st.tuples(called, st.integers(0, 2), st.booleans()), max_size=12), st.data())
def test_the_bars_of_collectives_are_those_of_the_calls_one_by_one(told, data):
    """Whoever looks in between, whatever comes in between, and when the oldest go."""
    all_at_once, singly = Bars(limit=16), Bars(limit=16)
    for number, (calls, rank, is_asked) in enumerate(told):
        event = Collectives.of(
            [Call("all_reduce", size, start, start + took) for size, start, took in sorted(calls)],
            rank=rank,
            epoch=1,
            iteration=number,
            began_s=1e9 + number,
        )
        sizes = [size for _, size in event.kinds]
        all_at_once.add_collectives(event, lane=rank % 2, names=sizes)
        one_by_one(singly, event, lane=rank % 2)
        for bars in (all_at_once, singly):
            bars.add(Kind.ITERATION, number, number + 1, lane=0, rank=rank)
        if is_asked:
            first = data.draw(st.integers(0, singly.end))
            assert len(all_at_once.between(first, singly.end)) <= 16
    assert all_at_once.end == singly.end
    # Which went when depends on how many came at once; what is there is the same.
    first = max(all_at_once.first, singly.first)
    assert all_at_once.packed(first, singly.end) == singly.packed(first, singly.end)


moments = st.floats(0, 100, allow_nan=False)
intervals = st.lists(st.tuples(moments, moments).map(lambda pair: tuple(sorted(pair))), max_size=8)


@given(intervals, intervals)
def test_hidden_and_exposed_parts_add_up(sent, busy):
    sendings = [
        Sending(start_s=s, end_s=e, size_bytes=10.0, version=n) for n, (s, e) in enumerate(sent)
    ]
    for judged in judge(sendings, busy):
        assert -1e-6 <= judged.exposed_bytes <= 10 + 1e-6
        for start_s, end_s in judged.exposed:
            assert judged.sending.start_s <= start_s <= end_s <= judged.sending.end_s


@given(intervals)
def test_merged_intervals_are_apart_and_cover_the_same(parts):
    merged = merge(parts)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(merged))
    assert all(any(s <= a and b <= e for s, e in merged) for a, b in parts)


def test_bars_grow_while_somebody_holds_the_frames_that_wrote_them():
    """A profiler's thread and the pulse of a rank hold the frames they look at for a moment."""
    bars, held = Bars(), []
    event = Collectives.of(
        [Call("all_reduce", 8, 0.0, 0.1)], rank=0, epoch=1, iteration=1, began_s=1e9
    )
    bars.add_collectives(event, lane=0, names=[0])
    sys.setprofile(lambda frame, _what, _value: held.append(frame))
    try:
        written = bars.packed(0, 1)
    finally:
        sys.setprofile(None)
    bars.add(Kind.ITERATION, 1.0, 2.0, lane=0)
    assert held
    assert bars.packed(0, 1) == written
    assert len(bars) == 2
