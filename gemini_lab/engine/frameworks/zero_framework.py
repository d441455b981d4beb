"""A DeepSpeed engine under ZeRO as protection sees it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator
from torch import nn

from gemini_lab.engine.contract import StateDict, StateView
from gemini_lab.engine.frameworks.engine_counters import CountedEngine
from gemini_lab.engine.frameworks.framework import Form, Framework, Pieces
from gemini_lab.engine.frameworks.optimizer_state import (
    beside_weights,
    group_options,
    numbers,
    own_values,
    put_beside_weights,
    put_group_options,
    put_own_values,
    require_memory,
)
from gemini_lab.engine.frameworks.payload_blocks import WEIGHT, FlatRun
from gemini_lab.engine.frameworks.resize_state import Heir
from gemini_lab.engine.frameworks.stepping import StepHook, hook_step
from gemini_lab.engine.frameworks.torch_engine import TorchEngine
from gemini_lab.engine.frameworks.torch_framework import TorchFramework
from gemini_lab.engine.frameworks.zero import (
    MOMENTUM,
    forget_order,
    is_muon,
    is_unsharded,
    order_checksum,
    partitions_of,
    put_scalars,
    require_kept,
    scalars_of,
    state_form,
)
from gemini_lab.engine.frameworks.zero_updates import BetaPowers, OptimizerGroups, ScaleWatch
from gemini_lab.engine.rank_agreement import JointOutcome
from gemini_lab.errors import UnsupportedError
from gemini_lab.shard.layout import ShardLayout, TensorSpec, WeightPiece, partition_of

_MASTER: Final = "master"  # beside the names of the optimizer's own tensors
_GRADIENT: Final = "gradient"
_KEEP: Final = "keep_gradients"
_TAKEN_AGAIN: Final = (
    "a step left out weights ({}...) that had a gradient before. DeepSpeed takes that one again to "
    "update them, under ZeRO 3 and if it offloads the optimizer, and a version does not have it: "
    'numbers will differ after a failure. Set "keep_gradients": true in the "gemini" block, which '
    "adds it to each version, or use ZeRO stage 1 or 2 without an offload, or have each layer take "
    "part in every step"
)


class _Slot(NamedTuple):
    """One tensor of the payload."""

    partition: int
    name: str  # in the partition
    dtype: torch.dtype
    numel: int


class ZeroFramework(CountedEngine):
    """The state of a DeepSpeed engine, as its ZeRO stage cuts it.

    Raises:
        UnsupportedError: The engine has state that would not be kept; says what to change.
    """

    def __init__(self, engine: DeepSpeedEngine) -> None:
        self._partitions = partitions_of(engine)
        super().__init__(engine)
        self.stage = int(engine.zero_optimization_stage())
        masters, base = self._partitions.masters(), self._partitions.base
        self._state_forms = [
            state_form(
                base,
                self._partitions.group_of(number),
                master,
                whole=self._partitions.whole_momentum(number),
            )
            for number, master in enumerate(masters)
        ]
        self._powers = BetaPowers(self._partitions)
        if is_muon(base):
            self.unrepeatable = "DeepSpeed makes Muon's updates where it reduces gradients"
        takes_again = bool(self._partitions.leftovers())
        self._keeps_gradients = takes_again and self.settings().get(_KEEP, False) is True
        if self._keeps_gradients and self._partitions.is_offloaded:
            self._require_one_micro_batch()
        self._slots = list(self._lay_slots())
        self._arrived = set[str]()  # weights that have got a gradient since the last update
        self._reached = set[str]()  # and before
        self._left_out = ""  # a weight that an update took an earlier gradient for
        self._zeros: dict[int, torch.Tensor] = {}  # for tensors that do not exist yet

    @property
    def module(self) -> nn.Module:
        module: nn.Module = self._deepspeed.module
        return module

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._partitions.base

    def trained(self) -> Iterator[nn.Parameter]:
        return self._partitions.weights()

    # -- the large part --------------------------------------------------------------------------

    def forms(self) -> Sequence[Form]:
        return [
            (f"{slot.partition}.{slot.name}", str(slot.dtype).removeprefix("torch."), (slot.numel,))
            for slot in self._slots
        ]

    def weight_pieces(self) -> Iterator[WeightPiece]:
        """Return which weights the partitions are of; their moments lie alike."""
        numbers = [index for index, slot in enumerate(self._slots) if slot.name == _MASTER]
        whole = [self._partitions.whole_weights(number) for number in range(len(numbers))]
        part = 0 if self.groups is None else self.groups.model_parallel_rank(self.rank)
        for cut in self._partitions.pieces(numbers):
            piece = replace(cut, part=part)
            yield piece
            partition = self._slots[piece.tensor].partition
            for index, slot in enumerate(self._slots):
                is_whole = slot.name == MOMENTUM and whole[partition]
                if slot.partition == partition and slot.name != _MASTER and not is_whole:
                    yield replace(piece, tensor=index, state=slot.name)

    def unplaced(self) -> list[str]:
        """Return what Muon keeps of whole weights, which several ranks may have parts of."""
        names = self._partitions.names
        return [
            f"{MOMENTUM} of {names[id(weight)]}"
            for number in range(len(self._state_forms))
            for weight in self._partitions.whole_weights(number)
        ]

    def present(self) -> list[bool]:
        return [self._tensor(index) is not None for index in range(len(self._slots))]

    def pieces(self, specs: Sequence[TensorSpec]) -> Pieces:
        """Return one piece a tensor; what does not exist yet is zeros."""
        return [(spec.offset_bytes, self._checked(i, spec)) for i, spec in enumerate(specs)]

    def load(self, values: Sequence[torch.Tensor], present: Sequence[bool]) -> None:
        """Copy tensors over the live ones, made or dropped as they were then, and publish them."""
        verdict = JointOutcome()
        with verdict.withheld():
            self._put(values, present)
        # After `_put`, also if that failed: publishing is a collective that other ranks wait in.
        self._partitions.publish()
        verdict.end()

    def _put(self, values: Sequence[torch.Tensor], present: Sequence[bool]) -> None:
        masters, states = self._partitions.masters(), self._partitions.base.state
        for index, (value, is_present) in enumerate(zip(values, present, strict=True)):
            partition, name, dtype, numel = self._slots[index]
            master = masters[partition]
            if not is_present:
                states.get(master, {}).pop(name, None)
                continue
            target = self._tensor(index)
            if target is None and name == _GRADIENT:
                target = master.grad = torch.empty_like(master.detach(), dtype=dtype)
            elif target is None:
                target = torch.empty(numel, dtype=dtype, device=master.device)
                states.setdefault(master, {})[name] = target
            target.data.copy_(value)

    def updated_tensors(
        self, layout: ShardLayout
    ) -> Sequence[tuple[torch.Tensor, Mapping[str, FlatRun]]]:
        masters = self._partitions.masters()
        found: list[tuple[torch.Tensor, dict[str, FlatRun]]] = [(master, {}) for master in masters]
        for (partition, name, _, numel), spec in zip(self._slots, layout.tensors, strict=True):
            if name == _GRADIENT:
                continue
            run = FlatRun(offset_bytes=spec.offset_bytes, numel=numel, dtype=spec.dtype)
            found[partition][1][WEIGHT if name == _MASTER else name] = run
        return found

    def watch_gradients(self) -> tuple[torch.dtype, Callable[[], float]] | None:
        """In bf16 or fp16, unless they are added up in fp32."""
        dtype = self._partitions.gradient_dtype
        can_watch = hasattr(self._partitions.zero, "unscale_and_clip_grads")
        if dtype not in {torch.bfloat16, torch.float16} or not can_watch:
            return None
        watch = ScaleWatch(self._partitions.zero)
        return dtype, lambda: watch.scale

    def powers_since(self) -> int:
        return self._powers.capture()

    def drop_gradients(self, *, is_computing: bool) -> None:
        """Refuse it between updates: gradients are in ZeRO's own buffers then."""
        if is_computing:
            raise UnsupportedError(
                "DeepSpeed keeps gradients of which no update was made, and training would go back "
                "with them; call protected.rewind after the engine.step() that updates the weights"
            )

    def _lay_slots(self) -> Iterator[_Slot]:
        for partition, master in enumerate(self._partitions.masters()):
            yield _Slot(partition, _MASTER, master.dtype, master.numel())
            for name, (dtype, numel) in self._state_forms[partition].large.items():
                yield _Slot(partition, name, dtype, numel)
            if self._keeps_gradients:
                dtype = self._partitions.gradient_dtype
                yield _Slot(partition, _GRADIENT, dtype, master.numel())

    def _tensor(self, index: int) -> torch.Tensor | None:
        """Return a live tensor of the payload; None if the optimizer has not made it yet."""
        partition, name, *_ = self._slots[index]
        if name == _GRADIENT:
            return self._partitions.leftovers()[partition]
        master = self._partitions.masters()[partition]
        state: StateView = self._partitions.base.state.get(master, {})
        return master if name == _MASTER else state.get(name)

    def _checked(self, index: int, spec: TensorSpec) -> torch.Tensor:
        tensor = self._tensor(index)
        if tensor is None:
            zeros = torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))
            return self._zeros.setdefault(index, zeros)
        self._zeros.pop(index, None)
        require_memory(self._partitions.base, self._slots[index].name, tensor)
        if (tuple(tensor.shape), str(tensor.dtype)) != (spec.shape, f"torch.{spec.dtype}"):
            raise UnsupportedError(
                f"{spec.name} became {tensor.dtype} {[*tensor.shape]}, but was laid out as "
                f"{spec.dtype} {[*spec.shape]}; leave the optimizer's state as its class makes it"
            )
        # Gradients change before the next update.
        return tensor.clone() if self._slots[index].name == _GRADIENT else tensor.detach()

    # -- the small part --------------------------------------------------------------------------

    def capture(self) -> StateDict:
        return {**super().capture(), "optimizer": self._capture_optimizer()}

    def restore(self, small: StateView) -> None:
        self._restore_optimizer(small["optimizer"])
        super().restore(small)

    def recast(self, smalls: Sequence[StateView], heir: Heir) -> StateDict:
        """Return the same; state of partitions is looked up again, as their number may differ."""
        before = [self._partitions_then(number, heir) for number in range(len(self._state_forms))]
        optimizers = [one["optimizer"] for one in smalls]
        common = [{**one, "scalars": None} for one in optimizers]
        scalars = [
            heir.shared([one["scalars"][n] for one in optimizers for n in numbers], "a step count")
            for numbers in before
        ]
        there = [
            {
                spec.name: is_there
                for spec, is_there in zip(layout.tensors, small["present"], strict=True)
            }
            for layout, small in zip(heir.layouts, smalls, strict=True)
        ]
        present = [
            heir.shared(
                [one[f"{n}.{slot.name}"] for one in there for n in before[slot.partition]],
                slot.name,
            )
            for slot in self._slots
        ]
        return {
            **super().recast(smalls, heir),
            "optimizer": {**heir.shared(common, "the optimizer's state"), "scalars": scalars},
            "present": present,
        }

    def _partitions_then(self, partition: int, heir: Heir) -> list[int]:
        """Return the partitions in which a version has the weights of one of today's."""
        names = self._partitions.names_in(partition)
        return sorted(
            {
                partition_of(layout.tensors[piece.tensor].name) or 0
                for layout in heir.layouts
                for piece in layout.pieces
                if not piece.state and piece.weight in names
            }
        )

    def _capture_optimizer(self) -> StateDict:
        zero, base = self._partitions.zero, self._partitions.base
        autocast_scaler = getattr(zero, "torch_autocast_gradscaler", None)
        masters = zip(self._partitions.masters(), self._state_forms, strict=True)
        return {
            "groups": group_options(base),
            "scalars": [scalars_of(base, master, form) for master, form in masters],
            "numbers": own_values(base),
            "beside": beside_weights(base),
            "powers_since": self._powers.capture(),
            "overflow": bool(getattr(zero, "overflow", False)),
            "loss_scaler": numbers(getattr(zero, "loss_scaler", None)),
            "external_loss_scale": getattr(zero, "external_loss_scale", None),
            "autocast_scaler": None if autocast_scaler is None else autocast_scaler.state_dict(),
        }

    def _restore_optimizer(self, saved: StateView) -> None:
        zero, base = self._partitions.zero, self._partitions.base
        put_group_options(base, saved["groups"])
        masters = zip(self._partitions.masters(), self._state_forms, saved["scalars"], strict=True)
        for master, form, scalars in masters:
            put_scalars(base, master, form, scalars)
        put_beside_weights(base, saved.get("beside", []))
        put_own_values(base, saved.get("numbers", {}))  # versions of 0.1.0 have none of these
        self._powers.restore(saved.get("powers_since", 1))
        if hasattr(zero, "overflow"):
            zero.overflow = saved["overflow"]
        if saved["loss_scaler"] is not None:
            vars(zero.loss_scaler).update(saved["loss_scaler"])
        if saved["external_loss_scale"] is not None:
            zero.override_loss_scale(saved["external_loss_scale"])
        if saved["autocast_scaler"] is not None:
            zero.torch_autocast_gradscaler.load_state_dict(saved["autocast_scaler"])

    # -- computing again -------------------------------------------------------------------------

    def end_replay(self) -> None:
        """Partition what ZeRO 3 gathered and saw no gradient leave."""
        if self.stage == 3:
            # Else weights without a gradient stay gathered, and the next forward pass does not
            # expect that.
            self._partitions.zero.parameter_offload.release_backward_leftovers()

    def learned_order(self) -> int:
        """In which modules compute: ZeRO 3 gathers their weights by it."""
        return order_checksum(self._coordinator()) if self.stage == 3 else 0

    def forget_order(self) -> None:
        if self.stage == 3:
            forget_order(self._coordinator())

    def _coordinator(self) -> PartitionedParameterCoordinator:
        return self._partitions.zero.parameter_offload.get_param_coordinator()

    # -- the boundaries --------------------------------------------------------------------------

    def notices(self) -> Sequence[str]:
        return (_TAKEN_AGAIN.format(self._left_out),) if self._left_out else ()

    def hook(self, hook: StepHook) -> Callable[[], None]:
        """In `engine.step`, and where gradients arrive that an update may take again."""
        names, handles = self._partitions.names, list[Any]()
        if self._partitions.leftovers() and not self._keeps_gradients:
            weights: Iterator[Any] = self.trained()
            for weight in (one for one in weights if one.requires_grad):
                arrive = partial(self._note_arrival, names[id(weight)])
                handles.append(weight.register_post_accumulate_grad_hook(arrive))
        unhook = hook_step(
            self._deepspeed,
            hook,
            on_boundary=self._note_gradients,
            on_update=self.note_update,
        )

        def unhook_all() -> None:
            unhook()
            for handle in handles:
                handle.remove()

        return unhook_all

    def _note_arrival(self, name: str, _: torch.Tensor) -> None:
        self._arrived.add(name)

    def _note_gradients(self) -> None:
        if not self._left_out:
            self._left_out = min(self._reached - self._arrived, default="")
        self._reached |= self._arrived
        self._arrived.clear()

    def _require_one_micro_batch(self) -> None:
        """Refuse what has further gradients that DeepSpeed adds to in a later step.

        Raises:
            UnsupportedError: There are several micro-batches.
        """
        if (steps := self._deepspeed.gradient_accumulation_steps()) > 1:
            raise UnsupportedError(
                f"keep_gradients does not go with an offload and {steps} micro-batches, of which "
                "DeepSpeed adds up gradients in places that are in no version; leave the offload "
                "out, or use one micro-batch"
            )


class UnshardedFramework(CountedEngine, TorchFramework):
    """The state of a DeepSpeed pipeline under ZeRO stage 0, whose columns hold the same.

    Raises:
        UnsupportedError: The engine has state that would not be kept; says what to change.
    """

    def __init__(self, engine: DeepSpeedEngine) -> None:
        require_kept(engine)
        inner = TorchEngine(engine.module, engine.optimizer)
        TorchFramework.__init__(self, inner, group=engine.seq_data_parallel_group)
        self._deepspeed = engine
        self._powers = BetaPowers(OptimizerGroups(base=engine.optimizer))

    def meet(self) -> None:
        TorchFramework.meet(self)
        self.count(self._deepspeed)

    def capture(self) -> StateDict:
        powers = {"powers_since": self._powers.capture()}
        return {**TorchFramework.capture(self), **super().capture(), **powers}

    def restore(self, small: StateView) -> None:
        TorchFramework.restore(self, small)
        super().restore(small)
        self._powers.restore(small["powers_since"])

    def recast(self, smalls: Sequence[StateView], heir: Heir) -> StateDict:
        powers = heir.shared([one["powers_since"] for one in smalls], "the optimizer's state")
        there = TorchFramework.recast(self, smalls, heir)
        return {**there, **super().recast(smalls, heir), "powers_since": powers}

    def hook(self, hook: StepHook) -> Callable[[], None]:
        return hook_step(
            self._deepspeed,
            hook,
            on_update=self.note_update,
            afterwards=partial(self.compare_replicas, hook),
        )


def deepspeed_framework(engine: DeepSpeedEngine) -> Framework:
    """Return the view of a DeepSpeed engine.

    Raises:
        UnsupportedError: It has state that would not be kept; says what to change.
    """
    return UnshardedFramework(engine) if is_unsharded(engine) else ZeroFramework(engine)
