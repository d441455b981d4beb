"""Checksums of an iteration's inputs: its batch, the random state, the learning rate.

On a CPU the batch is read where it lies, some GiB a second. On a GPU nothing waits for it: kernels
that are queued before the forward pass add its words up, each with a weight of its own, and the sum
is read when the device has come to it, at the latest when the iteration has ended.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

import numpy as np
import torch
import xxhash
from deepspeed.accelerator import get_accelerator

from gemini_lab.engine.contract import Engine
from gemini_lab.engine.digests import as_it_reads, bytes_in, tensor_sum
from gemini_lab.engine.iterations import IterationLog
from gemini_lab.engine.ranks import rank_and_world_size
from gemini_lab.log.events import Inputs

_DEEPEST: Final = 16


class StepInputs:
    """The inputs of the iteration that is computed; made when its first forward pass begins.

    Args:
        engine: Whose the learning rate is.
        arguments: What the model is called with.
    """

    def __init__(self, engine: Engine, arguments: object) -> None:
        self._random = random_checksums()
        self._learning_rate = learning_rate(engine)
        self._batch = BatchChecksum(arguments)

    @property
    def is_ready(self) -> bool:
        """Whether `read` would not wait."""
        return self._batch.is_ready

    def read(self) -> Inputs:
        """All of it."""
        _, ranks = rank_and_world_size()
        return Inputs(
            batch=self._batch.read(),
            random=self._random,
            learning_rate=self._learning_rate,
            ranks=ranks,
        )


class BatchChecksum:
    """The checksum of everything in a model's arguments that has a value of its own.

    Tensors count with form, type and every byte; numbers, texts and containers of them too. Of
    other objects only the class counts.
    """

    def __init__(self, arguments: object) -> None:
        self._digest = xxhash.xxh3_64()
        sums = list(_feed(self._digest, arguments, 0))
        self._sums = _to_host(torch.stack(sums)) if sums else None
        self._arrival = _arrival() if sums else None

    @property
    def is_ready(self) -> bool:
        """Whether `read` would not wait."""
        return self._arrival is None or bool(self._arrival.query())

    def read(self) -> str:
        """Sixteen hexadecimal digits."""
        if self._arrival is not None:
            self._arrival.synchronize()  # it lies before all that this iteration computes
            self._arrival = None
        if self._sums is not None:
            self._digest.update(self._sums.numpy().data)
            self._sums = None
        return self._digest.hexdigest()


def watch_inputs(engine: Engine, iterations: IterationLog) -> None:
    """Report the inputs of each iteration to `iterations`; an evaluation begins none."""
    module = engine.module

    def before_forward(_: object, args: object, kwargs: object) -> None:
        if module.training and torch.is_grad_enabled():
            number = int(engine.global_steps) + 1
            iterations.begin_with(number, lambda: StepInputs(engine, (args, kwargs)))

    module.register_forward_pre_hook(before_forward, prepend=True, with_kwargs=True)


def random_checksums() -> dict[str, str]:
    """The states of the generators of Python, NumPy, torch and the device."""
    version, words, gauss = random.getstate()
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002 - scripts still use it
    key = numpy_state["state"]["key"].tobytes()
    numbers = (numpy_state["state"]["pos"], numpy_state["has_gauss"], numpy_state["gauss"])
    states = {
        "python": f"{version} {hash(words)} {gauss!r}".encode(),
        "numpy": key + repr(numbers).encode(),
        "torch": torch.get_rng_state().numpy().data,
    }
    device = get_accelerator()
    if device.device_name() != "cpu":
        states[device.device_name()] = device.get_rng_state().cpu().numpy().data
    return {name: xxhash.xxh3_64_hexdigest(state) for name, state in states.items()}


def learning_rate(engine: Any) -> float | None:
    """That of the optimizer's first group, if it is a plain number or lies in CPU memory."""
    groups = getattr(getattr(engine, "optimizer", None), "param_groups", None) or [{}]
    rate = groups[0].get("lr")
    return None if rate is None or _is_elsewhere(rate) else float(rate)


def gradient_norm(engine: Any) -> dict[str, float]:
    """`"grad_norm"` of the last update, over all ranks, where reading it waits for nothing."""
    norm = getattr(engine, "_global_grad_norm", None)
    return {} if norm is None or _is_elsewhere(norm) else {"grad_norm": float(norm)}


def _feed(digest: Any, value: object, depth: int) -> Iterator[torch.Tensor]:
    """Add `value` to the digest; gives the sums of tensors that do not lie in CPU memory."""
    digest.update(f"<{type(value).__name__}".encode())
    if isinstance(value, torch.Tensor):
        yield from _feed_tensor(digest, value)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    elif isinstance(value, str | bytes):
        digest.update(value.encode(errors="surrogatepass") if isinstance(value, str) else value)
    elif isinstance(value, bool | int | float | complex | None):
        digest.update(repr(value).encode())
    elif depth < _DEEPEST:
        for part in _parts(value):
            yield from _feed(digest, part, depth + 1)
    digest.update(b">")


def _feed_tensor(digest: Any, tensor: Any) -> Iterator[torch.Tensor]:
    if (parts := _made_of(tensor)) is not None:
        for part in parts:
            yield from _feed_tensor(digest, part)
        return
    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        return
    read = as_it_reads(tensor).contiguous()
    if _is_elsewhere(read):
        yield tensor_sum(read)
    elif read.numel():
        digest.update(bytes_in(read))


def _made_of(tensor: Any) -> Sequence[torch.Tensor] | None:
    """The tensors that one without memory of its own is made of, as a DTensor of its shard."""
    if tensor.is_nested:
        found: Sequence[torch.Tensor] = tensor.detach().unbind()
        return found
    if not hasattr(tensor, "__tensor_flatten__"):
        return None
    names, _ = tensor.__tensor_flatten__()
    parts = (getattr(tensor, name) for name in names)  # a DTensor names its mesh, too
    return [part for part in parts if isinstance(part, torch.Tensor)]


def _parts(value: Any) -> Iterator[object]:
    """Yield what a container holds, in its own order."""
    if isinstance(value, Mapping):
        for key in value:
            yield key
            yield value[key]
    elif isinstance(value, Sequence):
        yield from value
    elif is_dataclass(value):
        yield from (getattr(value, field.name) for field in fields(value))


def _is_elsewhere(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type != "cpu"


def _to_host(sums: torch.Tensor) -> torch.Tensor:
    """The sums in pinned memory, once the device has come to it."""
    host = torch.empty_like(sums, device="cpu", pin_memory=True)
    return host.copy_(sums, non_blocking=True)


def _arrival() -> Any:
    """Marks the moment on the device's queue at which all that was asked for so far is done."""
    event = get_accelerator().Event()
    event.record()
    return event
