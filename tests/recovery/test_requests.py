"""What users ask of a run: checked where it is made and read, and read once by each root agent."""

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gemini_lab
from gemini_lab.cli.main import COMMANDS
from gemini_lab.errors import ConfigError, MessageError
from gemini_lab.recovery.messages import Ask, decode, encode
from gemini_lab.recovery.requests import (
    REQUESTS,
    AnyRequest,
    DrainNode,
    GiveUpProgress,
    NewRequests,
    Request,
    ResizeRun,
    RewindRun,
    SaveVersion,
    StopRun,
    StoredRequest,
)

ASKED = [
    StopRun(),
    SaveVersion(),
    GiveUpProgress(),
    RewindRun(steps=3, skip=False),
    ResizeRun(nodes=6),
    DrainNode(node="node-2"),
]


def stored(request, *, number=7, job=1):
    return {request.key: StoredRequest(job=job, number=number, request=request).to_text()}


def read(requests, items, *, job=1):
    return [one.request for one in requests.read(items, job=job)]


def test_every_verb_is_tried_here():
    assert {type(one) for one in ASKED} == {*Request.__subclasses__()} == {*AnyRequest.__args__}


@pytest.mark.parametrize("request_", ASKED)
def test_a_request_is_read_once_and_only_if_its_job_is_the_one_under_way(request_):
    requests = NewRequests()
    for job in (None, 2):
        assert read(requests, stored(request_), job=job) == []
    assert read(requests, stored(request_)) == [request_]
    assert read(requests, stored(request_)) == []
    assert read(requests, stored(request_, number=8)) == [request_]


@pytest.mark.parametrize("request_", ASKED)
def test_a_request_is_the_same_value_on_the_wire_and_in_the_store(request_):
    assert decode(encode(Ask(request=request_))).request == request_
    assert read(NewRequests(), stored(request_)) == [request_]


def test_a_new_root_agent_reads_all_requests_again_in_the_order_of_asking():
    items = {}
    for number, one in enumerate(reversed(ASKED)):
        items |= stored(one, number=number)
    assert read(NewRequests(), items) == read(NewRequests(), items) == ASKED[::-1]


def test_a_drain_of_another_node_replaces_none():
    items = {}
    for n in range(3):
        items |= stored(DrainNode(node=f"node-{n}"), number=9 - n)
    assert [one.node for one in read(NewRequests(), items)] == ["node-2", "node-1", "node-0"]


@pytest.mark.parametrize("ahead", [2**61, 2**62 - 1])
def test_a_request_is_numbered_above_all_that_are_there(ahead):
    """An owner's clock may have been ahead of the next owner's."""
    items = stored(SaveVersion(), number=ahead) | {f"{REQUESTS}x": "9" * 5000}
    one = StoredRequest.following(items, 1, DrainNode(node="node-1"), now_ns=5)
    assert one.number == ahead + 1
    assert read(NewRequests(), {one.request.key: one.to_text()}) == [one.request]


HOSTILE = [0, -1, 2**53 + 1, 2**62, 10**30, 1.5, True, "3", "9" * 5000, None, "a\nb", "", [], {}]


@pytest.mark.parametrize("request_", [one for one in ASKED if one.__struct_fields__])
@given(value=st.sampled_from(HOSTILE) | st.integers() | st.text() | st.floats())
def test_no_impossible_number_or_text_is_asked_sent_or_read(request_, value):
    """The root agent plans with a size, and all ranks compute with these numbers, in 64 bits."""
    kind, field = type(request_), request_.__struct_fields__[0]
    try:
        kind(**{field: value})
    except ConfigError:
        pass
    else:  # so the value is a good one: a whole number from 1 on, or a name
        assert isinstance(value, str if field == "node" else int)
        return
    text = stored(request_)[request_.key]
    bad = msgspec.json.decode(text)
    bad["request"][field] = value
    try:
        said = msgspec.json.encode(bad)
    except (OverflowError, UnicodeEncodeError):  # no JSON has it
        return
    assert read(NewRequests(), {request_.key: said.decode()}) == []
    asked = msgspec.json.encode({"op": "ask", "request": bad["request"]})
    with pytest.raises(MessageError):
        decode(asked)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1 7 3 1",
        "9" * 5000,
        "[" * 100_000,
        '{"job":1,"number":7,"request":{"ask":"save_version"}}'.replace("7", "9" * 30),
        '{"job":1,"number":-7,"request":{"ask":"save_version"}}',
        '{"job":1,"number":7,"request":{"ask":"save_version","more":1}}',
        '{"job":1,"number":7,"request":{"ask":"save"}}',
        '{"job":1,"number":7}',
    ],
)
def test_what_no_owner_writes_is_not_read(text):
    key = SaveVersion().key
    assert read(NewRequests(), {key: text}) == []
    assert StoredRequest.following({key: text}, 1, SaveVersion(), now_ns=5).number == 5


@pytest.mark.parametrize("kind", Request.__subclasses__())
def test_a_verb_is_registered_in_four_files_at_most(kind):
    """Its value and method, what the root agent does, its command, and the table of commands."""
    core = Path(gemini_lab.__file__).parent
    verb = kind.__struct_config__.tag.partition("_")[0]
    assert verb in COMMANDS or kind in {SaveVersion, GiveUpProgress}
    words = re.compile(rf"\b({kind.__name__}|{verb}_command)\b")
    found = {
        str(path.relative_to(core))
        for path in core.rglob("*.py")
        if words.search(path.read_text()) and "experiments" not in path.parts
    }
    assert found <= {
        "recovery/requests.py",
        "recovery/root/agent.py",
        "cli/request_commands.py",
        "cli/follow_commands.py" if verb == "stop" else "cli/request_commands.py",
        "cli/main.py",
    }
