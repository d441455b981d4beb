"""Train as GEMINI's baselines do: checkpoints go to a slow, shared store alone.

Training stands still while DeepSpeed writes a checkpoint into memory, as the paper's does while it
serialises; beside training the bytes then take their time to the store, all ranks together at its
rate. A start reads the newest checkpoint that is whole there, at that rate too. What happens when
is written down, a line of JSON each. `gemini-lab bench baselines` starts this under torchrun, which
it ends with its ranks: the next start has another one.
"""

import argparse
import json
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import deepspeed
import torch
from deepspeed import comm

from gemini_lab.engine.private_names import avoid_shared_memory_collectives
from gemini_lab.engine.process_exit import leave
from gemini_lab.training import gpt_job
from gemini_lab.training.emulate import emulate
from gemini_lab.training.gpt import GPT, named_size
from gemini_lab.transfer.link import LinkBucket
from gemini_lab.units import KIB

KEPT: Final = 2
"""Checkpoints that stay in the store."""
PIECE_BYTES: Final = 64 * KIB
"""What a rank sends before the next one has its turn."""


class SlowStore:
    """A folder in memory to which bytes take as long as to a shared store of some rate."""

    def __init__(self, folder: Path, *, bytes_per_s: float) -> None:
        self._folder = folder
        self._rank = int(comm.get_rank())
        self._ranks = int(comm.get_world_size())
        self._link = LinkBucket(folder / "link", bytes_per_s=bytes_per_s)  # all ranks map the file
        self._under_way: threading.Thread | None = None
        self._log = (folder / f"said-{self._rank}").open("a", buffering=1, encoding="utf-8")

    def say(self, what: str, **values: float) -> None:
        line = {"what": what, "rank": self._rank, "at_s": time.monotonic(), **values}
        self._log.write(json.dumps(line) + "\n")

    def newest(self) -> int:
        """Return the newest checkpoint that every rank's part is there of; 0: none."""
        found: list[int] = [0]
        if self._rank == 0:
            marks = [path.name.split("-") for path in self._folder.glob("whole-*-*")]
            versions = [int(version) for _, version, _ in marks]
            found = [max((v for v in versions if versions.count(v) == self._ranks), default=0)]
        comm.broadcast_object_list(found, src=0)
        return found[0]

    def save(self, engine: Any, version: int) -> None:
        """Stand still until it is in memory; it goes to the store beside training."""
        if self._under_way is not None:
            self._under_way.join()
        began_s = time.monotonic()
        engine.save_checkpoint(str(self._folder), tag=f"version-{version}", save_latest=False)
        self.say("saved", version=version, stall_s=time.monotonic() - began_s)
        self._under_way = threading.Thread(target=self._upload, args=(version,), daemon=True)
        self._under_way.start()

    def load(self, engine: Any, version: int) -> None:
        began_s = time.monotonic()
        self._carry(self._own_bytes(version))
        engine.load_checkpoint(str(self._folder), tag=f"version-{version}")
        self.say("loaded", version=version, took_s=time.monotonic() - began_s)

    def _upload(self, version: int) -> None:
        size_bytes = self._own_bytes(version)
        self._carry(size_bytes)
        (self._folder / f"whole-{version}-{self._rank}").touch()
        self.say("whole", version=version, size_bytes=size_bytes)
        mine = self._folder.glob(f"whole-*-{self._rank}")
        for older in sorted(int(path.name.split("-")[1]) for path in mine)[:-KEPT]:
            (self._folder / f"whole-{older}-{self._rank}").unlink()
            if self._rank == 0:
                shutil.rmtree(self._folder / f"version-{older}", ignore_errors=True)

    def _carry(self, size_bytes: int) -> None:
        for passed in range(0, size_bytes, PIECE_BYTES):
            self._link.carry(min(PIECE_BYTES, size_bytes - passed))

    def _own_bytes(self, version: int) -> int:
        files = (self._folder / f"version-{version}").rglob("*")
        return sum(path.stat().st_size for path in files if path.is_file()) // self._ranks


def main(arguments: Sequence[str] | None = None) -> int:
    """Train from the newest checkpoint on."""
    parser = argparse.ArgumentParser(prog="store_job", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", type=Path, required=True, help="a folder in memory")
    parser.add_argument("--store-bytes-per-s", type=float, required=True)
    parser.add_argument("--every", type=int, required=True, help="iterations between checkpoints")
    own, others = parser.parse_known_args(arguments)
    options = gpt_job.parse(others)
    avoid_shared_memory_collectives()
    deepspeed.init_distributed(verbose=False)
    torch.manual_seed(options.seed)
    size = named_size(options.size)
    model = GPT(size)
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=list(model.parameters()),
        config=gpt_job.deepspeed_config(options, on_gpu=False),
    )
    emulate(model.blocks, layer_s=options.layer_s, link_bytes_per_s=options.link_bytes_per_s)
    store = SlowStore(own.store, bytes_per_s=own.store_bytes_per_s)
    begun = store.newest()
    if begun:
        store.load(engine, begun)
    comm.barrier()
    store.say("training", version=begun)
    tokens = torch.randint(0, 256, (options.batch, options.block + 1))
    for version in range(begun + 1, options.iterations + 1):
        loss = engine(tokens[:, :-1], tokens[:, 1:])
        engine.backward(loss)
        engine.step()
        store.say("iteration", version=version)
        if version == 1 or (version - begun) % own.every == 0:
            store.save(engine, version)
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
