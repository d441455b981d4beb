"""Computing gradients once more, and of another rank's batch: what tells machines apart.

While an iteration is recorded, each call of the model is kept: its arguments, the random state, and
with which gradients its outputs were led back. That is all that a machine with the same weights
needs to compute the same gradients, before they are added up over the ranks. The script's loop has
no part in a replay, and the gradients of the iteration itself stay as they are: they are asked for
by `torch.autograd.grad`, which leaves out what frameworks do where gradients are added up.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final

import torch
import xxhash
from torch.utils.hooks import RemovableHandle

from gemini_lab.engine.contract import StateDict
from gemini_lab.engine.frameworks.framework import Framework
from gemini_lab.engine.frameworks.stepping import uncompiled
from gemini_lab.engine.frameworks.tensors import feed
from gemini_lab.engine.random_states import random_states, restore_random_states
from gemini_lab.errors import UnsupportedError
from gemini_lab.shard.codec import decode, encode

_CPU: Final = torch.device("cpu")


@dataclass(slots=True, kw_only=True)
class ModelCall:
    """One call of the model in training."""

    arguments: bytes  # positional and by name, as the codec writes them
    on_device: list[bool]  # which of their tensors lay on the device, in order
    random: StateDict  # the random state when it was called
    autocast: dict[str, tuple[bool, str]]  # by device: whether types are cast there, and to which
    # Of its outputs, in order, as they were led back; `None` where none was.
    gradients: list[torch.Tensor | None] = field(default_factory=list)


class GradientSums:
    """A checksum of what a model gave, and of the gradients that reach each weight.

    What it gave counts too: a script's own loss makes gradients of it, and of a wrong output it
    makes those that belong to that.
    """

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self._weights = weights
        self._sums = [xxhash.xxh3_64() for _ in weights]
        self._outputs = xxhash.xxh3_64()
        self._handles: list[RemovableHandle] = []

    def watch(self, *, drops: bool) -> None:
        """Read every gradient from now on, after all other hooks that there are.

        With `drops`, zeros without memory of their own go on in its place.
        """
        for weight, total in zip(self._weights, self._sums, strict=True):
            known: Any = weight  # its stubs have no types for this
            self._handles.append(known.register_hook(_reading(total, drops=drops)))

    def read(self, output: object) -> None:
        """Add what the model gave."""
        for tensor in _tensors(output):
            feed(self._outputs, tensor)

    def stop(self) -> int:
        """Read no more; what all of it was."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        words = [one.digest() for one in (self._outputs, *self._sums)]
        return xxhash.xxh3_64_intdigest(b"".join(words)) >> 1


def _reading(
    total: xxhash.xxh3_64, *, drops: bool
) -> Callable[[torch.Tensor], torch.Tensor | None]:
    def read(gradient: torch.Tensor) -> torch.Tensor | None:
        feed(total, gradient)
        if drops and not gradient.is_sparse:
            # The sum of a replay is not needed, and must not take the memory of a second gradient.
            return gradient.new_zeros(()).expand(gradient.shape)
        return None

    return read


class CallRecorder:
    """Keeps the model's calls, and their results, in iterations that are recorded."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._calls: list[ModelCall] = []
        self._buffers: list[torch.Tensor] = []  # as they were before the first call
        self._sums: GradientSums | None = None
        self._is_on = False
        self.was_called = False
        module = framework.module
        module.register_forward_pre_hook(
            uncompiled(self._before_forward), prepend=True, with_kwargs=True
        )
        module.register_forward_hook(uncompiled(self._after_forward))

    def begin(self) -> None:
        """Record from the next call of the model on."""
        self._is_on, self._calls, self._sums = True, [], None

    def end(self) -> tuple[bytes, int]:
        """Return what another rank needs to compute the same, and a checksum of the result here."""
        self._is_on, self.was_called = False, bool(self._calls)
        digest = 0 if self._sums is None else self._sums.stop()
        now = list(self._framework.module.buffers())
        changed = {
            number: before
            for number, (before, after) in enumerate(zip(self._buffers, now, strict=False))
            if not torch.equal(before, after)
        }
        calls = [
            {one.name: getattr(call, one.name) for one in fields(call)} for call in self._calls
        ]
        self._calls, self._buffers, self._sums = [], [], None
        return encode({"calls": calls, "buffers": changed}), digest

    def _before_forward(self, module: torch.nn.Module, args: object, kwargs: object) -> None:
        if not (self._is_on and module.training and torch.is_grad_enabled()):
            return
        if not self._calls:
            self._buffers = [buffer.detach().clone() for buffer in module.buffers()]
        try:
            arguments = encode(_plain((args, kwargs)))
        except UnsupportedError as error:
            raise UnsupportedError(
                f"an iteration cannot be computed again elsewhere (verify_every): {error}; call "
                "the model with plain tensors, or leave verify_every out"
            ) from error
        self._calls.append(
            ModelCall(
                arguments=arguments,
                on_device=[one.device != _CPU for one in _tensors((args, kwargs))],
                random=random_states(),
                autocast=_autocast(self._framework.device),
            )
        )

    def _after_forward(self, module: torch.nn.Module, args: object, output: object) -> None:
        del args
        if not (self._is_on and self._calls and module.training and torch.is_grad_enabled()):
            return
        if self._sums is None:  # only now has FSDP2 the weights to which gradients come
            self._sums = GradientSums(self._framework.contributing())
            self._sums.watch(drops=False)
        self._sums.read(output)
        gradients = self._calls[-1].gradients
        for tensor in _differentiable(output):
            gradients.append(None)
            _keep_gradient(tensor, gradients)


def _keep_gradient(tensor: torch.Tensor, gradients: list[torch.Tensor | None]) -> None:
    """Keep in the last place what is led back from a tensor, as all hooks on it leave it."""
    place, output = len(gradients) - 1, tensor.output_nr

    def keep(incoming: Sequence[torch.Tensor | None]) -> None:
        # A function with several outputs gets the gradients of all of them in one call.
        one = incoming[output]
        gradients[place] = None if one is None else one.detach().clone()

    assert tensor.grad_fn is not None
    tensor.grad_fn.register_prehook(keep)


def gradients_again(framework: Framework, recorded: bytes) -> int:
    """Return the checksum of a recorded iteration's gradients, computed here.

    All ranks call it together, with as many calls of the model, and with the weights of that
    iteration. Nothing of this rank's own iteration is changed.
    """
    content = decode(recorded)
    module = framework.module
    kept = random_states(), [buffer.detach().clone() for buffer in module.buffers()]
    sums: GradientSums | None = None
    try:
        _put_buffers(module, content["buffers"])
        for values in content["calls"]:
            call = ModelCall(**values)
            output = _called(framework, call)
            if sums is None:
                sums = GradientSums(framework.contributing())
                sums.watch(drops=True)
            sums.read(output)
            _lead_back(framework, list(_differentiable(output)), call.gradients)
    finally:
        digest = 0 if sums is None else sums.stop()
        random, buffers = kept
        restore_random_states(random)
        _put_buffers(module, dict(enumerate(buffers)))
        framework.end_replay()
    return digest


def _called(framework: Framework, call: ModelCall) -> object:
    args, kwargs = _on_device(decode(call.arguments), iter(call.on_device), framework.device)
    restore_random_states(call.random)
    with ExitStack() as stack:
        for kind, (is_on, dtype) in call.autocast.items():
            stack.enter_context(torch.autocast(kind, dtype=getattr(torch, dtype), enabled=is_on))
        return framework.module(*args, **kwargs)


def _lead_back(
    framework: Framework,
    outputs: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor | None],
) -> None:
    pairs = [
        (output, gradient.to(output.device))
        for output, gradient in zip(outputs, gradients, strict=False)
        if gradient is not None
    ]
    if pairs:
        # Not `backward`: DDP, FSDP and ZeRO reduce gradients where they are added to `.grad`.
        torch.autograd.grad(
            [output for output, _ in pairs],
            framework.contributing(),
            [gradient for _, gradient in pairs],
            allow_unused=True,
        )


def _put_buffers(module: torch.nn.Module, values: Mapping[int, torch.Tensor]) -> None:
    buffers = list(module.buffers())
    with torch.no_grad():
        for number, value in values.items():
            buffers[number].copy_(value)


def _autocast(device: torch.device) -> dict[str, tuple[bool, str]]:
    found = {}
    for kind in dict.fromkeys(("cpu", device.type)):
        dtype = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
        found[kind] = (torch.is_autocast_enabled(kind), dtype)
    return found


# -- what a model is called with, and what it returns --------------------------------------------


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if type(value) is tuple:
        return tuple(_plain(one) for one in value)
    return [_plain(one) for one in value] if type(value) is list else value


def _on_device(value: Any, there: Iterator[bool], device: torch.device) -> Any:
    """Return arguments with their tensors where they lay, in the order of `_tensors`."""
    if isinstance(value, torch.Tensor):
        return value.to(device) if next(there) else value
    if isinstance(value, dict):
        return {key: _on_device(one, there, device) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_on_device(one, there, device) for one in value)
    return value


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for part in _parts(value):
            yield from _tensors(part)


def _differentiable(output: object) -> Iterator[torch.Tensor]:
    return (tensor for tensor in _tensors(output) if tensor.grad_fn is not None)


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (tuple, list)):
        return value
    return (getattr(value, one.name) for one in fields(value)) if is_dataclass(value) else ()
