"""Layout of a shard's payload: plain data that agents and stores can read, too.

A payload is the bytes of one shard in one version: first the small state (self-delimiting, in room
of fixed size), then the tensors of the optimizer, one after another.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

import xxhash

from gemini_lab.errors import ConfigError

_ALIGNMENT_BYTES: Final = 64  # of every tensor in a payload
LENGTH_BYTES: Final = 8
"""The form of the number before the small state: its bytes."""
DTYPE_BYTES: Final[Mapping[str, int]] = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex128": 16,
    "complex64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""The types of tensors in a payload, by torch's name, and the size of an element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One flat tensor of a payload."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPiece:
    """A run of elements that a shard holds of one weight, or of what is kept for it."""

    weight: str  # the weight's name in the model
    weight_offset: int  # first element, in the flattened weight or state
    tensor: int  # number of the tensor in the payload that holds them
    tensor_offset: int  # first element, in that tensor
    numel: int  # how many elements
    # The optimizer's name for what they are of; empty for the weight itself, in master (fp32)
    # precision.
    state: str = ""
    # Which of the tensors of this name it is of, if tensor or pipeline parallel ranks have several:
    # the lowest model-parallel rank that holds it.
    part: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """One shard's file in the persistent tier, as the manifest of its version has it."""

    shard: int  # whose
    file: str  # its name; it carries the digest
    size_bytes: int  # of the file
    digest: str  # xxh3_128 of the whole file, hexadecimal
    chunk_bytes: int = 0  # what one of `chunk_digests` covers; 0 where there are none
    # xxh3_64 of each chunk of the file, 16 hexadecimal digits each, so that parts of it can be read
    # and verified.
    chunk_digests: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLayout:
    """The form of one rank's payload; it stays the same for a whole run."""

    rank: int  # whose shard
    world_size: int  # how many shards make a version
    stage: int  # ZeRO stage; 0 without ZeRO
    optimizer: str  # class of the optimizer
    tensors: tuple[TensorSpec, ...]  # what follows the small state, in order of offset
    small_offset_bytes: int  # where the small state begins
    small_capacity_bytes: int  # room for it
    payload_bytes: int  # size of the whole
    weights: Mapping[str, tuple[int, ...]]  # shape of each trained weight of the model
    # Which parts of which weights and of their optimizer's state this shard holds; what is in no
    # piece is padding. Several ranks may hold the same.
    pieces: tuple[WeightPiece, ...]
    aliases: Mapping[str, str]  # further names of tied weights, and the name that `weights` has
    frozen: tuple[str, ...]  # weights that are not trained, thus not in any payload
    frozen_digest: str  # checksum of them
    # How the ranks share the model: `"ZeRO"`, `"DDP"`, `"FSDP2"` or `"none"`.
    parallelism: str = "ZeRO"
    # Checksum of the frozen weights that does not depend on the number of ranks.
    frozen_sum: str = ""
    # Tensors of the optimizer whose place in the whole is not known, so that only as many ranks can
    # read this shard.
    unplaced: tuple[str, ...] = ()
    # Why ranks hold different tensors, in words; empty if all hold parts of the same.
    uneven: str = ""
    # How many ranks hold one model between them, by tensor and pipeline parallelism: the number of
    # data-parallel groups. A resize changes their length. 0 if nothing tells which these are.
    model_parallel_size: int = 0
    model_parallel_rank: int = 0  # the number of this rank's data-parallel group

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, for `from_json`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {
            "tensors": [asdict(tensor) | {"shape": [*tensor.shape]} for tensor in self.tensors],
            "pieces": [asdict(piece) for piece in self.pieces],
            "weights": {name: [*shape] for name, shape in self.weights.items()},
            "aliases": dict(self.aliases),
            "frozen": [*self.frozen],
            "unplaced": [*self.unplaced],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the layout that `to_json` turned into `values`."""
        tensors = [TensorSpec(**t | {"shape": tuple(t["shape"])}) for t in values["tensors"]]
        changed = {
            "tensors": tuple(tensors),
            "pieces": tuple(WeightPiece(**piece) for piece in values["pieces"]),
            "weights": {name: tuple(shape) for name, shape in values["weights"].items()},
            "frozen": tuple(values["frozen"]),
            "unplaced": tuple(values.get("unplaced", ())),
        }
        return cls(**{**values, **changed})

    @property
    def identity(self) -> dict[str, Any]:
        """Return what must match when a rank loads its shard, as JSON values."""
        is_zero = self.parallelism == "ZeRO"
        return {
            **({"ZeRO stage": self.stage} if is_zero else {"parallelism": self.parallelism}),
            "optimizer": self.optimizer,
            "number of ranks": self.world_size,
            "room for small state": self.small_capacity_bytes,
            "frozen weights": [*self.frozen],
            "checksum of the frozen weights": self.frozen_digest,
            "weight": {name: [*shape] for name, shape in self.weights.items()},
            "tensor": {t.name: [t.dtype, *t.shape] for t in self.tensors},
            # Two parts may have the same shapes, such as those of one weight.
            **({"model-parallel rank": self.model_parallel_rank} if self.uneven else {}),
        }

    @property
    def model_identity(self) -> dict[str, Any]:
        """Return what must match when another world size loads a version, as JSON values."""
        identity = self.identity | {"model-parallel size": self.model_parallel_size}
        whole = ["ZeRO stage", "parallelism", "optimizer", "frozen weights", "weight"]
        whole += ["model-parallel size"] if self.uneven else []
        return {
            **{key: identity[key] for key in whole if key in identity},
            "sum of the frozen weights": self.frozen_sum,
            "state": {_kind(tensor.name): tensor.dtype for tensor in self.tensors},
        }

    @property
    def fingerprint(self) -> int:
        """Return a checksum of the identity, 128 bits: equal if a version can be loaded."""
        return xxhash.xxh3_128_intdigest(json.dumps(self.identity, sort_keys=True).encode())


def fingerprint_of(shards: Sequence[int]) -> str:
    """Return the fingerprint of a job, made of the fingerprints of all its shards, in order."""
    told = b"".join(one.to_bytes(16, "little") for one in shards)
    return xxhash.xxh3_128_hexdigest(told)


def framed(data: bytes | bytearray | memoryview) -> bytes:
    """Return the small state at the beginning of `data`, without what follows it."""
    view = memoryview(data)
    end = LENGTH_BYTES + int.from_bytes(view[:LENGTH_BYTES], "little")
    return bytes(view[:end])


def partition_of(tensor: str) -> int | None:
    """Return the partition whose tensor has this name in a payload of ZeRO's; None elsewhere."""
    number = tensor.partition(".")[0]
    return int(number) if number.isdecimal() else None


def _kind(tensor: str) -> str:
    """Return a tensor's name without the numbers that depend on the world size.

    A partition's comes first. The number of a block, which other ranks hold, comes last.
    """
    name = tensor if partition_of(tensor) is None else tensor.partition(".")[2]
    before, _, last = name.rpartition(".")
    return before if before and last.isdecimal() else name


def lay_out(
    tensors: Sequence[tuple[str, str, tuple[int, ...]]], *, start_bytes: int
) -> tuple[TensorSpec, ...]:
    """Lay tensors (name, dtype, shape) out one after another from `start_bytes`, each aligned."""
    specs = []
    for name, dtype, shape in tensors:
        start_bytes = -(-start_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        size_bytes = DTYPE_BYTES[dtype]
        for length in shape:
            size_bytes *= length
        specs.append(
            TensorSpec(
                name=name, dtype=dtype, shape=shape, offset_bytes=start_bytes, size_bytes=size_bytes
            )
        )
        start_bytes += size_bytes
    return tuple(specs)


def require_same(stored: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuse to load a version with the identity `stored` if it is not that of `current`.

    Raises:
        ConfigError: It cannot; the message says what differs.
    """
    found = differences(stored, current)
    if found:
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise ConfigError(
            f"the model or its optimizer changed since the checkpoint: {'; '.join(found[:5])}{more}"
            "; start the script as it was, or start a new run"
        )


def differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Describe the differences between two identities."""
    found = []
    for key in {**stored, **current}:
        old, new = stored.get(key), current.get(key)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
            found += [
                f"{key} {n}: {old.get(n, 'none')} then, {new.get(n, 'none')} now" for n in names
            ]
        else:
            found.append(f"{key}: {old} then, {new} now")
    return found
