"""The peers by name: where each is, what it needs, and what is compared."""

import importlib
from dataclasses import dataclass
from typing import Final

from gemini_lab_bench.peers.contract import Peer, PeerTask

OURS: Final = "gemini_lab"
FLOOR: Final = "floor"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerEntry:
    """One peer."""

    target: str  # `module:class`, relative to this package
    how: str  # what is measured of it, in words
    requirements: tuple[str, ...] = ()  # what to install; nothing if it comes with gemini_lab
    packages: tuple[str, ...] = ("torch",)  # whose versions to state
    # Take the newest wheels that are made for this one, though this machine's own C library may be
    # older: what is measured of them is Python.
    platform: str = ""
    by_hand: str = ""  # how to install what no index offers in a form that runs

    def make(self, task: PeerTask) -> Peer:
        """Return the peer, set up on this rank.

        Raises:
            ImportError: Its package is not installed here.
        """
        module, _, name = self.target.partition(":")
        found = importlib.import_module(f"gemini_lab_bench.peers.{module}")
        peer: Peer = getattr(found, name)(task)
        return peer


CATALOG: Final[dict[str, PeerEntry]] = {
    FLOOR: PeerEntry(
        target="floor:Floor",
        how="memcpy, checksum and bare Gloo of the same bytes, one after another; "
        "its restore is the checksum alone",
    ),
    OURS: PeerEntry(
        target="ours:Ours",
        how="slab and one replica over Gloo, in the background; restored as verified views",
        packages=("gemini-lab",),
    ),
    "deepspeed": PeerEntry(
        target="deepspeed_zero:DeepSpeedZero",
        how="save_checkpoint of ZeRO-3 (bf16, Adam: the fp32 states have the size) to memory files",
        packages=("deepspeed",),
    ),
    "dcp": PeerEntry(
        target="dcp:Dcp",
        how="async_save in a process, DefaultStager with shared memory, to memory files",
    ),
    "replication_stager": PeerEntry(
        target="replication_stager:ReplicationStager",
        how="torch's _ReplicationStager: the partner's state as a memory file; read there",
    ),
    "dlrover": PeerEntry(
        target="dlrover_flash:DLRoverFlash",
        how="flash checkpoint to shared memory, its default without replicas; restored as views",
        requirements=("dlrover>=0.6.1,<0.7", "grpcio"),
        packages=("dlrover",),
    ),
    "nvrx": PeerEntry(
        target="nvrx_local:NvrxLocal",
        how="local checkpoints as memory files, cliques of 2, with a CPU adapter; "
        "asynchronous saves and fetching a replica need CUDA: the replica's file is read",
        requirements=("nvidia-resiliency-ext",),
        packages=("nvidia-resiliency-ext",),
        platform="manylinux_2_39",
    ),
    "lm_resiliency": PeerEntry(
        target="lm_resiliency_pairs:LmResiliencyPairs",
        how="in-memory manager, every save, pairs over Gloo; copies within the call where there is "
        "no CUDA; restored as copies; a lost rank's state by its restart files, with CRC-32",
        requirements=("lm-resiliency==0.2.0",),
        packages=("lm-resiliency",),
    ),
    "ml_flashpoint": PeerEntry(
        target="ml_flashpoint_memory:MlFlashpointMemory",
        how="its adapter's calls for Megatron, to memory files, in pairs by its transfer service; "
        "tensors in CPU memory are not staged: an update waits until they are written",
        by_hand="use `pip install -e` on its unpacked source distribution, as the wheel that pip "
        "builds of it lacks the compiled modules",
        packages=("ml-flashpoint",),
    ),
    "torch_checkpointing": PeerEntry(
        target="torch_checkpointing_files:TorchCheckpointingFiles",
        how="CheckpointManager as it comes, staged by a thread, written by a process to memory "
        "files; its guard is `with manager.lock()`",
        requirements=("torch-checkpointing==0.1.1",),
        packages=("torch_checkpointing",),
    ),
    "orbax": PeerEntry(
        target="orbax_files:OrbaxFiles",
        how="AsyncCheckpointer of each rank's JAX arrays, which an update replaces and does not "
        "change, to memory files",
        requirements=("orbax-checkpoint==0.12.8", "jax"),
        packages=("orbax-checkpoint", "jax"),
    ),
    "torchft": PeerEntry(
        target="torchft_http:TorchftHttp",
        how="HTTP transport: stores nothing, odd ranks fetch the live state of even ones, "
        "thus half the bytes",
        requirements=("torchft-nightly",),
        packages=("torchft-nightly",),
    ),
}
