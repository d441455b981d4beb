"""Records of a training process for `gemini-lab check`: places, inputs, results, state.

A witness reads what trains and changes nothing, so it is the same in a lab and under plain
torchrun. It reads what the script has, and not what a version keeps of it, because the check looks
for what a version lacks.
"""

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
import xxhash
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gemini_lab.engine.contract import Engine, Protected
from gemini_lab.engine.frameworks.optimizer_state import local_part
from gemini_lab.engine.frameworks.pipeline_stages import is_trial
from gemini_lab.engine.frameworks.stepping import StepHook, hook_step, uncompiled
from gemini_lab.engine.frameworks.tensors import feed, own_part
from gemini_lab.engine.frameworks.torch_engine import TorchEngine, hook_optimizer, reshard
from gemini_lab.engine.frameworks.zero import Partitions, is_unsharded, partitions_of
from gemini_lab.engine.iteration_log import (
    IterationLog,
    gradient_norm,
    random_checksums,
    watch_inputs,
)
from gemini_lab.engine.state.user_state import keepsakes
from gemini_lab.errors import GeminiError
from gemini_lab.log.events import AnyEvent, Iteration, IterationBegun, OfWorker
from gemini_lab.log.witnessed import (
    GENERATOR,
    PlaceName,
    PlaceSeen,
    StateSeen,
    Struck,
    WitnessOrder,
    append,
    read,
    records_file,
    values_file,
)

KILLED_S: Final = 60.0
"""How long a process waits at its place to be killed."""
_DEEPEST: Final = 8
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))
_LEAVES: Final = (torch.Tensor, *_PLAIN)


class Witness:
    """A recorder of the places that a rank's script reaches, and of its state after iterations.

    Attributes:
        is_early: Whether the script has yet to reach the loop that made the restored version. All
            state is put back there, so what it is before does not count.
    """

    def __init__(
        self,
        order: WitnessOrder,  # what a check asks of this process
        engine: Engine,  # what trains
        *,
        epoch: Callable[[], int],  # returns the number of this start
        client_state: Mapping[str, Any] | None = None,  # what `protect` was given
        also: Mapping[str, object] | None = None,  # the same
    ) -> None:
        self._order, self._engine, self._epoch = order, engine, epoch
        self._rank = int(engine.global_rank)
        self._folder = Path(order.folder)
        self._client_state = client_state
        self._also = keepsakes(also or {})
        self._seen: set[tuple[PlaceName, int]] = set()
        self._is_to_be_read = True  # the state, where this iteration ends
        self._loops = 0
        self._passes = 0  # with gradients, since the last update
        self.is_early: Callable[[], bool] = lambda: False

    @property
    def version(self) -> int:
        """How many updates are done."""
        return int(self._engine.global_steps)

    def hear(self, event: AnyEvent) -> None:
        """Record an event of an iteration."""
        if isinstance(event, Iteration | IterationBegun):
            self._write(event)

    def reach(self, place: PlaceName) -> None:
        """Record that the script is there, and wait if it is to be killed there."""
        version = self.version
        if (place, version) in self._seen or self.is_early():
            return
        self._seen.add((place, version))
        self._write(PlaceSeen(place=place, version=version))
        for kill in self._order.kills:
            if (kill.place, kill.version, kill.rank) == (place, version, self._rank):
                self._stand(kill.number)

    def _stand(self, number: int) -> None:
        """Wait to be killed, unless that was done; kills at one version keep their order."""
        ranks = {kill.rank for kill in self._order.kills}
        told = (one for rank in ranks for one in read(records_file(self._folder, rank)))
        struck = {one.number for one in told if isinstance(one, Struck)}
        here = [k.number for k in self._order.kills if k.version == self.version]
        if number in struck or any(one not in struck for one in here if one < number):
            return
        self._write(Struck(number=number))
        time.sleep(KILLED_S)
        raise GeminiError(
            f"`gemini-lab check` was to kill rank {self._rank} here, and has not done so within "
            f"{KILLED_S:.0f} s; is it still there?"
        )

    def end_iteration(self, *, is_end: bool = False) -> None:
        """Record the state, once after each update, when the script is at its loop's top."""
        if not (self._is_to_be_read or is_end) or self.is_early():
            return
        self._is_to_be_read = False
        pieces = dict(self._pieces())
        digests = {name: digest_of(value) for name, value in pieces.items()}
        self._write(StateSeen(version=self.version, is_end=is_end, digests=digests))
        if is_end or self.version == self._order.iterations:
            self._keep_values(pieces)

    def end_update(self) -> None:
        """Expect another state at the iteration's end."""
        self._is_to_be_read = True
        self._passes = 0

    def begin_loop(self) -> None:
        """Record a further loop of the script."""
        self._loops += 1
        if self._loops > 1:
            self.reach("loop begins")

    def end_script(self) -> None:
        """Record the state and the place at the script's end."""
        self.end_iteration(is_end=True)
        self.reach("script over")

    def watch_passes(self) -> None:
        """Record evaluations, an iteration's second pass, and the moment between two steps.

        An evaluation is a pass without gradients, also of the model inside DDP alone.
        """
        engine = self._engine
        models = engine.models if isinstance(engine, TorchEngine) else [engine.module]

        @uncompiled
        def before_forward(module: nn.Module, *_: object) -> None:
            if is_trial():
                return
            if not torch.is_grad_enabled():
                if self.version:
                    self.reach("evaluation")
            elif any(module is one for one in models):
                self._passes += 1
                if self._passes > 1:
                    self.reach("second pass")

        @uncompiled
        def before_step(*_: object) -> None:
            if isinstance(engine, TorchEngine) and engine.is_within_update:
                self.reach("between steps")

        for module in models:
            inside = module.module if isinstance(module, DistributedDataParallel) else module
            for one in {module, inside} if not hasattr(inside, "_orig_mod") else {module}:
                one.register_forward_pre_hook(before_forward, prepend=True)
        for optimizer in engine.optimizers if isinstance(engine, TorchEngine) else ():
            optimizer.register_step_pre_hook(before_step)

    # -- the state ---------------------------------------------------------------------------------

    def _pieces(self) -> Iterator[tuple[str, object]]:
        engine: Any = self._engine
        is_torch = isinstance(engine, TorchEngine)
        module: nn.Module = engine.bare if is_torch else engine.module
        if is_torch:
            # After an evaluation FSDP2 holds whole weights, and after a restore its shards: both
            # are the same state.
            reshard(module)
        for name, weight in module.named_parameters():
            yield f"weight {name}", own_part(weight)
        for name, buffer in module.named_buffers():
            yield f"buffer {name}", buffer
        yield "modes of the model's parts", [part.training for part in module.modules()]
        yield "which weights are trained", [one.requires_grad for one in module.parameters()]
        if is_torch:
            names = dict(module.named_parameters())
            for number, optimizer in enumerate(engine.optimizers):
                beside = f" {number}" if number else ""
                for name, value in _of_optimizer(optimizer, names):
                    yield name + beside, value
        else:
            if is_unsharded(engine):
                yield from _of_optimizer(engine.optimizer, dict(module.named_parameters()))
            else:
                yield from _of_partitions(partitions_of(engine))
            counters = ("micro_steps", "skipped_steps", "global_samples")
            yield "counters", [getattr(engine, name, None) for name in counters]
            yield "seeds of a pipeline's layers", getattr(module, "micro_offset", None)
        for name, state in random_checksums().items():
            yield f"{GENERATOR}{name}", state
        yield from _leaves("client_state", dict(self._client_state or {}))
        for name, one in self._also.items():
            yield from _leaves(f"also[{name!r}]", one.read())

    def _keep_values(self, pieces: Mapping[str, object]) -> None:
        file = values_file(self._folder, self._rank)
        draft = file.with_suffix(f".{os.getpid()}")
        kept = {
            name: local_part(value).cpu() if isinstance(value, torch.Tensor) else repr(value)[:200]
            for name, value in pieces.items()
        }
        torch.save(kept, draft)
        draft.replace(file)

    def _write(self, record: OfWorker) -> None:
        whose = msgspec.structs.replace(record, rank=self._rank, epoch=self._epoch())
        append(records_file(self._folder, self._rank), whose)  # type: ignore[arg-type]


class WitnessedSteps:
    """A hook in an engine's step with a witness beside it."""

    def __init__(self, witness: Witness, inner: StepHook) -> None:
        self._witness, self._inner = witness, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def begin_forward(self) -> None:
        """Record the state, because the iteration before has ended."""
        self._inner.begin_forward()
        self._witness.end_iteration()
        self._witness.reach("forward")

    def before_update(self) -> float:
        """Record the place: all gradients are there, and the version before is whole."""
        waited_s = self._inner.before_update()
        self._witness.reach("update")
        return waited_s

    def after_update(self, waited_s: float) -> None:
        """Expect another state at the iteration's end."""
        self._inner.after_update(waited_s)
        self._witness.end_update()


class WitnessedLoops:
    """The protected script, with a witness in its loops."""

    def __init__(
        self,
        witness: Witness,
        inner: Protected,
        iterations: IterationLog | None = None,  # gets what is logged, if no lab does
    ) -> None:
        self._witness, self._inner, self._iterations = witness, inner, iterations

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def steps(self, total: int, /) -> Iterator[int]:
        """Give the loop's numbers; an iteration ends at the top."""
        return self._told(self._inner.steps(total), self._witness.end_iteration)

    def epochs(self, total: int, /) -> Iterator[int]:
        """Give the loop's numbers; iterations end inside of it."""
        return self._told(self._inner.epochs(total), lambda: None)

    def log(self, **values: float) -> None:
        """Attach values to the iteration."""
        self._inner.log(**values)
        if self._iterations is not None:
            self._iterations.add(values)

    def _told(self, numbers: Iterator[int], at_top: Callable[[], None]) -> Iterator[int]:
        self._witness.begin_loop()
        for number in numbers:
            at_top()
            yield number
        at_top()
        self._witness.reach("loop over")


class _PlainSteps:
    """The hook without a lab: records what iterations begin with, and what they compute."""

    counts = True
    remarks: Sequence[str] = ()

    def __init__(self, engine: Any, witness: Witness) -> None:
        self.iterations = IterationLog(witness.hear, measure=lambda: gradient_norm(engine))
        watch_inputs(engine, self.iterations)
        self.begin_forward = self.iterations.begin_forward
        self._engine = engine
        # A watch over updates listens there already, and the hook takes its place.
        self._before = getattr(engine, "before_update", _nothing)
        self._after = getattr(engine, "after_update", _nothing)

    def before_update(self) -> float:
        self._before()
        return 0.0

    def before_writing(self) -> None:
        pass

    def after_update(self, waited_s: float) -> None:
        self._after()
        self.iterations.end(int(self._engine.global_steps), waited_s=waited_s)


def is_looked_at() -> bool:
    """Return whether this process is one of a check's."""
    return WitnessOrder.of(os.environ) is not None


def beside_unprotected(unprotected: Protected, engine: Engine, **given: Any) -> Protected:
    """Return what `protect` gives without a lab, with a witness if a check looks on."""
    found = look_without_lab(engine, **given)
    return unprotected if found is None else WitnessedLoops(found[0], unprotected, found[1])


def look_without_lab(
    engine: Any,
    *,
    client_state: Mapping[str, Any] | None = None,
    also: Mapping[str, object] | None = None,
) -> tuple[Witness, IterationLog] | None:
    """Record what trains without a lab, if a check looks at this process."""
    order = WitnessOrder.of(os.environ)
    if order is None:
        return None
    witness = Witness(order, engine, epoch=lambda: 0, client_state=client_state, also=also)
    plain = _PlainSteps(engine, witness)
    hook = hook_optimizer if isinstance(engine, TorchEngine) else hook_step
    hook(engine, WitnessedSteps(witness, plain))

    def end() -> None:
        if getattr(sys, "last_value", None) is None:  # else the script has failed
            witness.end_script()

    atexit.register(end)
    return witness, plain.iterations


def digest_of(value: object) -> str:
    """Return sixteen hexadecimal digits of a piece of state."""
    digest = xxhash.xxh3_64()
    if isinstance(value, torch.Tensor):
        part = local_part(value)
        digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
        if part.numel() and part.layout == torch.strided and not part.is_meta:
            feed(digest, part)
    else:
        digest.update(repr(value).encode(errors="surrogatepass"))
    return digest.hexdigest()


def _of_optimizer(
    optimizer: torch.optim.Optimizer, weights: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, object]]:
    """Give an optimizer's options and state, by the names of its weights."""
    yield from _options(optimizer)
    names = {id(weight): name for name, weight in weights.items()}
    trained = (weight for group in optimizer.param_groups for weight in group["params"])
    for number, weight in enumerate(trained):
        name = names.get(id(weight), f"parameter {number}")
        yield from _leaves(f"optimizer's state of {name}", optimizer.state.get(weight, {}))


def _of_partitions(partitions: Partitions) -> Iterator[tuple[str, object]]:
    """Give the same of a ZeRO optimizer, and its master weights.

    Partitions are cut by weights, because ZeRO 3 never writes the padding between them: it has
    what was in that memory before, so it differs from process to process.
    """
    yield from _options(partitions.base)
    masters = partitions.masters()
    for piece in partitions.pieces(range(len(masters))):
        master = masters[piece.tensor]
        cut = slice(piece.tensor_offset, piece.tensor_offset + piece.numel)
        yield f"master weight {piece.weight}", master.view(-1)[cut]
        state = partitions.base.state.get(master, {})
        for name, value in _leaves(f"optimizer's state of {piece.weight}", state):
            if isinstance(value, torch.Tensor) and value.numel() == master.numel():
                yield name, value.view(-1)[cut]
            else:
                yield name, value


def _options(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, object]]:
    for place, group in enumerate(optimizer.param_groups):
        options = {name: value for name, value in group.items() if name != "params"}
        yield from _leaves(f"optimizer's group {place}", options)


def _leaves(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, object]]:
    """Give the tensors and plain values in containers, by where they are."""
    if isinstance(value, _LEAVES) or depth >= _DEEPEST:
        yield name, value if isinstance(value, _LEAVES) else type(value).__name__
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}", inner, depth + 1)
    elif isinstance(value, list | tuple):
        if all(isinstance(inner, _PLAIN) for inner in value):
            yield name, value
            return
        for place, inner in enumerate(value):
            yield from _leaves(f"{name}.{place}", inner, depth + 1)
    elif hasattr(value, "tobytes"):  # an array
        yield name, value.tobytes().hex()[:4096]
    else:
        yield name, type(value).__name__


def _nothing() -> None:
    pass
