"""An event with its moment and its speaker: one line of a log, written and read in this module.

A line is a flat JSON object: `at_s`, `node`, `kind`, and the fields of the event's class.
"""

import functools
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from gemini_lab.errors import IntegrityError
from gemini_lab.log.events import UNSAID, AnyEvent, Event, OfWorker

E = TypeVar("E", bound=Event)
_JSON: Final = msgspec.json.Decoder(dict[str, Any])
_EVENT: Final = msgspec.json.Decoder(AnyEvent)
_KIND: Final = b',"kind":'


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One line of a log.

    Attributes:
        at_s: When: seconds since the epoch (Unix time) on the lab's clock in real runs, seconds
            since the start in simulated ones.
        node: Name of the node that says it, or `"lab"`.
        event: What happened.
    """

    at_s: float
    node: str
    event: AnyEvent

    @property
    def kind(self) -> str:
        """The event's kind, as the log names it."""
        return self.event.kind


class _Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line up to its event, as `encode_entry` writes it."""

    at_s: float
    node: str


_HEAD: Final = msgspec.json.Decoder(_Head)


class EventError(IntegrityError, ValueError):
    """A line of a log, or a record like one, is not an event."""


def encode_entry(entry: Entry) -> bytes:
    """The entry as one line of JSON, without the line break."""
    record = {"at_s": entry.at_s, "node": entry.node, **to_record(entry.event)}
    return msgspec.json.encode(record)


def decode_entry(line: bytes | str) -> Entry:
    """The entry that `encode_entry` wrote as `line`; its fields may be in any order.

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


def read_record(line: bytes | str) -> dict[str, Any]:
    """The JSON object on a line of a log, whatever it says.

    Raises:
        EventError: It is none.
    """
    try:
        return _JSON.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise EventError(f"this line is no JSON object ({error}): {line[:80]!r}") from error


def entry_of(record: Mapping[str, Any]) -> Entry:
    """The entry of a line's record.

    Raises:
        EventError: As `decode_entry`.
    """
    said = {name: value for name, value in record.items() if name not in {"at_s", "node"}}
    told = {name: record[name] for name in ("at_s", "node") if name in record}
    try:
        entry = msgspec.convert({**told, "event": said}, Entry)
    except ValueError as error:
        raise EventError(f"event {record.get('kind', 'without a kind')!r}: {error}") from error
    _check_said(entry.event)
    return entry


def to_record(event: AnyEvent) -> dict[str, Any]:
    """The event as plain JSON values, its kind first.

    Raises:
        EventError: It is a worker's and nobody said whose.
    """
    _check_said(event)
    record: dict[str, Any] = msgspec.to_builtins(event)
    return record


def _check_said(event: AnyEvent) -> None:
    if isinstance(event, OfWorker) and UNSAID in (event.rank, event.epoch):
        raise EventError(f"event {event.kind!r}: nobody said of which rank and epoch it is")


def shifted(event: E, offset_s: float) -> E:
    """The event with its moments, and nothing else, moved by `offset_s`."""
    moments = {name: getattr(event, name) + offset_s for name in moments_of(type(event))}
    return msgspec.structs.replace(event, **moments) if moments else event


@functools.cache
def moments_of(kind: type[Event]) -> tuple[str, ...]:
    """Names of the fields of `kind` that are points in time, by their annotations."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(name for name, hint in hints.items() if _is_moment(hint))


def _is_moment(hint: object) -> bool:
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return any(
        isinstance(mark, msgspec.Meta) and mark.extra == {"is_moment": True} for mark in marks
    )
