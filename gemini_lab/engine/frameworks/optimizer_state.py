"""A torch optimizer's state and options: its tensors, and what is small beside them."""

import copy
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, zip_longest
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from gemini_lab.engine.contract import StateDict, StateView
from gemini_lab.engine.frameworks.payload_blocks import WEIGHT, Kept
from gemini_lab.engine.frameworks.tensors import is_dtensor, place_of, require_apart
from gemini_lab.engine.own_code import is_own_type
from gemini_lab.engine.random_states import (
    GENERATORS,
    is_generator_state,
    put_generator,
    random_states,
    read_generator,
    restore_random_states,
)
from gemini_lab.errors import ConfigError, UnsupportedError
from gemini_lab.shard.codec import encode
from gemini_lab.shard.layout import DTYPE_BYTES

_PLAIN_OPTIONS: Final = (bool, int, float, str, type(None), np.generic)
_MAPPINGS: Final = (dict, OrderedDict)
_MANY: Final = 1_000  # values of one attribute: more of them are a history
NO_VALUES: Final = frozenset({"state", "param_groups", "defaults", "opt_id"})
"""Attributes that are kept otherwise, or are the handle of a library's object."""
HOOKS: Final = "_optimizer_"
"""How the names of torch's own attributes for hooks begin."""


def beside(current: object, value: object) -> object:
    """`value`, on the device of the tensor that it replaces; or that, if it is the same."""
    if not (isinstance(current, torch.Tensor) and isinstance(value, torch.Tensor)):
        return value
    if is_dtensor(current) or is_dtensor(value):
        return value
    value = value.to(current.device)
    is_same = current.dtype == value.dtype and encode(current) == encode(value)
    return current if is_same else value


def in_place(current: object, value: object) -> object:
    """`value`, in the tensor or array that it replaces, which others may hold, if it fits there."""
    form, wanted = ([getattr(one, k, None) for k in ("shape", "dtype")] for one in (current, value))
    if form == wanted and isinstance(current, torch.Tensor) and isinstance(value, torch.Tensor):
        with torch.no_grad():
            return current.copy_(value)
    if form == wanted and isinstance(current, np.ndarray) and isinstance(value, np.ndarray):
        current[...] = value
        return current
    return beside(current, value)


def refilled(held: Any, wanted: Any, filled: set[int], leaf: Callable[..., object] = beside) -> Any:
    """Return `wanted`, in the lists, deques and dicts that it replaces, which others may hold.

    Args:
        held: What is there.
        wanted: Its value.
        filled: The identities of those that this restore has filled: what one start has at two
            places may have come apart in the run.
        leaf: Does the same for what is no such container.
    """
    is_one = isinstance(held, (dict, list)) or (
        isinstance(held, deque) and held.maxlen == getattr(wanted, "maxlen", None)
    )
    if not is_one or type(held) is not type(wanted) or held is wanted:
        return leaf(held, wanted)
    if id(held) in filled:
        with suppress(UnsupportedError):
            return held if encode(held) == encode(wanted) else wanted
        return wanted
    filled.add(id(held))
    if isinstance(held, dict):
        items = {key: refilled(held.get(key), one, filled, leaf) for key, one in wanted.items()}
        held.clear()
        held.update(items)
    else:
        pairs = zip_longest([*held][: len(wanted)], wanted)
        parts = [refilled(*pair, filled, leaf) for pair in pairs]
        held.clear()
        held.extend(parts)
    return held


def group_options(optimizer: torch.optim.Optimizer) -> list[StateDict]:
    """Return the options of an optimizer's parameter groups."""
    return [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def put_group_options(optimizer: torch.optim.Optimizer, options: Sequence[StateView]) -> None:
    """Put back what `group_options` gave; a script may hold the tensor of a learning rate."""
    filled = set[int]()
    for group, values in zip(optimizer.param_groups, options, strict=True):
        for key, value in values.items():
            group[key] = refilled(group.get(key), value, filled, in_place)


def graded(weights: Iterable[torch.Tensor]) -> list[str | None]:
    """Return the layout of each weight's gradient; `None` of one that has none.

    An optimizer updates a weight whose gradient is zeros, and leaves out one that has none.
    """
    return [None if w.grad is None else str(w.grad.layout).partition(".")[2] for w in weights]


def put_graded(weights: Iterable[torch.Tensor], layouts: Iterable[str | None]) -> None:
    """Give weights that had a gradient one of zeros, unless they have one, and take all others."""
    for weight, layout in zip(weights, layouts, strict=False):
        if layout is None:
            weight.grad = None
        elif weight.grad is None:
            is_sparse = layout != "strided"
            options = {"layout": getattr(torch, layout)} if is_sparse else {}
            weight.grad = torch.zeros_like(weight, **options)


def require_both(what: str, *, stored: object, current: object) -> None:
    """Refuse something that only one of the version and the script has.

    Raises:
        ConfigError: Only one has it.
    """
    if (stored is None) != (current is None):
        where = ("the script", "the version")[:: 1 if stored is None else -1]
        raise ConfigError(f"{where[0]} has {what}, {where[1]} has none; start the script as it was")


def parts_of(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, object]]:
    """Yield an optimizer, and the script's own objects in its attributes by their names."""
    yield "", optimizer
    for name, value in vars(optimizer).items():
        if is_own_type(type(value)) and not isinstance(value, nn.Module) and _has_values(value):
            yield f"{name}.", value


def _has_values(thing: object) -> bool:
    return isinstance(getattr(thing, "__dict__", None), dict)


def own_values(optimizer: torch.optim.Optimizer) -> StateDict:
    """Return attributes of an optimizer: numbers, texts, and copies of containers of these.

    Also states of generators, and those of objects in its attributes, by a name with a point.
    """
    return {
        f"{prefix}{name}": read_generator(value) if isinstance(value, GENERATORS) else copied(value)
        for prefix, part in parts_of(optimizer)
        for name, value in vars(part).items()
        if name not in NO_VALUES and not name.startswith(HOOKS)
        if is_plain(value) or isinstance(value, GENERATORS)
    }


def put_own_values(optimizer: torch.optim.Optimizer, values: StateView) -> None:
    """Put back what `own_values` gave.

    Raises:
        ConfigError: An object that had some is not there.
    """
    parts, filled = dict(parts_of(optimizer)), set[int]()
    for where, value in values.items():
        of, point, name = where.rpartition(".")
        if (part := parts.get(of + point)) is None:
            raise ConfigError(
                f"the version has values of {of!r}, an object in an attribute of "
                f"{called(optimizer)}, and this start has none; make it in the optimizer's "
                "constructor"
            )
        held = vars(part)
        if isinstance(held.get(name), GENERATORS):
            put_generator(held[name], value)
        elif is_generator_state(value):
            raise ConfigError(
                f"the version has a generator {where!r} of {called(optimizer)}, and this start has "
                "none; make it in the optimizer's constructor"
            )
        else:
            held[name] = refilled(held.get(name), value, filled)


def beside_weights(optimizer: torch.optim.Optimizer) -> list[tuple[Any, Any]]:
    """Return an optimizer's state under keys that are no weights, such as a common count."""
    state: Mapping[Any, Any] = optimizer.state
    return [(key, one) for key, one in state.items() if not isinstance(key, torch.Tensor)]


def put_beside_weights(optimizer: torch.optim.Optimizer, values: Sequence[tuple[Any, Any]]) -> None:
    """Put back what `beside_weights` gave, and nothing else there."""
    for key, _ in beside_weights(optimizer):
        del optimizer.state[key]
    optimizer.state.update(values)


def copied(value: Any) -> Any:
    """Return a container that may be changed instead of this one; its elements are the same."""
    if type(value) in _MAPPINGS:
        return type(value)((key, copied(one)) for key, one in value.items())
    if type(value) in (list, tuple):
        return type(value)(copied(one) for one in value)
    is_changed_in_place = isinstance(value, (set, deque, np.ndarray))
    return copy.copy(value) if is_changed_in_place else value


def is_plain(value: object) -> bool:
    """Return whether a value is a number, a text, or a container of at most a thousand."""
    found = [*islice(_leaves(value), _MANY + 1)]
    return len(found) <= _MANY and all(isinstance(one, _PLAIN_OPTIONS) for one in found)


def _leaves(value: Any) -> Iterator[object]:
    if type(value) in _MAPPINGS:
        value = [one for pair in value.items() for one in pair]
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OV":
        value = [*value.flat[: _MANY + 1]]
    if type(value) not in (list, tuple, deque):
        yield value
        return
    for one in value:
        yield from _leaves(one)


def numbers(thing: object) -> StateDict | None:
    """Return the numbers among an object's attributes: all that a loss scaler changes are such."""
    if thing is None:
        return None
    kept = (bool, int, float, type(None))
    return {key: value for key, value in vars(thing).items() if isinstance(value, kept)}


def state_for(
    optimizer: torch.optim.Optimizer, group: StateView, weight: torch.Tensor
) -> StateDict:
    """Return the state that `optimizer` makes for a weight of that group at its first step.

    Raises:
        UnsupportedError: It cannot take a step on a single weight with a gradient of zeros.
    """
    # With the weight's own values: what an optimizer keeps may depend on them.
    twin = weight.detach().clone().requires_grad_(weight.requires_grad)
    # Most optimizers skip weights without a gradient, and would make no state.
    twin.grad = torch.zeros_like(twin)
    options = copy.deepcopy({key: value for key, value in group.items() if key != "params"})
    step: Any = type(optimizer).step
    # An optimizer inside, such as DeepSpeed's Muon has, takes the step on the stand-in, too.
    inner = [one for one in vars(optimizer).values() if isinstance(one, torch.optim.Optimizer)]
    parts = [*(part for _, part in parts_of(optimizer)), *inner]
    kept, random = [(one, dict(vars(one))) for one in parts], random_states()
    held = [one for part in parts for one in vars(part).values() if isinstance(one, GENERATORS)]
    drawn = [(one, read_generator(one)) for one in held]
    try:
        for one, attributes in kept:
            vars(one).update({name: copied(value) for name, value in attributes.items()})
        optimizer.param_groups = [{**options, "params": [twin]}]
        optimizer.state = defaultdict(dict, copy.deepcopy(beside_weights(optimizer)))
        # The script's hooks must not see a step that never was.
        vars(optimizer).update(_optimizer_step_pre_hooks={}, _optimizer_step_post_hooks={})
        # Below torch's wrapper, which profiles and calls hooks that all optimizers share.
        getattr(step, "__wrapped__", step)(optimizer)
        return dict(optimizer.state.get(twin, {}))
    except Exception as error:  # whatever the optimizer of somebody else leads to
        raise UnsupportedError(
            f"the state of {type(optimizer).__name__} cannot be foreseen: a step on a stand-in of "
            f"{[*weight.shape]} failed ({type(error).__name__}: {error}); use an optimizer that "
            "needs no closure and can step on such a weight alone, or take a first step before "
            "`protect`"
        ) from error
    finally:
        for one, attributes in kept:
            vars(one).clear()
            vars(one).update(attributes)
        restore_random_states(random)
        for generator, state in drawn:
            put_generator(generator, state)


_PLAIN: Final = (bool, int, float, str, type(None))
_DEEPEST, _OBJECTS = 6, 2  # of an attribute: containers in one another, objects among them
_ELSEWHERE: Final = (
    *(str, bytes, range, type, ModuleType, FunctionType, MethodType),
    *(np.ndarray, torch.Tensor, nn.Module, torch.optim.Optimizer),
)
"""What is not looked into."""
_SCRATCH: Final = {"state", "param_groups", "defaults", "_dummy_overflow_buf"}
"""Attributes with tensors that are no state beside `state`; the last is FusedAdam's."""


class OptimizerState:
    """The weights that this rank's optimizers train, and what they keep for each.

    Large are the weights, all that has more than one element, and all that is sharded. The rest,
    such as counts of steps, is small.
    """

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self._optimizers = optimizers
        trained = [(o, g, w) for o in optimizers for g in o.param_groups for w in g["params"]]
        # What they train, in their order.
        self.weights: list[nn.Parameter] = [weight for *_, weight in trained]
        self._groups = [group for _, group, _ in trained]
        self._owners = [optimizer for optimizer, *_ in trained]

    def forms(self, peers: Collection[int] | None = None) -> Iterator[tuple[Kept, torch.Tensor]]:
        """Yield all large tensors with their forms, also those that are only foreseen.

        Args:
            peers: The ranks among which places are counted; see `place_of`.

        Raises:
            UnsupportedError: It keeps what is no tensor or number.
        """
        for optimizer in self._optimizers:
            require_none_beside(optimizer, trained=self.weights)
        for number, weight in enumerate(self.weights):
            yield self._form(number, WEIGHT, weight, peers), weight
            state = self._owners[number].state.get(weight) or self._foreseen(number)
            for name in sorted(state):
                if self._is_large(number, name, state[name]):
                    yield self._form(number, name, state[name], peers), state[name]

    def tensor(self, parameter: int, name: str) -> torch.Tensor | None:
        """Return a large tensor, live; None if it does not exist yet."""
        weight = self.weights[parameter]
        if name == WEIGHT:
            return weight
        state: StateView = self._owners[parameter].state.get(weight, {})
        return state.get(name)

    def make(self, wanted: Sequence[Kept]) -> None:
        """Make exactly these large tensors, as the optimizer itself would."""
        named: dict[int, set[str]] = {}
        for one in wanted:
            named.setdefault(one.parameter, set()).add(one.name)
        for number, weight in enumerate(self.weights):
            names = named.get(number, set()) - {WEIGHT}
            states = self._owners[number].state
            state = states.get(weight, {})
            if names == {name for name, one in state.items() if self._is_large(number, name, one)}:
                continue  # a script may hold it
            states.pop(weight, None)
            if not names <= {*state}:
                state = {**self._foreseen(number), **state}
            kept = {
                k: one
                for k, one in state.items()
                if k in names or not self._is_large(number, k, one)
            }
            if kept:
                states[weight] = kept

    def require_unchanged(self) -> None:
        """Refuse parameters that came or went since.

        Raises:
            UnsupportedError: Some did.
        """
        groups = [group for one in self._optimizers for group in one.param_groups]
        now = [id(weight) for group in groups for weight in group["params"]]
        if now != [id(weight) for weight in self.weights]:
            raise UnsupportedError(
                f"the optimizer has other parameters ({len(now)}) than when `protect` was called "
                f"({len(self.weights)}); add parameter groups, and call fully_shard, before it"
            )

    # -- the small part --------------------------------------------------------------------------

    def capture(self, large: Sequence[Kept]) -> StateDict:
        """Return what there is beside large tensors, for the codec.

        Raises:
            UnsupportedError: There is a large tensor that was not.
        """
        known = {(one.parameter, one.name) for one in large}
        alike: dict[tuple[str, str, str], list[tuple[int, torch.Tensor]]] = {}
        plain, stateful = [], []
        for number, weight in enumerate(self.weights):
            state: StateView = self._owners[number].state.get(weight, {})
            stateful.append(bool(state))
            for name, value in state.items():
                if (number, name) in known:
                    continue
                if self._is_large(number, name, value):
                    raise self._new_tensor(number, name)
                if isinstance(value, torch.Tensor):
                    key = (name, str(value.dtype), f"{tuple(value.shape)} {value.device}")
                    alike.setdefault(key, []).append((number, value))
                else:
                    plain.append((number, name, value))
        return {
            "groups": [options for one in self._optimizers for options in group_options(one)],
            "numbers": [own_values(one) for one in self._optimizers],
            "beside": [beside_weights(one) for one in self._optimizers],
            "stateful": stateful,
            "plain": plain,
            "tensors": [
                (name, [n for n, _ in found], torch.stack([value for _, value in found]))
                for (name, *_), found in alike.items()
            ],
        }

    def restore(self, small: StateView) -> None:
        """Put back what `capture` gave; large tensors are there already."""
        options, own, beside_all = iter(small["groups"]), small["numbers"], small.get("beside", [])
        if isinstance(own, Mapping):  # a version of 0.1 knows one optimizer
            own, beside_all = [own], [beside_all]
        parts = zip(self._optimizers, own, beside_all, strict=True)
        for optimizer, numbers, beside_them in parts:
            put_group_options(optimizer, [*islice(options, len(optimizer.param_groups))])
            put_beside_weights(optimizer, beside_them)
            put_own_values(optimizer, numbers)
        found = _by_parameter(small)
        for number, (weight, is_stateful) in enumerate(
            zip(self.weights, small["stateful"], strict=True)
        ):
            states = self._owners[number].state
            if not is_stateful:
                states.pop(weight, None)
                continue
            state = states[weight]
            before = dict(state) if state else self._foreseen(number)
            small_values = found.get(number, {})
            for name in [n for n in state if not self._is_large(number, n, state[n])]:
                if name not in small_values:
                    del state[name]
            for name, value in small_values.items():
                state[name] = beside(before.get(name), value)

    # -- what kind a value is of -----------------------------------------------------------------

    def _foreseen(self, number: int) -> StateDict:
        return state_for(self._owners[number], self._groups[number], self.weights[number])

    def _form(
        self, number: int, name: str, tensor: torch.Tensor, peers: Collection[int] | None
    ) -> Kept:
        part, optimizer = local_part(tensor), self._owners[number]
        require_memory(optimizer, name, part)
        dtype = str(part.dtype).removeprefix("torch.")
        if dtype not in DTYPE_BYTES or part.layout != torch.strided:
            raise UnsupportedError(
                f"{called(optimizer)} keeps {name!r} as a tensor of type {dtype} "
                f"({part.layout}); known are dense tensors of {', '.join(DTYPE_BYTES)}"
            )
        place = place_of(tensor, peers)
        return Kept(parameter=number, name=name, dtype=dtype, numel=part.numel(), place=place)

    def _is_large(self, number: int, name: str, value: object) -> bool:
        """Return whether a value is a large tensor.

        Raises:
            UnsupportedError: It is neither that nor small.
        """
        if isinstance(value, torch.Tensor):
            return is_dtensor(value) or value.numel() > 1
        require_plain(self._owners[number], name, value)
        return False

    def _new_tensor(self, number: int, name: str) -> UnsupportedError:
        return UnsupportedError(
            f"{called(self._owners[number])} made a tensor {name!r} for parameter {number} that "
            "was not there when `protect` was called; change its options before, not after, or "
            "take a first step before `protect`"
        )


def require_plain(optimizer: torch.optim.Optimizer, name: str, value: object) -> None:
    """Refuse a value of an optimizer's state that is no tensor, number or text, or list of these.

    Raises:
        UnsupportedError: It is not.
    """
    values = value if isinstance(value, list | tuple) else (value,)
    if not all(isinstance(one, _PLAIN) for one in values):
        raise UnsupportedError(
            f"{called(optimizer)} keeps {name!r} of a parameter as a {type(value).__name__}, which "
            "is no tensor or number; use an optimizer whose state is tensors, such as torch's "
            "AdamW, SGD, Adagrad, RMSprop or Muon"
        )


def require_memory(optimizer: torch.optim.Optimizer, name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor that is made of other tensors, as states of 8 bits are.

    Raises:
        UnsupportedError: It is, or some of its elements share memory.
    """
    require_apart(tensor, f"{called(optimizer)} has a tensor {name!r} that")
    if tensor.numel() and not tensor.data_ptr():
        raise UnsupportedError(
            f"{called(optimizer)} keeps {name!r} as a {type(tensor).__name__}, which has no memory "
            "of its own but is made of other tensors; use an optimizer whose state is plain "
            "tensors, such as torch's AdamW"
        )


def require_none_beside(
    optimizer: torch.optim.Optimizer, *, trained: Iterable[torch.Tensor]
) -> None:
    """Refuse what an optimizer keeps in attributes of its own, beside its state.

    Raises:
        UnsupportedError: It keeps something there.
    """
    known = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    known |= {id(weight) for weight in trained}
    for name, value in vars(optimizer).items():
        if name in _SCRATCH:
            continue
        held = [*_held_in(value)]
        inner = [one for one in held if isinstance(one, torch.optim.Optimizer)]
        # One for some of the groups, such as DeepSpeed's Muon has, keeps no state of its own.
        if any(one.state is not optimizer.state for one in inner):
            raise UnsupportedError(
                f"{called(optimizer)} has another optimizer inside ({name!r}), whose state would "
                "not be kept; use one that keeps all of it in its own `state`, such as a subclass "
                "of the inner one, whose step may compute again in a closure, as SAM does"
            )
        found = [t for t in held if isinstance(t, torch.Tensor) and id(t) not in known]
        if found:
            raise UnsupportedError(
                f"{called(optimizer)} keeps tensors in its attribute {name!r}, outside its state; "
                "keep them in optimizer.state, where checkpoints find them"
            )


def _held_in(value: object, *, depth: int = _DEEPEST, objects: int = _OBJECTS) -> Iterator[object]:
    """Yield what an attribute holds: in lists, dicts, its object, or that of its method."""
    yield value
    if isinstance(value, MethodType) and is_own_type(type(value.__self__)):
        value = value.__self__  # such as a hook's, which has slow weights
    if not depth or isinstance(value, _ELSEWHERE):
        return
    if isinstance(value, Mapping):
        inside: Iterable[object] = [*value.values()]
    elif isinstance(value, Collection):
        inside = [*value]
    elif objects:
        inside, objects = [*getattr(value, "__dict__", {}).values()], objects - 1
    else:
        return
    for one in inside:
        yield from _held_in(one, depth=depth - 1, objects=objects)


def called(optimizer: torch.optim.Optimizer) -> str:
    """Return how an error speaks of it."""
    return f"the optimizer {type(optimizer).__name__}"


def _by_parameter(small: StateView) -> dict[int, StateDict]:
    """Return the small values that were captured, by their parameter's number and by name."""
    found: dict[int, StateDict] = {}
    for name, members, stack in small["tensors"]:
        for number, value in zip(members, stack.unbind(), strict=True):
            found.setdefault(number, {})[name] = value.clone()
    for number, name, value in small["plain"]:
        found.setdefault(number, {})[name] = value
    return found


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's live part of a tensor: all, or its shard."""
    part: Any = tensor.detach()
    found: torch.Tensor = part.to_local() if is_dtensor(tensor) else part
    return found


def flat_part(part: torch.Tensor) -> torch.Tensor:
    """It in one dimension; a copy only where its elements lie in another order."""
    return part.contiguous().view(-1)
