"""Orbax: asynchronous saves of JAX arrays, each rank by itself."""

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import orbax.checkpoint as ocp
import torch
import torch.utils.dlpack

from gemini_lab_bench.peers.contract import Peer, PeerTask, Region


class OrbaxFiles(Peer):
    """Its asynchronous checkpointer, to memory files; no other rank has a copy.

    JAX's arrays do not change: an update makes other ones, so that no save can be torn.
    """

    def __init__(self, task: PeerTask) -> None:
        super().__init__(task)
        logging.getLogger("absl").setLevel(logging.ERROR)
        self._arrays: dict[str, Any] = jax.device_put(
            {name: tensor.numpy() for name, tensor in self.state.items()}
        )
        self.state = {}
        self._checkpointer: Any = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
        self._step = 0

    def update(self) -> None:
        self._arrays = jax.block_until_ready({name: a + 1 for name, a in self._arrays.items()})

    def begin(self, step: int) -> None:
        self._step = step
        self._checkpointer.save(self._folder(step), args=ocp.args.StandardSave(self._arrays))

    def finish(self) -> None:
        """Wait for the files, and drop the older ones; no other rank has a copy."""
        self._checkpointer.wait_until_finished()
        shutil.rmtree(self._folder(self._step - 1), ignore_errors=True)

    def expected(self) -> dict[str, torch.Tensor]:
        return {name: torch.tensor(np.asarray(a)) for name, a in self._arrays.items()}

    def restore(self) -> dict[str, torch.Tensor]:
        """Load the files into arrays; `torch` then sees the same memory."""
        asked = jax.tree.map(ocp.utils.to_shape_dtype_struct, self._arrays)
        loaded = self._checkpointer.restore(
            self._folder(self._step), args=ocp.args.StandardRestore(asked)
        )
        jax.block_until_ready(loaded)
        return {name: torch.utils.dlpack.from_dlpack(array) for name, array in loaded.items()}

    def stored(self) -> Sequence[Region]:
        files = self._folder(self._step).rglob("d/*")
        return sorted(path for path in files if path.is_file())

    def close(self) -> None:
        self._checkpointer.close()

    def _folder(self, step: int) -> Path:
        return self.task.folder / f"rank{self.task.rank}-step{step}"
