"""DeepSpeed's own checkpoints: `save_checkpoint` of a ZeRO-3 engine."""

import sys
from collections.abc import Sequence
from typing import Any, Final

import deepspeed
import torch

from gemini_lab_bench.peers.contract import TENSORS, FilePeer, PeerTask, Region

_STATE_BYTES: Final = 12  # of a weight: fp32 master and Adam's two moments


class Weights(torch.nn.Module):
    """Some weights, and a loss that all of them have a part in."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        for number in range(TENSORS):
            weight = torch.nn.Parameter(torch.rand(numel))
            self.register_parameter(f"weight{number}", weight)

    def forward(self) -> torch.Tensor:
        return torch.stack([weight.float().sum() for weight in self.parameters()]).sum()


class DeepSpeedZero(FilePeer):
    """Blocking files, one of each rank; the fp32 states of the optimizer have the task's size."""

    def __init__(self, task: PeerTask) -> None:
        super().__init__(task)
        numel = task.size_bytes * task.ranks // _STATE_BYTES // TENSORS
        model = Weights(numel)
        self._engine, *_ = deepspeed.initialize(
            model=model, model_parameters=list(model.parameters()), config=_config(task.ranks)
        )
        self._engine.backward(self._engine())
        self._engine.step()  # only then Adam has moments
        self.state = self._states()

    def begin(self, step: int) -> None:
        self.step = step
        self._engine.save_checkpoint(str(self.task.folder), tag=self.folder.name)

    def finish(self) -> None:
        self.drop_older()

    def restore(self) -> dict[str, torch.Tensor]:
        self._engine.load_checkpoint(str(self.task.folder), tag=self.folder.name)
        self.state = self._states()
        return self.state

    def stored(self) -> Sequence[Region]:
        return [*self.folder.glob(f"*zero_pp_rank_{self.task.rank}_*optim_states.pt")]

    def _states(self) -> dict[str, torch.Tensor]:
        """Return the live fp32 states: master weights and both moments."""
        optimizer = self._engine.optimizer
        found = {}
        for group, master in enumerate(optimizer.fp32_partitioned_groups_flat):
            moments = optimizer.optimizer.state[master]
            found[f"{group}.master"] = master.data
            found |= {f"{group}.{name}": moments[name] for name in ("exp_avg", "exp_avg_sq")}
        return found


def _config(ranks: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "train_batch_size": ranks,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "steps_per_print": sys.maxsize,
    }
