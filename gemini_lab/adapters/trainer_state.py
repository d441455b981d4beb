"""A Trainer's counts and log, and the state of its callbacks: read for a version, and put back."""

import dis
import inspect
import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import CodeType
from typing import Any, Final

import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from gemini_lab.adapters.callback_parts import CallbackParts, ListedCallback
from gemini_lab.engine.contract import StateDict, StateView
from gemini_lab.engine.private_names import require_known
from gemini_lab.engine.state.rehearsal import named
from gemini_lab.shard.codec import encode
from gemini_lab.units import KIB, format_bytes

COUNTS_BYTES: Final = 256 * KIB
"""Of all of them together, beside the history and what else is small."""
_VALUES: Final = (type(None), bool, int, float, str)
_LISTS: Final = (list, deque)  # which are put back as they are; tuples are values
_DICTS: Final = (dict, defaultdict)


class OwnCounts:
    """Numbers, texts, and lists and dicts of these, that changed since training began; for `also`.

    What transformers' own class assigns is its adapter's to know. What did not change is what the
    script makes it again, which may be of this very machine, so it is left alone.

    Args:
        trainer: As the script made it.
        remark: Told once what is too large to be kept.
    """

    def __init__(self, trainer: Trainer, remark: Callable[[str], None]) -> None:
        self._trainer = trainer
        self._remark = remark
        self._too_large: set[str] = set()
        self._librarys = frozenset(assigned_by(Trainer))
        self._first = dict(self._plain_ones())

    def state_dict(self) -> StateDict:
        """Return the changed ones by name, the smallest first, as far as they fit in the room."""
        changed = {
            name: value
            for name, value in self._plain_ones()
            if name not in self._first or value != self._first[name]
        }
        room_bytes, kept = COUNTS_BYTES, {}
        for name, taken in sorted(
            ((name, len(encode(value))) for name, value in changed.items()), key=lambda one: one[1]
        ):
            room_bytes -= taken
            if room_bytes >= 0:
                kept[name] = changed[name]
            elif name not in self._too_large:
                self._too_large.add(name)
                self._remark(
                    f"the Trainer's attribute {name} has grown beyond "
                    f"{format_bytes(COUNTS_BYTES)}, and will not come back after a failure; "
                    "what is logged of it may differ then"
                )
        return kept

    def load_state_dict(self, kept: StateView) -> None:
        """Put back what `state_dict` gave, into the lists and dicts that are there."""
        for name, value in kept.items():
            setattr(self._trainer, name, _put_count(getattr(self._trainer, name, None), value))

    def _plain_ones(self) -> Iterator[tuple[str, object]]:
        for name, value in vars(self._trainer).items():
            if name not in self._librarys and _is_plain(value):
                yield name, _copied(value)


def _is_plain(value: object) -> bool:
    """Return whether it is of numbers and texts alone; a subclass may have more."""
    kind = type(value)
    if kind in _DICTS:
        assert isinstance(value, dict)
        return all(type(key) in _VALUES for key in value) and all(map(_is_plain, value.values()))
    if kind in (*_LISTS, tuple):
        assert isinstance(value, (list, deque, tuple))
        return all(map(_is_plain, value))
    return kind in _VALUES


def _copied(value: object) -> object:
    """Return the same in lists and dicts of its own, which is what a version can hold."""
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, _LISTS):
        return [_copied(one) for one in value]
    return tuple(map(_copied, value)) if isinstance(value, tuple) else value


def _put_count(there: Any, value: Any) -> Any:
    """`value`, in the dicts and lists that are `there`: they have makers and lengths of theirs."""
    if isinstance(there, _DICTS) and isinstance(value, dict):
        inner = {key: _put_count(there.get(key), one) for key, one in value.items()}
        there.clear()
        there.update(inner)
        return there
    if isinstance(there, _LISTS) and isinstance(value, list):
        there.clear()
        there.extend(value)
        return there
    return value


def assigned_by(kind: type) -> Iterator[str]:
    """Yield names of the attributes that a class's own code assigns, of whatever object."""
    for owner in kind.__mro__:
        for member in vars(owner).values():
            code = getattr(inspect.unwrap(member), "__code__", None) if callable(member) else None
            if code is not None:
                yield from _assigned_in(code)


def _assigned_in(code: CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if step.opname == "STORE_ATTR":
            yield str(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _assigned_in(inner)


ROOM_BYTES: Final = 256 * KIB
"""Some 2,000 entries of a loss, a norm and a learning rate."""

Entry = Mapping[str, object]


class LogHistory:
    """The kept part of a history; when its room is full, the older half goes.

    Args:
        room_bytes: Of all entries together, as JSON.
    """

    def __init__(self, room_bytes: int = ROOM_BYTES) -> None:
        self._room_bytes = room_bytes
        self._lines: list[bytes] = []
        self._seen = 0  # of the Trainer's list

    def follow(self, entries: Sequence[Entry]) -> torch.Tensor:
        """Return the history with new `entries` as bytes, with zeros behind."""
        for entry in entries[self._seen :]:
            self._lines.append(json.dumps(entry).encode() + b"\n")
            if sum(map(len, self._lines)) > self._room_bytes:
                del self._lines[: -(-len(self._lines) // 2)]
        self._seen = len(entries)
        text = b"".join(self._lines)
        return torch.frombuffer(bytearray(text.ljust(self._room_bytes, b"\0")), dtype=torch.uint8)

    def read(self, kept: torch.Tensor) -> list[Entry]:
        """Return the entries in what `follow` gave; they are what was followed so far."""
        text = bytes(kept.numpy().data).rstrip(b"\0")
        self._lines = text.splitlines(keepends=True)
        self._seen = len(self._lines)
        return [json.loads(line) for line in self._lines]


_STATE: Final = (
    "epoch",
    "global_step",
    "num_input_tokens_seen",
    "total_flos",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)  # what training changes in a TrainerState, beside its history
_TRAINER: Final = (
    "current_flos",
    "_globalstep_last_logged",
    "_initial_global_step",
    "_initial_num_input_tokens_seen",
    "_total_loss_scalar",
    "_tr_loss",
)  # what its loop keeps in the Trainer itself


def require_known_sums() -> None:
    """Refuse a version of transformers whose Trainer calls its sums and counts otherwise.

    Raises:
        UnsupportedError: It does.
    """
    assigned = {*assigned_by(Trainer)}
    missing = [name for name in _TRAINER if name not in assigned]
    require_known(missing, Trainer.__name__, package="transformers")


class TrainerState:
    """The counters, sums and history of a Trainer, and its callbacks' own states; for `also`.

    Args:
        trainer: What the script calls `train()` of.
        remark: Told what will not come back.
    """

    def __init__(self, trainer: Trainer, remark: Callable[[str], None]) -> None:
        self._trainer = trainer
        # What callbacks hold, beside what they say.
        self.parts = CallbackParts(self._listed, lambda: trainer.model, remark)
        self._counts = OwnCounts(trainer, remark)
        self._history = LogHistory()

    def state_dict(self) -> StateDict:
        state = self._trainer.state
        return {
            "state": {name: getattr(state, name) for name in _STATE},
            "trainer": {name: getattr(self._trainer, name, None) for name in _TRAINER},
            "counts": self._counts.state_dict(),
            "history": self._history.follow(state.log_history),
            "callbacks": {name: _read(one) for name, one in self._callbacks() if _is_kept(one)},
            "parts": self.parts.state_dict(),
        }

    def load_state_dict(self, kept: StateDict) -> None:
        for name, value in kept["state"].items():
            setattr(self._trainer.state, name, value)
        for name, value in kept["trainer"].items():
            if value is not None:
                is_tensor = isinstance(value, torch.Tensor)
                placed = value.to(self._trainer.args.device) if is_tensor else value
                setattr(self._trainer, name, placed)
        self._counts.load_state_dict(kept.get("counts", {}))  # versions of 0.1.0 have none
        self._trainer.state.log_history = self._history.read(kept["history"])
        for name, callback in self._callbacks():
            if name in kept["callbacks"]:
                with named(f"the callback {type(callback).__name__}"):
                    _put(callback, kept["callbacks"][name])
        self.parts.load_state_dict(kept.get("parts", {}))

    def _listed(self) -> Iterator[ListedCallback]:
        """Yield all callbacks with their state; what transformers' own hold is for people alone."""
        for name, callback in self._callbacks():
            module = type(callback).__module__
            yield ListedCallback(
                name=name,
                callback=callback,
                said=partial(_read, callback) if _is_kept(callback) else None,
                is_known=module.startswith(("transformers.", "gemini_lab.")),
            )

    def _callbacks(self) -> Iterator[tuple[str, object]]:
        """Yield each with a name that is the same in every start of the script."""
        for number, callback in enumerate(self._trainer.callback_handler.callbacks):
            yield f"{number} {type(callback).__name__}", callback


def _is_stateful(callback: TrainerCallback) -> bool:
    return hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict")


def _is_kept(callback: TrainerCallback) -> bool:
    """Return whether it says what its state is: as torch's objects do, or as an ExportableState."""
    return _is_stateful(callback) or isinstance(callback, ExportableState)


def _read(callback: TrainerCallback) -> Any:
    return callback.state_dict() if _is_stateful(callback) else callback.state()["attributes"]


def _put(callback: TrainerCallback, kept: Any) -> None:
    if _is_stateful(callback):
        callback.load_state_dict(kept)
        return
    for name, value in kept.items():
        setattr(callback, name, value)
