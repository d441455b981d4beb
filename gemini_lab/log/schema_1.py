"""Logs of the first schema, read as entries of today's classes.

Their lines were `{"kind", "at_s", "node", "data"}`, with `data` as each emitter liked it. What they
do not say gets the value that a reader of that time took for it.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from gemini_lab.log.entry import Entry, EventError, entry_of
from gemini_lab.log.events import KINDS, Call, Collectives, OfRecovery, OfWorker, Simulated

Data = Mapping[str, Any]
"""What stood below `data`, or the fields of an event."""


def is_record(record: Mapping[str, Any]) -> bool:
    """Whether a line with this record is of the first schema."""
    return "data" in record


def read_entry(line: bytes) -> Entry:
    """The entry on one line of such a log.

    Raises:
        EventError: The line is not an event of that schema.
    """
    try:
        record = json.loads(line)  # that schema wrote NaN as the bare word
        return entry_of(_fields(record["kind"], record["data"]) | _envelope(record))
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        if isinstance(error, EventError):
            raise
        raise EventError(
            f"this line is not an event of schema 1 ({error!r}): {line[:80]!r}"
        ) from error


def _envelope(record: Data) -> dict[str, Any]:
    return {name: record[name] for name in ("at_s", "node", "kind")}


def _fields(kind: str, data: Data) -> dict[str, Any]:
    """The fields of today's class: renamed, with defaults, and without what it does not have."""
    given = _CHANGED[kind](data) if kind in _CHANGED else data
    event = KINDS.get(kind)
    if event is None:
        return dict(given)
    if issubclass(event, OfWorker):
        given = {"rank": 0, "epoch": 0, **given}
    elif issubclass(event, OfRecovery):
        given = {"recovery": 0, "epoch": 0, **given}
    known = {field.name for field in msgspec.structs.fields(event)}
    return {
        name: value for name, value in {**_LACKING.get(kind, {}), **given}.items() if name in known
    }


def _run_started(data: Data) -> Data:
    settings = dict(data.get("settings") or {})
    if not settings.pop("simulated", False):
        return {**data, "settings": settings}
    assumed = {name: settings.pop(name) for name in Simulated.__struct_fields__}
    return {**data, "settings": settings, "simulated": assumed}


def _injected(data: Data) -> Data:
    target = dict(data.get("target") or {})
    return {**target, "failure": data["failure"]["kind"]}


def _lines(data: Data, name: str) -> Data:
    return {**data, name: str(data.get(name) or "").splitlines()}


def _run_failed(data: Data) -> Data:
    """The reason held the worker's last output, after a sentence."""
    reason, _, output = str(data.get("reason", "")).partition("\n")
    return {"reason": reason, "output": output.splitlines()}


def _replica_rejected(data: Data) -> Data:
    reason = data.get("reason") or f"chunk {data.get('chunk')} failed its checksum"
    return {**data, "reason": reason}


def _collectives(data: Data) -> Data:
    columns = (data[name] for name in ("names", "sizes_bytes", "starts_s", "ends_s"))
    calls = (Call(*call) for call in zip(*columns, strict=True))
    made = Collectives.of(calls, iteration=0, began_s=0.0)
    packed = ("kinds", "order", "gaps_us", "durations_us")
    return {**data, **{name: getattr(made, name) for name in packed}}


_CHANGED: Final[Mapping[str, Callable[[Data], Data]]] = {
    "run_started": _run_started,
    "run_failed": _run_failed,
    "injected": _injected,
    "worker_exited": lambda data: _lines(data, "output"),
    "replica_rejected": _replica_rejected,
    "collectives": _collectives,
}
"""Kinds whose data is not what the fields are."""

_LACKING: Final[Mapping[str, Data]] = {
    "lab_started": {"nodes": 0, "standbys": 0, "names": [], "root": None},
    "run_started": {"name": "", "script": None},
    "iteration": {"duration_s": 0.0, "waited_s": 0.0},
    "version_complete": {"local_s": 0.0, "next_version": 0},
    "recovery_started": {"iteration": 0},
    "recovery_finished": {"lost_iterations": 0},
}
"""What some emitters of that schema, the simulator among them, left out."""
