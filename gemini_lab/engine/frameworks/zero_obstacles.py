"""What of a DeepSpeed engine stands against protecting it, each with the way out."""

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any, Final

import torch
from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum

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
_WAITS_FOR_ALL: Final = (0, 19, 8)
"""DeepSpeed's first release whose ZeRO 3 waits for all of the gathers that it began together."""
_COMPRESSED: Final = ("Onebit", "OneBit", "ZeroOne")
"""How the names of optimizers begin that send a gradient's signs, and keep what that left out."""


def obstacles(engine: Any) -> Iterator[Obstacle]:
    """All that stands against protecting `engine`; nothing in most cases."""
    yield from of_release(
        version("deepspeed"), stage=engine.zero_optimization_stage(), device=engine.device.type
    )
    yield from _of_parallelism(engine)
    yield from of_blocks(engine._config._param_dict)  # noqa: SLF001 - it was asked for
    if not engine.zero_optimization():
        yield "ZeRO stage 0", 'set "zero_optimization": {"stage": 1}, 2 or 3'
        return
    yield from _of_placement(engine)
    if engine.data_efficiency_enabled():
        yield "the data efficiency library", 'set "data_efficiency": {"enabled": false}'
    yield from _of_optimizer(engine.optimizer)


def of_release(release: str, *, stage: int, device: str) -> Iterator[Obstacle]:
    """A release of DeepSpeed's that computes wrong, unseen; it is there though nobody asked for it.

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


def of_blocks(config: Mapping[str, Any]) -> Iterator[Obstacle]:
    """Blocks of a configuration by which the engine counts steps of its own, in no version."""
    for name, is_on in _OWN_COUNTS.items():
        block = config.get(name)
        if isinstance(block, Mapping) and block.get("enabled", is_on):
            yield f"{name!r}, which counts for itself what it has done", f"leave {name!r} out"


def _of_parallelism(engine: Any) -> Iterator[Obstacle]:
    """Ranks that hold other weights, or other parts of them, than ZeRO's own cut says."""
    if engine.pipeline_parallelism:
        yield (
            "pipeline parallelism, where ranks train different layers and ZeRO shards none",
            "use a plain module with ZeRO stage 1, 2 or 3, not a PipelineModule",
        )
    if engine.has_moe_layers:
        yield (
            "mixture-of-experts layers, where one name is another expert on each rank",
            "use a model without deepspeed.moe; ZeRO stage 3 shards experts that are plain modules",
        )
    if engine.mp_world_size > 1 or engine.autotp_size() > 1:
        yield (
            "tensor parallelism, where a weight is cut once more than ZeRO says",
            'shard with ZeRO alone: without mpu, and without "tensor_parallel"',
        )
    if engine.sequence_parallel_size > 1:
        yield "sequence parallelism", "shard with ZeRO alone"


def _of_placement(engine: Any) -> Iterator[Obstacle]:
    """State that lies where a version does not reach it."""
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


def _of_optimizer(wrapper: Any) -> Iterator[Obstacle]:
    """An optimizer whose state is not kept as ZeRO's partitions."""
    base = getattr(wrapper, "optimizer", None)
    if base is None:
        return
    if any(cls.__name__.startswith("Muon") for cls in type(base).__mro__):
        yield (
            f"the optimizer {type(base).__name__}, whose momentum is of whole weights",
            "use AdamW or Lion, or torch.optim.Muon in plain PyTorch, after fully_shard",
        )
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


def _is_on_nvme(offload: Any) -> bool:
    return offload is not None and offload.device == OffloadDeviceEnum.nvme
