"""Trains under DeepSpeed on one number of ranks from what another number of them saved.

The global batch is the same for all: twelve samples, dealt by a DistributedSampler.
"""

import json
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from tier_ranks import fetched, save
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from gemini_lab.engine.state.engine_state import EngineState
from gemini_lab.engine.state.script_state import ScriptState

GLOBAL_BATCH = 12


class Numbers(Dataset):
    """Its own indices, with features made from them."""

    def __len__(self):
        return 5 * GLOBAL_BATCH

    def __getitem__(self, index):
        return index, torch.linspace(-1, 1, 6) * (index + 1) / 36


def work(request, rank, *, make_engine, trainer_of, whole, full_weights):
    """One start: load a version if one is named, train, save one if that is wanted."""
    folder, case = Path(request["folder"]), request["case"]
    copies = request["ranks"] // case.get("stages", case.get("row", 1))
    micro = GLOBAL_BATCH // copies // case.get("accumulation", 1)
    engine = make_engine({**case, "micro_batch": micro}, request["seed"])
    data, column = Numbers(), dist.get_rank(engine.seq_data_parallel_group)
    sampler = DistributedSampler(data, num_replicas=copies, rank=column, seed=3)
    loader = DataLoader(data, micro, sampler=sampler)
    state = EngineState(engine, script=ScriptState(data=[loader]))
    trainer, found = trainer_of(engine, loader, {}), {}
    found["part"] = state.layout.model_parallel_rank, state.layout.model_parallel_size
    if request.get("load"):
        url = str(folder / request["load"])
        payload, remarks, receipt = fetched(state, url, request["version"])
        state.load(payload)
        found |= {"remarks": remarks, "ranks_then": receipt.ranks_then}
        found["restored"] = state.version
        found["micro_steps"] = engine.micro_steps

    def save_if_due():
        if state.version != request["version"]:
            return
        weights = full_weights(engine)
        found["held"] = {name: one.double().sum().item().hex() for name, one in weights.items()}
        if not request.get("save"):
            return
        tier = folder / request["save"]
        save(state, str(tier), state.version, whole(state))
        if rank == 0:
            save_file(weights, tier / "weights.safetensors")

    save_if_due()
    found["updates"] = []
    while state.version < request["until"]:
        if state.version == 2 and "larger" in case:
            engine.set_train_batch_size(case["larger"])
        found["updates"].append(trainer.update())
        found["lr"] = engine.get_lr()
        save_if_due()
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
