"""Every message crosses as it was said; anything else is refused by its name."""

import dataclasses
import json
import re
import typing
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import made

from gemini_lab.errors import CapacityError, GeminiError, MessageError
from gemini_lab.job import Job
from gemini_lab.limits import told_in
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import AnyEvent, Note, Protected, WorkerExited, WrongSums
from gemini_lab.placement import plan_placement
from gemini_lab.recovery.messages import (
    MESSAGES,
    EventSaid,
    Fence,
    Joined,
    LogSaid,
    Refused,
    RootOrder,
    SaveFailed,
    StartWorkers,
    decode,
    encode,
)
from gemini_lab.recovery.plan import Copy, plan_recovery
from gemini_lab.recovery.requests import DrainNode
from gemini_lab.recovery.told_seats import ToldSeats
from gemini_lab.seats import Seats
from gemini_lab.settings import Settings
from gemini_lab.shard.layout import ShardLayout, lay_out

SEATS = Seats(nodes=2, standbys=1, members=("node-0", "node-1")).placed(Settings())
PLAN = plan_recovery(
    placement=plan_placement(nodes=2),
    members=("node-0", "node-1"),
    copies=[Copy(shard=shard, version=3, node="node-0") for shard in (0, 1)],
    living=("node-0", "node-1"),
)
LAYOUT = made(
    ShardLayout,
    stage=3,
    optimizer="Adam",
    tensors=lay_out([("weights", "float32", (4,))], start_bytes=64),
    small_offset_bytes=0,
    small_capacity_bytes=64,
    payload_bytes=80,
    weights={"w": (2, 2)},
)
PROTECTED = made(
    Protected, fingerprint="same", settings=Settings(), placement=plan_placement(nodes=2)
)
WRONG_SUMS = made(
    WrongSums, iteration=6, ranks=(2,), nodes=("node-2",), replays=2, version=3, goes_back=True
)
FROM_OUTSIDE = {"reason", "text", "seen", "unread", "output", "detail", "problem"}
"""How fields are called that have what somebody else wrote."""
KNOWN = {  # values whose fields must agree with each other: one of each is enough
    DrainNode: DrainNode(node="node-1"),
    Entry: Entry(at_s=1.5, node="node-1", event=Note(text="x")),
    Job: Job(script="train.py", args=["--x"], cwd="/"),
    Protected: PROTECTED,
    Seats: SEATS,
    ToldSeats: ToldSeats.of(SEATS),
    ShardLayout: LAYOUT,
    WrongSums: WRONG_SUMS,
    type(PLAN): PLAN,
}
for known, value in KNOWN.items():
    st.register_type_strategy(known, st.just(value))


def some(kind: type) -> st.SearchStrategy:
    """Messages of a kind, from the types of its fields."""
    hints = typing.get_type_hints(kind, include_extras=True)
    is_struct = issubclass(kind, msgspec.Struct)
    fields = msgspec.structs.fields(kind) if is_struct else dataclasses.fields(kind)
    return st.builds(kind, **{field.name: _values(hints[field.name]) for field in fields})


def _values(hint: object) -> st.SearchStrategy:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _within(arguments[0], arguments[1])
    if hint is int:
        return st.integers(0, 2**31)
    if hint is float:
        return st.floats(-1e12, 1e12)
    if hint is object:
        return st.text(max_size=5)
    if origin is list:
        return st.lists(_values(arguments[0]), max_size=3)
    if origin is tuple and arguments[1:] == (...,):
        return st.lists(_values(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(_values, arguments))
    if origin is dict:
        return st.dictionaries(_values(arguments[0]), _values(arguments[1]), max_size=3)
    if origin is not typing.Literal and arguments:
        return st.one_of([_values(argument) for argument in arguments])
    is_ours = dataclasses.is_dataclass(hint) or (
        isinstance(hint, type) and issubclass(hint, msgspec.Struct)
    )
    if is_ours and hint not in KNOWN:
        return some(hint)
    return st.from_type(hint)


def _within(hint: object, limits: msgspec.Meta) -> st.SearchStrategy:
    """Values of a type within its limits, these themselves included."""
    if hint is not int:
        return _values(hint)
    most = min(n for n in (limits.le, limits.lt and limits.lt - 1, 2**64) if n is not None)
    return st.integers(limits.ge, most)


@pytest.mark.parametrize("kind", MESSAGES.values(), ids=MESSAGES.keys())
@settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_message_comes_back_as_it_was_said(kind, data):
    message = data.draw(some(kind))
    line = encode(message)
    assert b"\n" not in line
    assert type(decode(line)) is kind
    assert encode(decode(line)) == line


@pytest.mark.parametrize("kind", MESSAGES.values(), ids=MESSAGES.keys())
@settings(max_examples=2, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_an_unknown_field_is_refused_with_the_messages_name(kind, data):
    record = json.loads(encode(data.draw(some(kind)))) | {"surprise": 1}
    with pytest.raises(MessageError, match=record["op"]):
        decode(json.dumps(record).encode())


def test_what_is_no_message_is_refused_with_its_name():
    for line, told in [
        (b'{"op":"joined","epoch":1}', "cannot read a joined .*missing required field `workers`"),
        (b'{"op":"fence","epoch":"3"}', "cannot read a fence .*epoch"),
        (b'{"op":"dance"}', "cannot read a dance"),
        (b'{"epoch":1}', "cannot read a message"),
        (b"[]", "cannot read a message"),
        (b"\xff\x00", "cannot read a message"),
    ]:
        with pytest.raises(MessageError, match=told):
            decode(line)


def test_every_number_and_text_of_a_message_is_bounded():
    """What other processes say is checked by the decoder, or cut by who makes it."""
    free = [
        f"{kind.__name__}.{name}"
        for kind in MESSAGES.values()
        for name, hint in typing.get_type_hints(kind, include_extras=True).items()
        if any(part in {int, float} for part in _parts(hint))
    ]
    assert free == ["VersionMade.digests"]  # checksums, of 64 bits
    whole = {
        f"{kind.__name__}.{field.name}"
        for kind in (*MESSAGES.values(), *typing.get_args(AnyEvent))
        for field in msgspec.structs.fields(kind)
        if field.name in FROM_OUTSIDE and field.name not in dict(told_in(kind))
    }
    assert whole == set()


def _parts(hint: object) -> Iterator[object]:
    """The types that a hint is made of, but not what stands within limits."""
    yield hint
    if typing.get_origin(hint) is not typing.Annotated:
        for part in typing.get_args(hint):
            yield from _parts(part)


@pytest.mark.parametrize("number", [-1, 2**53 + 1, 2**63, 10**30])
def test_a_number_that_no_process_would_say_is_refused_with_its_name(number):
    line = b'{"op":"ask","request":{"ask":"rewind_run","steps":%d,"skip":true}}' % number
    with pytest.raises(MessageError, match=r"cannot read a ask .*`\$.request.steps`"):
        decode(line)


def test_what_others_wrote_is_cut_where_a_message_is_made():
    """An error of 70 MB broke every link that it was sent over."""
    text = "x" * 70_000_000
    failed = SaveFailed(epoch=1, version=2, reason=f"first {text} last")
    assert re.fullmatch("first x+ .*69,99.* characters are left out.* x+ last", failed.reason)
    said = EventSaid(entry=Entry(at_s=1.0, node="node-0", event=Note(text=text)))
    output = made(WorkerExited, pid=1, exit_code=1, output=(text,) * 500)
    for message in (failed, said, EventSaid(entry=Entry(at_s=1.0, node="node-0", event=output))):
        line = encode(message)
        assert len(line) < 2**20
        assert encode(decode(line)) == line  # what was cut once stays as it is


def test_a_message_that_nobody_may_send_is_refused_by_its_name():
    with pytest.raises(MessageError, match=r"a log_said of 67,.* bytes is larger than a message"):
        encode(LogSaid(lines="x" * 2**26))


def test_only_the_root_gives_root_orders():
    assert isinstance(Fence(epoch=1), RootOrder)
    assert not isinstance(made(Joined, is_ready=True), RootOrder)


def test_a_start_order_says_who_keeps_what():
    order = StartWorkers(
        epoch=4,
        order={"number": 1, "run": 1, "job": Job(script="t.py"), "seats": SEATS},
        seats=ToldSeats.of(SEATS),
        plan=PLAN.parts()["node-1"],
        rendezvous="host:1",
        fingerprint=None,
    )
    back = decode(encode(order))
    assert back.seats.whole().peers_that_keep(0) == (1,)
    assert back.plan == PLAN.parts()["node-1"]
    assert len(back.plan.transfers) == 2


def test_an_error_is_raised_again_as_its_own_type():
    again = decode(encode(Refused.of(CapacityError("too little memory")))).to_error()
    assert type(again) is CapacityError
    assert str(again) == "too little memory"
    strange = Refused.of(ZeroDivisionError("by zero")).to_error()
    assert type(strange) is GeminiError
    assert str(strange) == "ZeroDivisionError: by zero"


def test_an_events_epoch_is_its_workers():
    said = EventSaid(entry=Entry(at_s=0.0, node="n", event=Note(text="x")))
    assert said.epoch is None
