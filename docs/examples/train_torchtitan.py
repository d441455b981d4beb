"""TorchTitan's Trainer and a tiny Llama, also on CPUs: TorchTitan itself asks for GPUs.

gemini-lab run --nodes 2 train_torchtitan.py --tensor-parallel 2
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import IterableDataset
from torchtitan.tools import utils

if not torch.cuda.is_available():  # before TorchTitan's other modules read what is there
    utils.device_type = "cpu"
    utils.device_module = SimpleNamespace(
        device_count=lambda: 1,
        current_device=lambda: 0,
        set_device=lambda _: None,
        get_device_name=lambda _: "CPU",
        get_device_properties=lambda _: SimpleNamespace(total_memory=1),
        memory_stats=lambda _: {},
        reset_peak_memory_stats=lambda: None,
        empty_cache=lambda: None,
    )

from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.distributed import utils as groups
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.trainer import Trainer

from gemini_lab.adapters.torchtitan import TitanCheckpoints


class Words(IterableDataset):
    """Words that a rank draws from a generator of its own, and where it stands."""

    def __init__(self, rank: int, length: int) -> None:
        self.length, self.generator = length, torch.Generator().manual_seed(rank)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            words = torch.randint(0, 2048, (self.length + 1,), generator=self.generator)
            yield {"input": words[:-1]}, words[1:]

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.generator.set_state(state["generator"])


class Loader(ParallelAwareDataloader):
    """Gives these words in batches."""

    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        """Nothing to set."""

    def __init__(self, **parts: Any) -> None:
        rank, ranks, batch = (parts[n] for n in ("dp_rank", "dp_world_size", "local_batch_size"))
        super().__init__(Words(rank, parts["seq_len"]), rank, ranks, batch_size=batch)


class NoTokenizer(BaseTokenizer):
    """Words are numbers here."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        """Nothing to set."""

    def __init__(self, **_: object) -> None:
        super().__init__()

    def encode(self, *_: object, **__: object) -> list[int]:
        raise NotImplementedError

    def decode(self, *_: object, **__: object) -> str:
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        return 2048


def configuration(arguments: argparse.Namespace) -> Trainer.Config:
    """Return TorchTitan's smallest Llama, made smaller, with a version of each step."""
    config = llama3_debugmodel()
    model, training, parallelism = config.model_spec.model, config.training, config.parallelism
    model.layers[:] = model.layers[:2]
    for layer in model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config.tokenizer, config.dataloader = NoTokenizer.Config(), Loader.Config()
    config.validator.enable = False
    config.optimizer.implementation = "foreach"
    config.debug.seed = 1
    config.dump_folder = arguments.folder
    training.local_batch_size, training.seq_len, training.steps = 2, 16, arguments.steps
    training.disable_cuda_graphs, training.mixed_precision_param = True, "float32"
    parallelism.spmd_backend = "partial_dtensor"
    parallelism.tensor_parallel_degree = arguments.tensor_parallel
    # Every step is a version; on disk TorchTitan saves nothing by itself, or the last step.
    config.checkpoint = TitanCheckpoints.Config(
        enable=True, interval=1000, load_only=not arguments.saves
    )
    return config


def main() -> None:
    """Train as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="outputs")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--saves", action="store_true")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    trainer = configuration(parser.parse_args()).build()
    for module in (part for model in trainer.model_parts for part in model.modules()):
        if isinstance(module, FSDPModule):  # Gloo adds gradients up, and scales none
            module.set_force_sum_reduction_for_comms(True)
    if not hasattr(torch.distributed, "set_timeout"):  # PyTorch before 2.14
        groups.set_pg_timeouts = lambda **_: None
    trainer.train()
    trainer.close()


if __name__ == "__main__":
    main()
