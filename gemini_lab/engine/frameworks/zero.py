"""A view of DeepSpeed's ZeRO optimizers: partitions of master weights, and the state kept for each.

ZeRO shards the optimizer (stage 1), the gradients (stage 2) and the weights (stage 3) over the
ranks. All three leave each rank the same kind of state: some flat partitions of the master weights,
and a base optimizer whose state is kept per partition.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain, groupby
from typing import ClassVar, Final

import torch
import torch.distributed as dist
import xxhash
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.base_optimizer import ZeROOptimizer
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.zero.offload_config import (
    DeepSpeedZeroOffloadOptimizerConfig,
    DeepSpeedZeroOffloadParamConfig,
    OffloadDeviceEnum,
)
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from gemini_lab.engine.contract import StateDict, StateView
from gemini_lab.engine.frameworks.optimizer_state import (
    require_none_beside,
    require_plain,
    state_for,
)
from gemini_lab.engine.frameworks.tensors import ZeroParameter, held_of
from gemini_lab.engine.private_names import require
from gemini_lab.errors import UnsupportedError
from gemini_lab.shard.layout import WeightPiece

MOMENTUM: Final = "momentum_buffer"
"""The name of Muon's state in DeepSpeed, which makes it outside of the optimizer."""
STAND_IN_NUMEL: Final = 61
"""Elements of the stand-in: no partition's worth of memory is taken to look at a form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateForm:
    """The form of one partition's state."""

    # Tensors: their types and numbers of elements by name, in order. Most have the partition's.
    large: dict[str, tuple[torch.dtype, int]]
    devices: dict[str, torch.device]  # where tensors of one element are kept, by name


def state_form(
    optimizer: torch.optim.Optimizer,
    group: StateView,
    master: torch.Tensor,
    *,
    whole: Mapping[str, tuple[torch.dtype, int]],
) -> StateForm:
    """Return the form of the state that `optimizer` keeps, or will keep, for a partition.

    Args:
        optimizer: The base optimizer.
        group: The parameter group of the partition.
        master: The partition of the master weights.
        whole: What DeepSpeed itself keeps in that state of whole weights, by name.

    Raises:
        UnsupportedError: It keeps what is neither of the partition's shape nor small.
    """
    require_none_beside(optimizer, trained=(master,))
    state, shape = optimizer.state.get(master), master.shape
    if not state:
        twin = master.detach()[:STAND_IN_NUMEL].requires_grad_(master.requires_grad)
        state, shape = state_for(optimizer, group, twin), twin.shape
    large, devices = {**whole}, {}
    for name in sorted(state, key=str):
        value = state[name]
        if name in whole:
            continue
        if not isinstance(value, torch.Tensor):
            require_plain(optimizer, name, value)
        elif value.shape == shape:
            large[name] = (value.dtype, master.numel())
        elif value.numel() == 1:
            devices[name] = value.device
        else:
            raise _of_another_shape(optimizer, name, value)
    return StateForm(large=large, devices=devices)


def scalars_of(
    optimizer: torch.optim.Optimizer, master: torch.Tensor, form: StateForm
) -> StateDict:
    """Return a partition's state beside its large tensors, such as a step count.

    Raises:
        UnsupportedError: There is a large tensor that was not foreseen.
    """
    state: StateView = optimizer.state.get(master, {})
    scalars = {name: value for name, value in state.items() if name not in form.large}
    for name, value in scalars.items():
        if isinstance(value, torch.Tensor) and value.numel() > 1:
            raise UnsupportedError(
                f"the optimizer {type(optimizer).__name__} made a tensor {name!r} of "
                f"{value.numel()} elements that it had not made at its first step; use one that "
                "makes all of its state then"
            )
    return scalars


def put_scalars(
    optimizer: torch.optim.Optimizer,
    master: torch.Tensor,
    form: StateForm,
    scalars: StateView,
) -> None:
    """Put back what `scalars_of` gave, and nothing else beside the large tensors."""
    before = optimizer.state.pop(master, {})
    state = {name: value for name, value in before.items() if name in form.large}
    for name, value in scalars.items():
        is_tensor = isinstance(value, torch.Tensor)
        state[name] = value.to(form.devices.get(name, value.device)) if is_tensor else value
    if state:  # an optimizer begins anew where it finds none
        optimizer.state[master] = state


def _of_another_shape(
    optimizer: torch.optim.Optimizer, name: str, value: torch.Tensor
) -> UnsupportedError:
    return UnsupportedError(
        f"the optimizer {type(optimizer).__name__} keeps {name!r} in the shape "
        f"{[*value.shape]} for a flat partition of ZeRO's, which is neither the partition's nor "
        "one number; use one that keeps state element by element, or plain PyTorch with "
        "fully_shard"
    )


# Name-mangled by Python; DeepSpeed gives the order of modules nowhere else.
_MODULES: Final = "_PartitionedParameterCoordinator__submodule_order"


def order_checksum(coordinator: PartitionedParameterCoordinator) -> int:
    """Return the order's checksum of 63 bits; 0 before it is learned, or if DeepSpeed hides it."""
    modules = getattr(coordinator, _MODULES, ())
    if not modules or not coordinator.is_complete_trace():
        return 0
    seen = repr([module.ds_id for module in modules]).encode()
    return xxhash.xxh3_64_intdigest(seen) >> 1 or 1


def forget_order(coordinator: PartitionedParameterCoordinator) -> None:
    """Discard the order, so that it is learned again as by a new engine."""
    if not coordinator.is_invalid_trace():
        # DeepSpeed has no public way to learn the order again, and invalidates its trace like this.
        coordinator._invalidate_trace()  # noqa: SLF001


def gather_together(weights: Sequence[ZeroParameter]) -> list[ZeroParameter]:
    """Gather weights of which every rank has a part; all ranks call it together.

    Args:
        weights: In the same order on all ranks, none of them gathered.

    Returns:
        Those that are left to DeepSpeed: they are not sent as they are kept.
    """
    plain = [weight for weight in weights if _is_plain(weight)]
    for (group, _), alike in groupby(plain, lambda w: (w.ds_process_group, w.ds_tensor.dtype)):
        _gather_alike([*alike], group)
    return [weight for weight in weights if not _is_plain(weight)]


def _gather_alike(weights: Sequence[ZeroParameter], group: dist.ProcessGroup) -> None:
    device = get_accelerator().current_device_name()
    parts = [weight.ds_tensor.detach().to(device).reshape(-1) for weight in weights]
    # One collective for all weights of a type: each small one would cost a round of the network.
    ours = torch.cat(parts)
    theirs = ours.new_empty(dist.get_world_size(group) * ours.numel())
    dist.all_gather_into_tensor(theirs, ours, group=group)
    columns = torch.split(theirs.view(-1, ours.numel()), [part.numel() for part in parts], dim=1)
    for weight, column in zip(weights, columns, strict=True):
        whole = torch.cat([*column])[: weight.ds_numel]  # behind it, the last rank's part is filled
        weight.data = whole.view(weight.ds_shape)
        weight.ds_status = ZeroParamStatus.AVAILABLE


def _is_plain(weight: ZeroParameter) -> bool:
    """Return whether its part is sent as it is: not quantized, without a second copy on a node."""
    return not hasattr(weight.ds_tensor, "ds_quant_scale") and weight.ds_secondary_tensor is None


class Partitions(ABC):
    """A rank's part of a ZeRO engine's state."""

    # Where DeepSpeed's optimizer has this rank's partitions of the master weights.
    MASTERS: ClassVar[str]
    WEIGHTS: ClassVar[str]  # where it has the model's weights, by partition

    # What DeepSpeed's optimizer keeps of loss scaling, beside its tensors.
    SCALING: ClassVar[tuple[str, ...]] = (
        "external_loss_scale",
        "loss_scaler",
        "overflow",
        "torch_autocast_gradscaler",
    )

    def __init__(self, engine: DeepSpeedEngine) -> None:
        self.zero = engine.optimizer
        self.base: torch.optim.Optimizer = engine.optimizer.optimizer
        self.names: dict[int, str] = {
            id(weight): name for name, weight in engine.module.named_parameters()
        }

    def masters(self) -> Sequence[torch.Tensor]:
        """Return this rank's flat partitions of the master weights: live, in a fixed order."""
        partitions: Sequence[torch.Tensor] = getattr(self.zero, self.MASTERS)
        return partitions

    def weights(self) -> Iterator[torch.nn.Parameter]:
        return chain.from_iterable(getattr(self.zero, self.WEIGHTS))

    @abstractmethod
    def pieces(self, tensors: Sequence[int]) -> Iterator[WeightPiece]:
        """Yield the parts of weights in them, given each partition's number in the payload."""

    def weights_in(self, partition: int) -> Sequence[torch.Tensor]:
        """Return the weights of which all ranks together hold a partition of this number."""
        weights: Sequence[torch.Tensor] = getattr(self.zero, self.WEIGHTS)[partition]
        return weights

    def names_in(self, partition: int) -> set[str]:
        return {self.names[id(weight)] for weight in self.weights_in(partition)}

    def whole_weights(self, partition: int) -> Sequence[torch.Tensor]:
        """Return the weights of whose momentum this rank keeps all, for a partition with Muon."""
        del partition
        return ()

    def whole_momentum(self, partition: int) -> dict[str, tuple[torch.dtype, int]]:
        """Return the form of that momentum by its name; empty if there is none."""
        weights = self.whole_weights(partition)
        numel = sum(weight.numel() for weight in weights)
        if not weights:
            return {}
        # In the type in which gradients are added up, which DeepSpeed tells by a private name only.
        is_apart = self.zero.use_grad_accum_attribute
        dtype = self.zero.gradient_accumulation_dtype if is_apart else self.zero.dtype
        return {MOMENTUM: (dtype, numel)}

    @abstractmethod
    def publish(self) -> None:
        """Bring the master weights to the model's own weights, on all ranks together."""

    def leftovers(self) -> Sequence[torch.Tensor | None]:
        """Return each partition's gradients, if an update takes them again, or nothing.

        DeepSpeed does not clear what it offloads: a weight that a step leaves out, as of a layer
        that is dropped at random, is updated with the gradient of the last step that had it.
        """
        return [master.grad for master in self.masters()] if self.is_offloaded else ()

    @property
    def is_offloaded(self) -> bool:
        """Return whether the optimizer and its gradients are in CPU memory beside a device's."""
        zero = self.zero
        return bool(
            getattr(zero, "cpu_offload", False) or getattr(zero, "offload_optimizer", False)
        )

    @property
    def gradient_dtype(self) -> torch.dtype:
        """In which a rank's part of the reduced gradients is added up; fp32 where that is unknown.

        What is offloaded is added up in buffers of its own.
        """
        dtype: torch.dtype = getattr(self.zero, "gradient_accumulation_dtype", torch.float32)
        return torch.float32 if self.is_offloaded else dtype

    def group_of(self, partition: int) -> StateDict:
        return self.base.param_groups[partition]


class Stage12(Partitions):
    """ZeRO stages 1 and 2: each group of weights is one flat tensor, cut into equal parts."""

    MASTERS = "single_partition_of_fp32_groups"
    WEIGHTS = "bit16_groups"

    def pieces(self, tensors: Sequence[int]) -> Iterator[WeightPiece]:
        for group, tensor in enumerate(tensors):
            weights = self.zero.round_robin_bit16_groups[group]
            offsets = self.zero.round_robin_bit16_offsets[group]
            yield from self._cut(group, tensor, weights, offsets)

    def publish(self) -> None:
        self.zero.update_lp_params()

    def whole_weights(self, partition: int) -> Sequence[torch.Tensor]:
        """Return those that have any part in this rank's partition: Muon needs whole gradients."""
        if not is_muon(self.base):
            return ()
        weights: Sequence[torch.Tensor] = self.zero.params_in_partition[partition]
        return weights if weights and getattr(weights[0], "use_muon", False) else ()

    def _cut(
        self, group: int, tensor: int, weights: Sequence[torch.Tensor], offsets: Sequence[int]
    ) -> Iterator[WeightPiece]:
        """Return what lies in this rank's part of a group, whose weights begin at `offsets`."""
        size = self.masters()[group].numel()
        # Of the group itself: a script may have destroyed the process group of all by its end.
        rank = self.zero.real_dp_process_group[group].rank()
        for weight, offset in zip(weights, offsets, strict=True):
            start = max(offset, rank * size)
            end = min(offset + weight.numel(), (rank + 1) * size)
            if start < end:
                yield WeightPiece(
                    weight=self.names[id(weight)],
                    weight_offset=start - offset,
                    tensor=tensor,
                    tensor_offset=start - rank * size,
                    numel=end - start,
                )


class Stage1WideGradients(Stage12):
    """ZeRO stage 1 with bf16 weights whose gradients are added up in fp32."""

    MASTERS = "fp32_groups_flat_partition"
    WEIGHTS = "bf16_groups"
    SCALING = ("external_loss_scale", "overflow", "torch_autocast_gradscaler")

    def pieces(self, tensors: Sequence[int]) -> Iterator[WeightPiece]:
        for group, tensor in enumerate(tensors):
            weights, offsets, end = self.zero.bf16_groups[group], [], 0
            for weight in weights:
                offsets.append(end)
                end += weight.numel()
            yield from self._cut(group, tensor, weights, offsets)


class Stage3(Partitions):
    """ZeRO stage 3: each weight is cut into equal parts; a sub-group joins the parts of several."""

    MASTERS = "fp32_partitioned_groups_flat"  # one a sub-group
    WEIGHTS = "fp16_groups"

    def group_of(self, partition: int) -> StateDict:
        """Return the parameter group that a sub-group was cut from."""
        group: int = self.zero.sub_group_to_group_id[partition]
        return self.base.param_groups[group]

    def pieces(self, tensors: Sequence[int]) -> Iterator[WeightPiece]:
        """Yield this rank's part of each weight; the last ranks' may be shorter, or none."""
        for weights, tensor in zip(self.zero.fp16_groups, tensors, strict=True):
            tensor_offset = 0
            for weight in weights:
                size, (start, held) = weight.partition_numel(), held_of(weight)
                if held:
                    yield WeightPiece(
                        weight=self.names[id(weight)],
                        weight_offset=start,
                        tensor=tensor,
                        tensor_offset=tensor_offset,
                        numel=held,
                    )
                tensor_offset += size

    def leftovers(self) -> Sequence[torch.Tensor | None]:
        """Return them always: this stage clears none."""
        if self.is_offloaded:
            return super().leftovers()
        sizes = [master.numel() for master in self.masters()]
        parts: Sequence[torch.Tensor] = self.zero.grad_partitions_flat_buffer.split(sizes)
        return parts

    def publish(self) -> None:
        """Copy this rank's parts; gather the weights that stay gathered."""
        zero = self.zero
        zero.checkpoint_event_prologue()  # gives up whatever was gathered of the old weights
        for index, master in enumerate(zero.fp32_partitioned_groups_flat):
            zero.fp16_partitioned_groups_flat[index].data.copy_(master.data)
            # As its own checkpoint loading: the weights' parts are views of the flat tensor.
            zero._unflatten_partitioned_parameters(index)  # noqa: SLF001
        if gather_together(zero.persistent_parameters):  # those that stage 3 keeps gathered
            zero.checkpoint_event_epilogue()


_VIEWS: Final[dict[type, type[Partitions]]] = {
    DeepSpeedZeroOptimizer: Stage12,
    BF16_Optimizer: Stage1WideGradients,
    DeepSpeedZeroOptimizer_Stage3: Stage3,
}


def partitions_of(engine: DeepSpeedEngine) -> Partitions:
    """Return the view of `engine`'s ZeRO optimizer.

    Raises:
        UnsupportedError: The engine has state that would not be kept; says what to change.
    """
    require_kept(engine)
    view = _VIEWS.get(type(engine.optimizer))
    if view is None:
        raise UnsupportedError(
            "this engine cannot be protected: it has the optimizer wrapper "
            f"{type(engine.optimizer).__name__}; use plain ZeRO stage 1, 2 or 3 with an optimizer"
        )
    require(engine.optimizer, *view.SCALING, package="deepspeed")
    return view(engine)


def require_kept(engine: DeepSpeedEngine) -> None:
    """Refuse an engine with state that no version would have.

    Raises:
        UnsupportedError: It has some; says what to change.
    """
    for found, way_out in obstacles(engine):
        raise UnsupportedError(f"this engine cannot be protected: it has {found}; {way_out}")
    names = ("_config", "_is_gradient_accumulation_boundary", "_take_model_step")
    require(engine, *names, package="deepspeed")


def is_unsharded(engine: DeepSpeedEngine) -> bool:
    """Return whether it is a pipeline whose optimizer steps the weights themselves."""
    return engine.pipeline_parallelism and isinstance(engine.optimizer, torch.optim.Optimizer)


def unevenness(engine: DeepSpeedEngine) -> str:
    """Return why no rank could compute for another, in words; the same on all ranks."""
    if engine.pipeline_parallelism:
        return "its ranks train different layers, as the stages of a pipeline"
    if engine.has_moe_layers:
        return "one name is another expert on each rank (deepspeed.moe)"
    if engine.mp_world_size > 1 or engine.autotp_size() > 1:
        return "its ranks hold parts of weights that are cut once more than ZeRO says (AutoTP)"
    if engine.sequence_parallel_size > 1:
        return "its ranks compute parts of each sequence together (Ulysses)"
    return ""


def data_parallel_ranks_of(engine: DeepSpeedEngine) -> Sequence[int]:
    """Return the ranks over which ZeRO cuts all that this rank holds; none if there are several.

    Experts have other such groups than the rest, and those that read parts of a sequence together
    come and go together.
    """
    if engine.has_moe_layers or engine.sequence_parallel_size > 1:
        return ()
    return dist.get_process_group_ranks(engine.seq_data_parallel_group)


_AXES: Final = {"pipe": "pp", "data": "dp", "model": "tp"}
"""What people call the axes of a pipeline's grid."""


def place_of(engine: DeepSpeedEngine) -> str:
    """Return a rank's place on each axis, for people; empty if ZeRO alone shares the model."""
    if not unevenness(engine):
        return ""
    if engine.pipeline_parallelism:
        place = engine.module.topology().get_coord(engine.global_rank)._asdict()
    else:
        groups = {"dp": engine.data_parallel_group, "ep": None, "sp": None}
        groups["ep"] = next(iter(engine.expert_parallel_group.values()), None)
        if engine.sequence_parallel_size > 1:
            groups["sp"] = engine.seq_parallel_group
        place = {axis: group.rank() for axis, group in groups.items() if group is not None}
        if engine.mp_world_size > 1:
            place["tp"] = engine.mpu.get_model_parallel_rank()
    return ", ".join(f"{_AXES.get(axis, axis)} {at}" for axis, at in place.items())


Obstacle = tuple[str, str]
"""What was found, and the way out."""

_OWN_COUNTS: Final = {
    "compression_training": True,
    "curriculum_learning": False,
    "progressive_layer_drop": False,
    "quantize_training": False,
}
"""Blocks of DeepSpeed's configuration that older releases of 0.19 have, and newer ones refuse, and
whether one is on that does not say so."""
_AUTO_EP: Final = "expert_parallel"
_WAITS_FOR_ALL: Final = (0, 19, 8)
"""DeepSpeed's first release whose ZeRO 3 waits for all of the gathers that it began together."""
_COMPRESSED: Final = ("Onebit", "OneBit", "ZeroOne")
"""How the names of optimizers begin that send a gradient's signs, and keep what that left out."""


def obstacles(engine: DeepSpeedEngine) -> Iterator[Obstacle]:
    """Yield all that stands against protecting `engine`; nothing in most cases."""
    yield from of_release(
        version("deepspeed"), stage=engine.zero_optimization_stage(), device=engine.device.type
    )
    # Blocks that this release of DeepSpeed does not know are only in the raw configuration.
    yield from of_blocks(engine._config._param_dict)  # noqa: SLF001
    if is_unsharded(engine):
        if engine.torch_autocast_z0_gradscaler is not None:
            yield "torch_autocast in fp16 under ZeRO stage 0", "use bfloat16, or ZeRO stage 1"
        return
    if not engine.zero_optimization() and type(engine.optimizer) not in _VIEWS:
        yield "ZeRO stage 0", 'set "zero_optimization": {"stage": 1}, 2 or 3'
        return
    yield from _of_placement(engine)
    if engine.data_efficiency_enabled():
        yield "the data efficiency library", 'set "data_efficiency": {"enabled": false}'
    yield from _of_optimizer(engine.optimizer)


def of_release(release: str, *, stage: int, device: str) -> Iterator[Obstacle]:
    """Yield a release of DeepSpeed that computes wrong, unseen.

    Before 0.19.8 ZeRO 3 waits for the last of several gathers alone. Gloo's others may be under way
    still, and a rank now and then computes with weights that have not come.

    Args:
        release: DeepSpeed's, such as `0.19.7` or `0.19.8+cpu`.
        stage: ZeRO's.
        device: The type of the engine's.
    """
    numbers = tuple(int(one) for one in re.findall(r"\d+", release)[:3])
    if stage == 3 and device == "cpu" and numbers < _WAITS_FOR_ALL:
        yield (
            f"DeepSpeed {release}, whose ZeRO 3 on CPUs computes with weights still on their way",
            "pip install 'deepspeed>=0.19.8,<0.20', or use ZeRO stage 1 or 2",
        )


def of_blocks(config: StateView) -> Iterator[Obstacle]:
    """Yield blocks of a configuration whose state no version has, or that were never tried."""
    for name, is_on in _OWN_COUNTS.items():
        block = config.get(name)
        if isinstance(block, Mapping) and block.get("enabled", is_on):
            yield f"{name!r}, which counts for itself what it has done", f"leave {name!r} out"
    if (config.get(_AUTO_EP) or {}).get("enabled"):
        yield (
            f"{_AUTO_EP!r} (AutoEP), which was never tried with versions",
            "use deepspeed.moe, or experts of your own in plain PyTorch",
        )


def _of_placement(engine: DeepSpeedEngine) -> Iterator[Obstacle]:
    """Yield state that lies where a version does not reach it."""
    if any(map(_is_on_nvme, (engine.zero_offload_optimizer(), engine.zero_offload_param()))):
        yield (
            "offload to NVMe (ZeRO-Infinity)",
            'set the "device" of "offload_optimizer" and "offload_param" to "cpu" or "none"',
        )
    if engine.zero_hpz_partition_size() > 1:
        yield (
            "hierarchical partitions (hpZ), copies of weights that no version brings up to date",
            'set "zero_hpz_partition_size": 1',
        )
    if hasattr(engine.optimizer, "backup_optimizer"):
        yield (
            "an optimizer on both CPU and GPU",
            'set the "ratio" of "offload_optimizer" to 1',
        )


def _of_optimizer(wrapper: ZeROOptimizer) -> Iterator[Obstacle]:
    """Yield an optimizer whose state is not kept as ZeRO's partitions."""
    base = getattr(wrapper, "optimizer", None)
    if base is None:
        return
    if any(cls.__name__.startswith("Muon") for cls in type(base).__mro__):
        yield from _of_muon(wrapper, base)
    if any(cls.__name__.startswith(_COMPRESSED) for cls in type(base).__mro__):
        yield (
            f"the optimizer {type(base).__name__}, whose errors of compression lie in no partition",
            "use Adam, AdamW or Lamb",
        )
    partitions = getattr(wrapper, "single_partition_of_fp32_groups", ())
    if isinstance(base, torch.optim.Adagrad) and len(base.param_groups) < len(partitions):
        yield (
            f"torch's Adagrad with {len(partitions)} parameter groups, which DeepSpeed makes one",
            "give deepspeed.initialize one parameter group, or use another optimizer",
        )


def is_muon(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether it is DeepSpeed's own Muon, for which ZeRO gathers whole gradients."""
    kinds = type(optimizer).__mro__
    return any(one.__module__.startswith("deepspeed.") and "Muon" in one.__name__ for one in kinds)


def _of_muon(wrapper: ZeROOptimizer, base: torch.optim.Optimizer) -> Iterator[Obstacle]:
    """Yield Muon in a form that ZeRO does not give whole gradients, or that it keeps elsewhere."""
    if not is_muon(base):
        yield (
            f"the optimizer {type(base).__name__}, which takes flat partitions for whole weights",
            'use DeepSpeed\'s own ("type": "Muon"), or torch.optim.Muon after fully_shard',
        )
    elif type(wrapper) is BF16_Optimizer:
        yield (
            "Muon, and ZeRO stage 1 that adds up gradients of bf16 weights in fp32",
            'leave "grad_accum_dtype" out, or use ZeRO stage 2',
        )
    elif getattr(wrapper, "cpu_offload", False) or getattr(wrapper, "offload_optimizer", False):
        yield "Muon with an offload of the optimizer", 'leave "offload_optimizer" out'
    elif getattr(wrapper, "save_muon_momentum_buffer_in_memory", False):
        yield (
            "a second reference to Muon's momentum",
            'leave "save_muon_momentum_buffer_in_memory" out',
        )


def _is_on_nvme(
    offload: DeepSpeedZeroOffloadOptimizerConfig | DeepSpeedZeroOffloadParamConfig | None,
) -> bool:
    return offload is not None and offload.device == OffloadDeviceEnum.nvme
