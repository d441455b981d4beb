"""The peers by name: where each is, what it needs, and what is compared."""

import importlib
from dataclasses import dataclass
from typing import Final

from gemini_lab.experiments.peers.contract import Peer, Task

OURS: Final = "gemini_lab"
FLOOR: Final = "floor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One peer.

    Attributes:
        target: `module:class`, relative to this package.
        how: What is measured of it, in words.
        requirements: What to install; nothing if it comes with gemini_lab.
        packages: Whose versions to state.
    """

    target: str
    how: str
    requirements: tuple[str, ...] = ()
    packages: tuple[str, ...] = ("torch",)

    def make(self, task: Task) -> Peer:
        """The peer, set up on this rank.

        Raises:
            ImportError: Its package is not installed here.
        """
        module, _, name = self.target.partition(":")
        found = importlib.import_module(f"gemini_lab.experiments.peers.{module}")
        peer: Peer = getattr(found, name)(task)
        return peer


CATALOG: Final[dict[str, Entry]] = {
    FLOOR: Entry(
        target="floor:Floor",
        how="memcpy, checksum and bare Gloo of the same bytes, one after another; "
        "its restore is the checksum alone",
    ),
    OURS: Entry(
        target="ours:Ours",
        how="slab and one replica over Gloo, in the background; restored as verified views",
        packages=("gemini-lab",),
    ),
    "deepspeed": Entry(
        target="deepspeed_zero:DeepSpeedZero",
        how="save_checkpoint of ZeRO-3 (bf16, Adam: the fp32 states have the size) to memory files",
        packages=("deepspeed",),
    ),
    "dcp": Entry(
        target="dcp:Dcp",
        how="async_save in a process, DefaultStager with shared memory, to memory files",
    ),
    "replication_stager": Entry(
        target="replication_stager:ReplicationStager",
        how="torch's _ReplicationStager: the partner's state as a memory file; read there",
    ),
    "dlrover": Entry(
        target="dlrover_flash:DLRoverFlash",
        how="flash checkpoint to shared memory, its default without replicas; restored as views",
        requirements=("dlrover>=0.6.1,<0.7", "grpcio"),
        packages=("dlrover",),
    ),
    "nvrx": Entry(
        target="nvrx_local:NvrxLocal",
        how="local checkpoints as memory files, cliques of 2, with a CPU adapter; "
        "asynchronous saves need CUDA",
        requirements=("nvidia-resiliency-ext>=0.4.1",),
        packages=("nvidia-resiliency-ext",),
    ),
    "torchft": Entry(
        target="torchft_http:TorchftHttp",
        how="HTTP transport: stores nothing, odd ranks fetch the live state of even ones, "
        "thus half the bytes",
        requirements=("torchft-nightly",),
        packages=("torchft-nightly",),
    ),
}
