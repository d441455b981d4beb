"""A worker's report of its iterations: what each began with, how long it took, what was logged.

What it begins with is told by checksums: of its batch, the random state, the learning rate. On a
CPU the batch is read where it lies, some GiB a second. On a GPU nothing waits for it: kernels that
are queued before the forward pass add its words up, each with a weight of its own, and the sum is
read when the device has come to it, at the latest when the iteration has ended.
"""

import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import torch
import xxhash
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.activation_checkpointing.checkpointing import get_cuda_rng_tracker
from torch import nn

from gemini_lab.engine.arguments import numbers_of, require_few
from gemini_lab.engine.contract import Engine, StateDict
from gemini_lab.engine.frameworks.pipeline_stages import is_trial
from gemini_lab.engine.frameworks.stepping import uncompiled
from gemini_lab.engine.frameworks.tensors import as_it_reads, bytes_in, tensor_sum
from gemini_lab.engine.frameworks.torch_engine import TorchEngine
from gemini_lab.engine.rank_agreement import rank_and_world_size
from gemini_lab.log.events import AnyEvent, Inputs, Iteration, IterationBegun, VersionComplete
from gemini_lab.units import to_microsecond

Emit = Callable[[AnyEvent], None]


class Monitor(Protocol):
    """DeepSpeed's `MonitorMaster`."""

    enabled: bool

    def write_events(self, event_list: Sequence[tuple[str, float, int]], /) -> None: ...


def with_monitor(engine: Engine, emit: Emit) -> Emit:
    """Return `emit`, which tells the engine's monitor too, if it has one and this is rank 0."""
    monitor: Monitor | None = getattr(engine, "monitor", None)
    if monitor is None or not monitor.enabled or engine.global_rank != 0:
        return emit
    feed = MonitorFeed(monitor, samples=lambda: int(getattr(engine, "global_samples", 0)))
    return both(emit, feed.take)


def both(first: Emit, then: Emit) -> Emit:
    """Return what gives each event to the one and then to the other."""

    def emit(event: AnyEvent) -> None:
        first(event)
        then(event)

    return emit


class MonitorFeed:
    """Writes what a worker says to a monitor, once an iteration and on training's thread."""

    def __init__(self, monitor: Monitor, *, samples: Callable[[], int]) -> None:
        self._monitor = monitor
        self._samples = samples
        self._versions: deque[VersionComplete] = deque()  # said on other threads, too
        self._written: tuple[int, frozenset[str]] = 0, frozenset()

    def take(self, event: AnyEvent) -> None:
        if isinstance(event, VersionComplete):
            self._versions.append(event)
        elif isinstance(event, Iteration):
            values: dict[str, float] = {}
            while self._versions:
                version = self._versions.popleft()
                values["gemini_lab/version"] = version.version
                values["gemini_lab/checkpoint_seconds"] = version.duration_s
            self._write(event.iteration, values | dict(_of_iteration(event)))

    def _write(self, iteration: int, values: dict[str, float]) -> None:
        """Write those that this iteration has not told yet: it is said anew for a late `log`."""
        number, names = self._written
        told = names if number == iteration else frozenset[str]()
        at = self._samples()
        fresh = [(name, value, at) for name, value in values.items() if name not in told]
        if fresh:
            self._monitor.write_events(fresh)
        self._written = iteration, told | values.keys()


def _of_iteration(done: Iteration) -> Iterator[tuple[str, float]]:
    yield "gemini_lab/iteration", done.iteration
    yield "gemini_lab/step_seconds", done.duration_s
    yield "gemini_lab/checkpoint_wait_seconds", done.waited_s
    for name in done.values:
        if (value := done.value(name)) is not None:
            yield f"gemini_lab/logged/{name}", value


_LAST: Final = "last"
_SAID_ANEW: Final = frozenset({"rank", "epoch", "restored", "of", "work_s"})


def thread_work() -> Callable[[], float]:
    """Return a clock of how long the calling thread has computed, or wanted a processor.

    On Linux, that is the time on a processor and in the queue for one: what a thread waits for
    other ranks, or for a disk, is not in it. Elsewhere only the first is known.
    """
    try:
        # Read from its beginning each time; it says the same thread's times to any thread.
        file = open("/proc/thread-self/schedstat", "rb", buffering=0)  # noqa: SIM115, PTH123
    except OSError:
        return time.thread_time

    def work_s() -> float:
        on_processor, in_queue, _ = os.pread(file.fileno(), 64, 0).split()
        return (int(on_processor) + int(in_queue)) / 1e9

    return work_s


class IterationLog:
    """Says each iteration when it is done, and once more if the script logs something afterwards.

    Attributes:
        newest: What was said of the newest iteration; `None` before the first.
        counts: Whether what is computed is of any iteration; else nothing is said of it.
        total: Updates after which the script's loop ends; `None` if it does not say.
    """

    def __init__(
        self,
        emit: Callable[[AnyEvent], None],
        *,
        newest: Iteration | None = None,
        measure: Callable[[], Mapping[str, float]] = dict,
        clock: Callable[[], float] = time.perf_counter,
        work_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.newest = newest
        self.counts = True
        self.total: int | None = None
        self._told_total: int | None = None
        self._emit = emit
        self._clock, self._work_s = clock, work_s
        self._measure = measure
        self._begun: tuple[int, StepInputs] | None
        self._is_begin_said: bool
        self._values: dict[str, float]
        self._begin_next(clock(), work_s())

    def begin_forward(self) -> None:
        """Attach what is logged from here on to the next iteration."""
        self._is_computing = True

    def begin_with(self, iteration: int, inputs: Callable[[], "StepInputs"]) -> None:
        """Note what the model trains on; only the first call in an iteration counts."""
        if self._begun is None and self.counts:
            self._begun = iteration, inputs()
            self._say_begin()

    def _say_begin(self, *, wait: bool = False) -> None:
        """Say what the iteration began with, once, when that is known."""
        if self._begun is None or self._is_begin_said:
            return
        iteration, inputs = self._begun
        if wait or inputs.is_ready:
            self._is_begin_said = True
            self._emit(IterationBegun(iteration=iteration, inputs=inputs.read()))

    def add(self, values: StateDict) -> None:
        """Attach values to the iteration that is computed, or else to the newest."""
        if not self.counts:
            return
        self._say_begin()  # to log a loss, one waits for a GPU
        numbers = numbers_of(values)
        if self._is_computing or self.newest is None:
            self._values = require_few({**self._values, **numbers})
        else:
            values_too = require_few({**self.newest.values, **numbers})
            self.newest = msgspec.structs.replace(self.newest, values=values_too)
            self._emit(self.newest)

    def to_small(self) -> dict[str, object]:
        """Return what of the newest iteration travels in a version; `iteration_in` finds it there.

        When a node dies before it could say it, whoever restores the version says it again.
        """
        if self.newest is None:
            return {_LAST: {}}
        fields = msgspec.structs.asdict(self.newest)
        return {_LAST: {name: fields[name] for name in fields if name not in _SAID_ANEW}}

    def end(self, iteration: int, *, waited_s: float) -> None:
        """Report an iteration: its optimizer step has ended."""
        self._say_begin(wait=True)
        now_s, worked_s = self._clock(), self._work_s()
        self.newest = Iteration(
            iteration=iteration,
            duration_s=to_microsecond(now_s - self._began_s),
            waited_s=to_microsecond(waited_s),
            work_s=to_microsecond(worked_s - self._worked_s),
            values={**self._measure(), **self._values},
            of=None if self.total == self._told_total else self.total,
        )
        self._told_total = self.total
        self._begin_next(now_s, worked_s)
        self._emit(self.newest)

    def go_back(self, newest: Iteration | None) -> None:
        """Begin the iteration after this one: training went back."""
        self.newest, self.counts = newest, True
        self._begin_next(self._clock(), self._work_s())

    def _begin_next(self, began_s: float, worked_s: float) -> None:
        self._begun, self._is_begin_said = None, False
        self._values = {}
        self._is_computing = False
        self._began_s, self._worked_s = began_s, worked_s


def iteration_in(small: Mapping[str, object]) -> Iteration | None:
    """Return the iteration that made a version; `None` if none did, or there is no version."""
    last = small.get(_LAST)
    return msgspec.convert(last, Iteration) if last else None


# Batches that hold themselves end here.
_DEEPEST: Final = 16


class StepInputs:
    """The inputs of the iteration that is computed; made when its first forward pass begins."""

    def __init__(self, engine: Engine, arguments: object) -> None:
        self._random = random_checksums()
        self._learning_rate = learning_rate(engine)
        self._batch = BatchChecksum(arguments)

    @property
    def is_ready(self) -> bool:
        return self._batch.is_ready

    def read(self) -> Inputs:
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
        return self._arrival is None or bool(self._arrival.query())

    def read(self) -> str:
        if self._arrival is not None:
            self._arrival.synchronize()  # it lies before all that this iteration computes
            self._arrival = None
        if self._sums is not None:
            self._digest.update(self._sums.numpy().data)
            self._sums = None
        return self._digest.hexdigest()


def watch_inputs(engine: Engine, iterations: IterationLog) -> None:
    """Report the inputs of each iteration to `iterations`; an evaluation begins none."""

    @uncompiled
    def before_forward(module: nn.Module, args: object, kwargs: object) -> None:
        if module.training and torch.is_grad_enabled() and not is_trial():
            number = int(engine.global_steps) + 1
            iterations.begin_with(number, lambda: StepInputs(engine, (args, kwargs)))

    models = engine.models if isinstance(engine, TorchEngine) else [engine.module]
    for model in models:
        # First of all hooks: others may cast or move the batch.
        model.register_forward_pre_hook(before_forward, prepend=True, with_kwargs=True)


def random_checksums() -> dict[str, str]:
    """Return the states of the generators of Python, NumPy, torch and the device."""
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
    for name, state in get_cuda_rng_tracker().get_states().items():
        states[f"named {name}"] = state.cpu().numpy().data
    return {name: xxhash.xxh3_64_hexdigest(state) for name, state in states.items()}


def learning_rate(engine: object) -> float | None:
    """Return that of the optimizer's first group, if it is a plain number or lies in CPU memory."""
    groups = getattr(getattr(engine, "optimizer", None), "param_groups", None) or [{}]
    rate = groups[0].get("lr")
    return None if rate is None or _is_elsewhere(rate) else float(rate)


def gradient_norm(engine: object) -> dict[str, float]:
    """`"grad_norm"` of the last update, over all ranks, where reading it waits for nothing."""
    norm = getattr(engine, "_global_grad_norm", None)
    return {} if norm is None or _is_elsewhere(norm) else {"grad_norm": float(norm)}


def _feed(digest: xxhash.xxh3_64, value: object, depth: int) -> Iterator[torch.Tensor]:
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


def _feed_tensor(digest: xxhash.xxh3_64, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
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


def _made_of(tensor: torch.Tensor) -> Sequence[torch.Tensor] | None:
    """Return the tensors that one without own memory is made of, as a DTensor of its shard."""
    if tensor.is_nested:
        found: Sequence[torch.Tensor] = tensor.detach().unbind()
        return found
    if not hasattr(tensor, "__tensor_flatten__"):
        return None
    names, _ = tensor.__tensor_flatten__()
    parts = (getattr(tensor, name) for name in names)  # a DTensor names its mesh, too
    return [part for part in parts if isinstance(part, torch.Tensor)]


def _parts(value: object) -> Iterator[object]:
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
    # Pinned: a copy to pageable memory would wait for the device.
    host = torch.empty_like(sums, device="cpu", pin_memory=True)
    return host.copy_(sums, non_blocking=True)


def _arrival() -> Any:
    """Return a mark on the device's queue of all that was asked for until now."""
    event = get_accelerator().Event()
    event.record()
    return event
