"""Claims about events and their lines: nothing is lost on the way, nothing odd comes through."""

import json
import math
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.log import events
from gemini_lab.log.entry import (
    Entry,
    EventError,
    decode_entry,
    encode_entry,
    moments_of,
    shifted,
)
from gemini_lab.pipeliner.machine import Calibration
from gemini_lab.pipeliner.schedule import Chunk, ChunkSchedule
from gemini_lab.placement import Placement, plan_placement
from gemini_lab.profiler.profile import Collective, IdleSpan, Profile
from gemini_lab.settings import Settings

FINITE = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(min_value=0, max_value=2**53)
st.register_type_strategy(float, FINITE)
st.register_type_strategy(int, COUNTS)
st.register_type_strategy(str, st.text(max_size=8))
st.register_type_strategy(
    Settings, st.builds(Settings, replicas=st.integers(1, 4), persist_every_s=st.none())
)
st.register_type_strategy(
    Placement, st.builds(plan_placement, nodes=st.integers(2, 9), replicas=st.integers(1, 2))
)
SCHEDULES = st.builds(
    ChunkSchedule, scheme=st.just("gemini"), chunks=st.tuples(st.builds(Chunk)) | st.just(())
)
PROFILES = st.builds(
    Profile, collectives=st.tuples(st.builds(Collective)), idle_spans=st.tuples(st.builds(IdleSpan))
)
VALUES = st.dictionaries(st.text(max_size=8), st.floats())
MICROSECONDS = st.integers(-(10**9), 10**9)
CALLS = st.builds(
    events.Call,
    st.sampled_from("abc"),
    st.integers(0, 9),
    *[MICROSECONDS.map(lambda us: us / 1e6)] * 2,
)
MORE = {
    events.Iteration: {"values": VALUES},
    events.Profiled: {
        "profile": PROFILES,
        "schedule": SCHEDULES,
        "calibration": st.builds(Calibration),
    },
    events.Collectives: {"calls": st.lists(CALLS), "iteration": COUNTS, "began_s": FINITE},
}

EVENTS = st.one_of(
    *(
        st.builds(
            events.Collectives.of if kind is events.Collectives else kind,
            **MORE.get(kind, {}),
            **{
                field.name: st.from_type(int)
                for field in msgspec.structs.fields(kind)
                if field.name in {"rank", "epoch"}
            },
        )
        for kind in get_args(events.AnyEvent)
    )
)
ENTRIES = st.builds(Entry, event=EVENTS)
ONE_CALL = events.Collectives.of(
    [events.Call("all_reduce", 8, 0.25, 0.5)], rank=0, epoch=1, iteration=1, began_s=0.0
)


@given(ENTRIES)
def test_an_entry_comes_back_from_its_line_as_it_was(entry):
    line = encode_entry(entry)
    assert b"\n" not in line
    assert decode_entry(line) == entry


@given(ENTRIES)
def test_a_line_is_plain_json_with_moment_speaker_and_kind_on_top(entry):
    record = json.loads(encode_entry(entry), parse_constant=pytest.fail)
    assert list(record)[:3] == ["at_s", "node", "kind"]
    assert record["at_s"] == entry.at_s
    assert events.KINDS[record["kind"]] is type(entry.event)


@given(ENTRIES)
def test_a_line_with_its_fields_in_another_order_is_the_same_entry(entry):
    record = json.loads(encode_entry(entry))
    assert decode_entry(json.dumps(dict(reversed(record.items())))) == entry


@given(VALUES)
def test_logged_values_come_back_to_the_bit_also_those_json_has_no_word_for(values):
    event = events.Iteration(
        rank=0, epoch=1, iteration=1, duration_s=1.0, waited_s=0.0, values=values
    )
    back = decode_entry(encode_entry(Entry(at_s=0.0, node="node-0", event=event))).event
    assert isinstance(back, events.Iteration)
    told = {name: back.value(name) for name in values}
    assert {name: repr(value) for name, value in told.items()} == {
        name: repr(value) for name, value in values.items()
    }
    assert back.value("never logged") is None


def test_a_loss_that_is_no_number_does_not_break_the_line():
    event = events.Iteration(
        rank=0, epoch=1, iteration=1, duration_s=1.0, waited_s=0.0, values={"loss": math.nan}
    )
    assert b'"values":{"loss":"nan"}' in encode_entry(Entry(at_s=0.0, node="n", event=event))


@given(EVENTS, st.sampled_from([-1.5, 0.0, 1024.0]))
def test_shifting_moves_the_moments_and_nothing_else(event, offset_s):
    moved = shifted(event, offset_s)
    assert type(moved) is type(event)
    for field in event.__struct_fields__:
        before, after = getattr(event, field), getattr(moved, field)
        assert after == (before + offset_s if field in moments_of(type(event)) else before)


def test_no_field_of_an_event_has_the_name_of_what_a_line_has_on_top():
    """It would be the speaker's name, or the moment, to whoever reads the line."""
    tops = {"at_s", "node", "kind"}
    assert {
        name: kind for name, kind in events.KINDS.items() if tops & {*kind.__struct_fields__}
    } == {}


def test_moments_are_told_from_durations_by_their_type_not_their_name():
    assert {name: moments_of(kind) for name, kind in events.KINDS.items() if moments_of(kind)} == {
        "transfer": ("start_s", "end_s"),
        "collectives": ("began_s",),
        "recovery_started": ("failed_at_s",),
        "recovery_step": ("start_s", "end_s"),
    }


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"kind": "root_lost"}, "root_lost"),
        ({"kind": "note"}, "'note'.*`text`"),
        ({"kind": "note", "text": "a", "rank": 1}, "'note'.*`rank`"),
        ({"kind": "note", "text": 1}, r"'note'.*str.*text"),
        ({"kind": "node_ready", "name": "n", "import_s": "1.0"}, r"'node_ready'.*float.*import_s"),
        ({"kind": "unprotected"}, "'unprotected'.*rank"),
        ({"text": "a"}, "without a kind"),
    ],
    ids=["kind", "missing field", "unknown field", "type", "text for number", "no rank", "no kind"],
)
def test_what_is_no_event_is_refused_by_its_name(record, told):
    for separators in ((",", ":"), (", ", ": ")):  # as a log has it, and as people type it
        line = json.dumps({"at_s": 1.0, "node": "lab", **record}, separators=separators)
        with pytest.raises(EventError, match=told):
            decode_entry(line)


@pytest.mark.parametrize("lacking", ["at_s", "node"])
def test_an_entry_without_moment_or_speaker_is_refused(lacking):
    record = {"at_s": 1.0, "node": "lab", "kind": "note", "text": "a"}
    with pytest.raises(EventError, match=lacking):
        decode_entry(json.dumps({name: v for name, v in record.items() if name != lacking}))


@pytest.mark.parametrize("line", [b"", b"[]", b"{", b"null", b"\xff\xfe", b"[" * 100_000])
def test_a_line_that_is_no_object_is_refused(line):
    with pytest.raises(EventError, match="no JSON object"):
        decode_entry(line)


@given(st.lists(CALLS))
def test_collectives_come_back_to_the_microsecond_and_in_order(calls):
    made = events.Collectives.of(calls, iteration=1, began_s=0.0)
    assert list(made.calls()) == calls
    assert len(set(made.kinds)) == len(made.kinds)


@pytest.mark.parametrize("odd", [{"order": (1,)}, {"order": (-1,)}, {"gaps_us": ()}])
def test_collectives_whose_columns_do_not_fit_are_refused(odd):
    entry = Entry(at_s=0.0, node="n", event=ONE_CALL)
    record = json.loads(encode_entry(entry)) | odd
    with pytest.raises(EventError, match="collectives"):
        decode_entry(json.dumps(record))


def test_a_workers_event_of_nobody_is_not_written():
    event = events.Unprotected()
    with pytest.raises(EventError, match="unprotected"):
        encode_entry(Entry(at_s=0.0, node="node-0", event=event))
