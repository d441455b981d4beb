"""An event with its moment and its speaker: one line of a log, written and read in this module.

A line is a flat JSON object: `at_s`, `node`, `kind`, and the fields of the event's class.
"""

import functools
import re
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from gemini_lab.display import readable
from gemini_lab.errors import IntegrityError
from gemini_lab.log.events import UNSAID, AnyEvent, Event, OfWorker

E = TypeVar("E", bound=Event)
Record = dict[str, Any]
"""The JSON object on a line of a log."""
_JSON: Final = msgspec.json.Decoder(Record)
_EVENT: Final = msgspec.json.Decoder(AnyEvent)
_KIND: Final = b',"kind":'
_ODD: Final = re.compile(
    rb"\\[^\"\\/]|\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8b-\xae]|\xe2\x81[\xa0-\xaf]"
    rb"|\xef\xbb\xbf|\xef\xbf[\xb9-\xbb]|\xed[\xa0-\xbf]|\xf3\xa0[\x80\x81]"
)
"""What a line of JSON has where `readable` may change a text of it."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One line of a log."""

    # When: seconds since the epoch (Unix time) on the lab's clock in real runs, seconds since the
    # start in simulated ones.
    at_s: float
    node: str  # name of the node that says it, or `"lab"`
    event: AnyEvent  # what happened

    @property
    def kind(self) -> str:
        return self.event.kind


class _Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line up to its event, as `encode_entry` writes it."""

    at_s: float
    node: str


_HEAD: Final = msgspec.json.Decoder(_Head)


class EventError(IntegrityError, ValueError):
    """A line of a log, or a record like one, is not an event."""


def encode_entry(entry: Entry) -> bytes:
    """Return the entry as one line of JSON, without the line break."""
    record = {"at_s": entry.at_s, "node": entry.node, **to_record(entry.event)}
    return msgspec.json.encode(record)


def decode_entry(line: bytes | str) -> Entry:
    """Return the entry that `encode_entry` wrote as `line`; its fields may be in any order.

    Raises:
        EventError: It is no such line; the message names the event and its field.
    """
    raw = line.encode() if isinstance(line, str) else line
    head, kind, event = raw.partition(_KIND)  # within a string, each quote has a backslash
    try:
        told = _HEAD.decode(head + b"}")
        entry = Entry(at_s=told.at_s, node=told.node, event=_EVENT.decode(b"{" + kind[1:] + event))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return entry_of(read_record(line))  # not as we write it: read it slowly, or say what is odd
    _check_said(entry.event)
    return entry


def read_record(line: bytes | str) -> Record:
    """Return the JSON object on a line of a log, whatever it says.

    Raises:
        EventError: It is none.
    """
    try:
        return _JSON.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise EventError(f"this line is no JSON object ({error}): {line[:80]!r}") from error


def entry_of(record: Record) -> Entry:
    """Return the entry of a line's record.

    Raises:
        EventError: As `decode_entry`.
    """
    said = {name: value for name, value in record.items() if name not in {"at_s", "node"}}
    told = {name: record[name] for name in ("at_s", "node") if name in record}
    try:
        entry = msgspec.convert(told | {"event": said}, Entry)
    except ValueError as error:
        kind = record.get("kind", "without a kind")
        raise EventError(f"event {kind!r}: {readable(str(error))}") from error
    _check_said(entry.event)
    return entry


def to_record(event: AnyEvent) -> Record:
    """Return the event as plain JSON values, its kind first.

    Raises:
        EventError: It is a worker's and nobody said whose.
    """
    _check_said(event)
    record: Record = msgspec.to_builtins(event)
    return record


def _check_said(event: AnyEvent) -> None:
    if isinstance(event, OfWorker) and UNSAID in (event.rank, event.epoch):
        raise EventError(f"event {event.kind!r}: nobody said of which rank and epoch it is")


def shifted(event: E, offset_s: float) -> E:
    """Return the event with its moments, and nothing else, moved by `offset_s`."""
    moments = {name: getattr(event, name) + offset_s for name in moments_of(type(event))}
    return msgspec.structs.replace(event, **moments) if moments else event


def moments_of(kind: type[Event]) -> tuple[str, ...]:
    """Return the fields of `kind` that are annotated as points in time."""
    return _fields_marked(kind, "is_moment")


@functools.cache
def _fields_marked(kind: type[Event], mark: str) -> tuple[str, ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple(name for name, hint in hints.items() if _is_marked(hint, mark))


def _is_marked(hint: object, mark: str) -> bool:
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return any(
        isinstance(one, msgspec.Meta) and (one.extra or {}).get(mark) is True for one in marks
    )


def is_odd(line: bytes) -> bool:
    """Return whether `readable` may change a text of a log's line; false for most, at no cost."""
    is_usual = line.isascii() and b"\\" not in line and b"\x7f" not in line
    return not is_usual and _ODD.search(line) is not None


def readable_entry(entry: Entry) -> Entry:
    """Return the entry with each text in it as `readable` gives it."""
    line = encode_entry(entry)
    if not is_odd(line):
        return entry
    keep_lines = _fields_marked(type(entry.event), "has_lines")
    said = read_record(line).items()
    return entry_of({name: _readable(told, has_lines=name in keep_lines) for name, told in said})


def _readable(told: Any, *, has_lines: bool = False) -> Any:
    match told:
        case str():
            return readable(told, has_lines=has_lines)
        case list():
            return [_readable(one) for one in told]
        case dict():
            return {readable(name): _readable(one) for name, one in told.items()}
    return told
