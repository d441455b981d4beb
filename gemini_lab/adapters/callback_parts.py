"""State of callbacks that they do not give: copies of the model are kept, others reported.

An average of the weights is often made in a hook, so that a script cannot name it beforehand, and
libraries leave theirs out of `state_dict`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from gemini_lab.engine.contract import StateDict, StateView
from gemini_lab.engine.frameworks.optimizer_state import local_part
from gemini_lab.engine.state.data_values import digest
from gemini_lab.engine.state.user_state import Keepsake, keepsakes
from gemini_lab.errors import UnsupportedError

_LOOKS: Final = frozenset({2, 4, 11, 31, 101, 301, 1001, 3001})
"""Steps at which changes are looked for, beside the end of each epoch."""
_OF: Final = "callback {kind}'s {attribute!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCallback:
    """A callback as its adapter lists it."""

    name: str  # the same in every start of the script
    callback: Any  # it
    # Gives what it says of its state; `None` if it says nothing.
    said: Callable[[], Any] | None = None
    # Whether its library ships it, and its other attributes are known not to matter.
    is_known: bool = False


class CallbackParts:
    """Copies of a model in attributes of callbacks, as a part of an adapter's state.

    These are modules, dicts and lists of tensors that have the shapes of at least half of the
    model's weights. What a callback says itself, and what belongs to the model, is left out.
    """

    def __init__(
        self,
        listed: Callable[[], Iterable[ListedCallback]],  # gives the callbacks
        model: Callable[[], nn.Module],  # gives the model
        remark: Callable[[str], None],  # told what does not come back
    ) -> None:
        self._listed = listed
        self._model = model
        self._remark = remark
        self._first: dict[tuple[str, str, str], int | None] = {}
        self._named: set[tuple[str, str, str]] = set()
        self._seen: dict[tuple[str, str], tuple[object, Keepsake | None]] = {}
        self._early: set[str] | None = None  # copies that there were when training began
        self._awaited: StateDict = {}  # of a version, for callbacks that make theirs later
        self._late: set[str] = set()  # others, which were named

    def state_dict(self) -> StateDict:
        """Return the copies that callbacks have held since before training, by name."""
        early = self._early
        there = {name: one for name, one in self._copies() if early is None or name in early}
        return {**self._awaited, **{name: one.read() for name, one in there.items()}}

    def load_state_dict(self, kept: StateView) -> None:
        """Put back what `state_dict` gave; a copy that its callback makes later is put back then.

        Raises:
            UnsupportedError: Training has begun, and a callback still has no such copy.
        """
        there = dict(self._copies())
        for name in kept.keys() & there.keys():
            there[name].put(kept[name])
        self._awaited = {name: kept[name] for name in kept.keys() - there.keys()}
        if self._awaited and self._early is not None:
            raise UnsupportedError(
                f"the version has a copy of the model for {min(self._awaited)}, which this start "
                "has not made; have the callback make it in `setup`, in each start"
            )

    def begin(self) -> None:
        """Say that training begins: later changes are told."""
        self._early = {name for name, _ in self._copies()}
        self._first = dict(self._digests())

    def say_changes(self, step: int | None = None) -> None:
        """Tell, once each, which attributes have changed and are in no version.

        Args:
            step: How many are done; `None` at the end of an epoch.
        """
        if self._early is None or not (step is None or step in _LOOKS):
            return
        late = {name for name, _ in self._copies()} - self._early - self._late
        seen = [(key, now) for key, now in self._digests() if key not in self._named]
        found = {key for key, now in seen if self._first.setdefault(key, now) != now}
        self._late |= late
        self._named |= found
        names = sorted(late | {_OF.format(kind=kind, attribute=one) for _, kind, one in found})
        if names:
            self._remark(
                f"callbacks change what no version has ({', '.join(names)}), so it begins again "
                "after a failure; give them `state_dict` and `load_state_dict`, and have them make "
                "copies of the model before training begins; if no later number depends on it, all "
                "is well"
            )

    def _copies(self) -> Iterator[tuple[str, Keepsake]]:
        """Of each copy, how to read it and put it back."""
        for one in self._listed():
            for attribute, value in [*vars(one.callback).items()]:
                key = one.name, attribute
                if key not in self._seen or self._seen[key][0] is not value:
                    kept = self._keepsake(one, attribute, value)
                    self._seen.pop(key, None)
                    if kept is not None or isinstance(value, nn.Module):  # else it may be freed
                        self._seen[key] = value, kept
                if (found := self._seen.get(key)) is not None and found[1] is not None:
                    kind = type(one.callback).__name__
                    number = one.name.partition(" ")[0]
                    yield f"{_OF.format(kind=kind, attribute=attribute)} ({number})", found[1]

    def _keepsake(self, one: ListedCallback, attribute: str, value: Any) -> Keepsake | None:
        tensors = [*_tensors(value)]
        model = self._model()
        if not tensors or value is model or not _is_copy(tensors, model):
            return None
        there = {_place(t) for t in [*model.parameters(), *model.buffers()]}
        there |= {_place(t) for t in _inside(one.said())} if one.said is not None else set()
        if all(_place(tensor) in there for tensor in tensors):
            return None
        if isinstance(value, (nn.Module, dict)):
            return keepsakes({attribute: value})[attribute]
        return Keepsake(
            read=lambda: [*value], put=lambda kept: value.__setitem__(slice(None), kept)
        )

    def _digests(self) -> Iterator[tuple[tuple[str, str, str], int | None]]:
        """Yield checksums of values in callbacks that say nothing."""
        copies = {key for key, (_, kept) in self._seen.items() if kept is not None}
        of_model = {_place(tensor) for tensor in _tensors(self._model())}
        for one in self._listed():
            if one.said is not None or one.is_known:
                continue
            for attribute, value in [*vars(one.callback).items()]:
                if (one.name, attribute) not in copies:
                    yield (
                        (one.name, type(one.callback).__name__, attribute),
                        _digest(value, of_model),
                    )


def _digest(value: object, of_model: Collection[int]) -> int | None:
    """Return a checksum of plain values: itself, an object's own, or what a module alone has."""
    if isinstance(value, nn.Module):
        own = [one for one in _tensors(value) if _place(one) not in of_model]
        return digest([local_part(one.detach()) for one in own])
    is_plain = not hasattr(value, "__dict__") or isinstance(value, torch.Tensor)
    return digest(value if is_plain else dict(vars(value)))


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, nn.Module):
        yield from value.parameters()
        yield from value.buffers()
        return
    found = [*value.values()] if type(value) is dict else value
    if type(found) is list and all(isinstance(one, torch.Tensor) for one in found):
        yield from found


def _inside(said: object) -> Iterator[torch.Tensor]:
    if isinstance(said, torch.Tensor):
        yield said
    elif isinstance(said, (Mapping, list, tuple)):
        for one in said.values() if isinstance(said, Mapping) else said:
            yield from _inside(one)


def _is_copy(tensors: Iterable[torch.Tensor], model: nn.Module) -> bool:
    """Return whether they have the shapes of at least half of the model's weights."""
    left = [one.shape for one in tensors]
    # ZeRO 3 leaves an empty weight in place of each; `ds_shape` is that of the whole one.
    wanted = [getattr(one, "ds_shape", one.shape) for one in model.parameters()]
    found = 0
    for shape in wanted:
        if shape in left:
            left.remove(shape)
            found += 1
    return bool(wanted) and 2 * found >= len(wanted)


def _place(tensor: Any) -> int:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return int(local.data_ptr()) or id(tensor)
