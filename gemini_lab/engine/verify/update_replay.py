"""Computing an optimizer's update once more, and of another rank's shard.

While an update is recorded, all that goes into it is kept: weights, gradients, the optimizer's own
tensors and options, as they were before. That takes the memory of a shard and its gradients, until
the iteration is verified.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import xxhash

from gemini_lab.engine.contract import StateDict, StateView
from gemini_lab.engine.frameworks.framework import Framework
from gemini_lab.engine.frameworks.optimizer_state import local_part, own_values, put_own_values
from gemini_lab.engine.frameworks.stepping import uncompiled
from gemini_lab.engine.frameworks.tensors import feed
from gemini_lab.engine.random_states import random_states, restore_random_states
from gemini_lab.engine.verify.flaws import Flaw
from gemini_lab.shard.codec import decode, encode

_WEIGHTS: Final = "params"
_VALUE: Final = "value"
_GRADIENT: Final = "gradient"
_ELSEWHERE: Final = ("tensor",)


@dataclass(slots=True, kw_only=True)
class ReplayedStep:
    """One call of an optimizer's `step`."""

    groups: list[StateDict]
    numbers: StateDict  # numbers that the optimizer keeps as attributes of its own
    random: StateDict
    # By group and weight: its values, its gradient, and what the optimizer has for it.
    inputs: list[list[StateDict]]
    # The live ones, in the order of `inputs`.
    weights: list[torch.Tensor] = field(default_factory=list)


class StepRecorder:
    """Keeps what goes into the updates that are recorded."""

    def __init__(self, framework: Framework) -> None:
        self._optimizer = framework.optimizer
        self._steps: list[ReplayedStep] = []
        self._is_on = False
        self._optimizer.register_step_pre_hook(uncompiled(self._before_step))

    def begin(self) -> None:
        self._is_on, self._steps = True, []

    def end(self) -> tuple[list[ReplayedStep], int]:
        """Return what went into the recorded steps, and a checksum of what came out."""
        steps, self._steps, self._is_on = self._steps, [], False
        total = xxhash.xxh3_64()
        for step in steps:
            for weight in step.weights:
                _feed_result(total, weight, self._optimizer.state.get(weight, {}))
        return steps, total.intdigest() >> 1

    def _before_step(self, *_: object) -> None:
        if self._is_on:
            self._steps.append(_recorded(self._optimizer))


def _recorded(optimizer: torch.optim.Optimizer) -> ReplayedStep:
    step = ReplayedStep(groups=[], numbers=own_values(optimizer), random=random_states(), inputs=[])
    for group in optimizer.param_groups:
        step.groups.append({name: _kept(one) for name, one in group.items() if name != _WEIGHTS})
        inputs = []
        for weight in group[_WEIGHTS]:
            if weight.grad is not None:
                state = {name: _kept(one) for name, one in optimizer.state.get(weight, {}).items()}
                values = {_VALUE: _kept(weight), _GRADIENT: _kept(weight.grad), "state": state}
                inputs.append(values)
                step.weights.append(weight)
        step.inputs.append(inputs)
    return step


def _kept(value: Any) -> Any:
    return local_part(value.detach()).clone() if isinstance(value, torch.Tensor) else value


def update_again(framework: Framework, steps: Sequence[ReplayedStep]) -> int:
    """Return the checksum of an update, computed here by this rank's own optimizer.

    The optimizer's own weights and state are put aside meanwhile. What a library of its own keeps
    (the powers of betas in DeepSpeed's Adam for CPUs) is that of the same step already, and stays.
    """
    optimizer: Any = framework.optimizer
    hooks = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    kept = {name: getattr(optimizer, name) for name in ("param_groups", "state", *hooks)}
    own = own_values(optimizer)
    random = random_states()
    total = xxhash.xxh3_64()
    try:
        # The replay must not run the script's own hooks a second time.
        optimizer._optimizer_step_pre_hooks = OrderedDict()  # noqa: SLF001
        # A broken machine is to be broken in its replays, too, so injected flaws stay hooked.
        optimizer._optimizer_step_post_hooks = OrderedDict(  # noqa: SLF001
            (key, one) for key, one in kept[hooks[1]].items() if isinstance(one, Flaw)
        )
        places = count_places(kept["state"].values())
        for step in steps:
            _take(optimizer, step, total, framework.device, places)
    finally:
        vars(optimizer).update(kept)
        put_own_values(optimizer, own)
        restore_random_states(random)
    return total.intdigest() >> 1


def count_places(states: Iterable[StateView]) -> dict[str, torch.device]:
    """Return the devices of an optimizer's one-element tensors: a fused one has them on the GPU."""
    return {
        name: value.device
        for state in states
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and value.dim() == 0
    }


def _take(
    optimizer: Any,
    step: ReplayedStep,
    total: xxhash.xxh3_64,
    device: torch.device,
    places: Mapping[str, torch.device],
) -> None:
    """Step the optimizer on copies, and add the result to the checksum."""
    optimizer.param_groups, optimizer.state = [], defaultdict(dict)
    put_own_values(optimizer, step.numbers)
    restore_random_states(step.random)
    weights = []
    for options, inputs in zip(step.groups, step.inputs, strict=True):
        group = []
        for one in inputs:
            weight = one[_VALUE].to(device, copy=True).requires_grad_()
            weight.grad = one[_GRADIENT].to(device, copy=True)
            optimizer.state[weight] = {
                name: _copied(value, device, places.get(name))
                for name, value in one["state"].items()
            }
            group.append(weight)
        optimizer.param_groups.append({**options, _WEIGHTS: group})
        weights += group
    # Not `optimizer.step`: a schedule wraps that of the object, and would count the replay.
    type(optimizer).step(optimizer)
    for weight in weights:
        _feed_result(total, weight, optimizer.state[weight])


def _copied(value: Any, device: torch.device, place: torch.device | None) -> Any:
    """Return a copy of what an optimizer keeps; counts of steps are put where its own ones are."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(device if value.dim() else place or value.device, copy=True)


def _feed_result(total: xxhash.xxh3_64, weight: torch.Tensor, state: StateView) -> None:
    feed(total, local_part(weight))
    for name in sorted(state):
        value = state[name]
        if isinstance(value, torch.Tensor):
            feed(total, local_part(value))
        else:
            total.update(repr(value).encode())


# -- on their way to another rank ----------------------------------------------------------------


def packed(steps: Sequence[ReplayedStep]) -> tuple[bytes, list[torch.Tensor]]:
    """Pack an update's inputs: a head, and the tensors that follow it."""
    tensors: list[torch.Tensor] = []
    content = [
        [step.groups, step.numbers, step.random, _without(step.inputs, tensors)] for step in steps
    ]
    forms = [[str(one.dtype).removeprefix("torch."), list(one.shape)] for one in tensors]
    return encode({"steps": content, "tensors": forms}), tensors


def room_for(head: bytes) -> list[torch.Tensor]:
    """Return empty tensors in CPU memory for those that follow a head."""
    return [
        torch.empty(shape, dtype=getattr(torch, name)) for name, shape in decode(head)["tensors"]
    ]


def unpacked(head: bytes, tensors: Sequence[torch.Tensor]) -> list[ReplayedStep]:
    """Unpack what `packed` was given, without the live weights."""
    following = iter(tensors)
    return [
        ReplayedStep(groups=groups, numbers=own, random=random, inputs=_with(inputs, following))
        for groups, own, random, inputs in decode(head)["steps"]
    ]


def _without(inputs: Sequence[Sequence[StateDict]], tensors: list[torch.Tensor]) -> Any:
    """Return the same without large tensors, which are put into `tensors`."""

    def put(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: put(one) for name, one in value.items()}
        if isinstance(value, torch.Tensor) and value.dim():
            tensors.append(value)
            return _ELSEWHERE
        return value

    return [[put(one) for one in group] for group in inputs]


def _with(inputs: Any, following: Iterator[torch.Tensor]) -> list[list[StateDict]]:
    def take(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: take(one) for name, one in value.items()}
        return next(following) if isinstance(value, tuple) and value == _ELSEWHERE else value

    return [[take(one) for one in group] for group in inputs]
