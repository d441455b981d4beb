"""Helpers for tensors wherever they lie, whole or sharded: their parts, places and checksums.

Sharded kinds are recognized without importing their packages: that takes a second in every process,
and whoever has such a tensor has imported its package.
"""

import ctypes
import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol, TypeGuard

import torch
import torch.distributed as dist
import xxhash
from torch import nn

from gemini_lab.engine.contract import StateDict, StateView
from gemini_lab.engine.frameworks.resize_state import DataParallelGroups
from gemini_lab.engine.rank_agreement import gather, rank_and_world_size
from gemini_lab.errors import CannotGoOnError, ConfigError, UnsupportedError

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
    from torch.distributed.tensor import DTensor


class ZeroParameter(Protocol):
    """A weight that ZeRO 3 has cut into parts."""

    data: torch.Tensor
    ds_tensor: torch.Tensor
    ds_secondary_tensor: torch.Tensor | None
    ds_numel: int
    ds_shape: torch.Size
    ds_process_group: dist.ProcessGroup
    ds_status: object

    def partition_numel(self) -> int: ...


def is_partitioned(weight: object) -> "TypeGuard[ZeroParameter]":
    """Return whether ZeRO 3 has cut this weight."""
    return hasattr(weight, "ds_tensor")


def is_dtensor(value: object) -> "TypeGuard[DTensor]":
    """Return whether this is a DTensor."""
    return _is_a(value, "torch.distributed.tensor", "DTensor")


def to_shards(state: StateDict) -> StateDict:
    """Return a state with this rank's shard in the place of each DTensor."""
    found = {name: value.to_local() for name, value in state.items() if is_dtensor(value)}
    return {**state, **found} if found else state


def to_dtensors(state: StateDict, like: StateView) -> StateDict:
    """Return what `to_shards` gave, with DTensors again where `like` has one of the same name.

    Raises:
        ConfigError: A shard is of another size, as one of another number of ranks.
    """
    named = ((name, like[name]) for name in state if is_dtensor(like.get(name)))
    found = {name: _around(state[name], whole, name) for name, whole in named}
    return {**state, **found} if found else state


def _around(shard: torch.Tensor, whole: "DTensor", name: str) -> "DTensor":
    now = whole.to_local().shape
    if shard.shape != now:
        raise ConfigError(
            f"this rank's shard of {name!r} is {[*now]} now, and {[*shard.shape]} in the version; "
            "start it with as many ranks: what is sharded in `also` is not cut again"
        )
    return type(whole).from_local(
        shard.to(whole.device),
        whole.device_mesh,
        whole.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


def is_fsdp2(module: nn.Module) -> "TypeGuard[FSDPModule]":
    """Return whether `fully_shard` was applied to this module."""
    return _is_a(module, "torch.distributed.fsdp", "FSDPModule")


def whole_weights(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the weights that FSDP2 puts together to compute; none before it has done so."""
    for one in _fsdp2_weights([model]):
        # FSDP2 shows its unsharded weights nowhere else, and gradients arrive at these.
        if hasattr(one, "_unsharded_param"):
            yield one._unsharded_param  # noqa: SLF001


def _groups_of(state: "FSDPState") -> "Sequence[FSDPParamGroup]":
    """Return the groups of weights that a module puts together at once; one in older torches."""
    # Older PyTorch has one group of weights a module, newer ones have several.
    if hasattr(state, "_fsdp_param_groups"):
        groups: Sequence[FSDPParamGroup] = state._fsdp_param_groups  # noqa: SLF001
        return groups
    group = state._fsdp_param_group  # noqa: SLF001
    return () if group is None else (group,)


def is_fsdp1(module: nn.Module) -> bool:
    """Return whether this is a FullyShardedDataParallel."""
    return _is_a(module, "torch.distributed.fsdp", "FullyShardedDataParallel")


def _is_a(value: object, package: str, name: str) -> bool:
    kind = getattr(sys.modules.get(package), name, None)
    return kind is not None and isinstance(value, kind)


WORD_BYTES: Final = 8
SLICE_WORDS: Final = 1 << 20
"""Words of a tensor on a GPU that are weighed at once: bounds the memory for that to 16 MiB."""
_ODD: Final = 0x9E3779B97F4A7C15 - (1 << 64)  # odd, its bits look random; as a signed word

_compare = ctypes.CDLL(None).memcmp  # torch compares bytes one by one, and numpy makes a mask
_compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def feed(digest: xxhash.xxh3_64, tensor: torch.Tensor) -> None:
    """Add a tensor's bytes to a digest, or on a device a checksum of them, made there."""
    tensor = as_it_reads(tensor)
    if tensor.is_sparse:
        tensor = tensor.coalesce()
        feed(digest, tensor.indices())
        tensor = tensor.values()
    is_here = tensor.device.type == "cpu"
    read = tensor.contiguous() if is_here else tensor_sum(tensor).cpu().view(1)
    digest.update(bytes_in(read))


def as_it_reads(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose memory has its values: a conjugate's memory may have the other's."""
    return tensor.detach().resolve_conj().resolve_neg()


def bytes_in(tensor: torch.Tensor) -> "ctypes.Array[ctypes.c_char]":
    """Return the bytes of a contiguous tensor in CPU memory, in place; who calls keeps the tensor.

    Not by numpy: a tensor that it has seen cannot be resized any more.
    """
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two contiguous tensors in CPU memory are alike bit by bit."""
    size_bytes = one.nbytes
    return size_bytes == other.nbytes and not _compare(one.data_ptr(), other.data_ptr(), size_bytes)


def tensor_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Return a checksum of a tensor's bytes as a 64-bit word on its own device, without waiting.

    Whole numbers wrap around and are added in any order, so it is the same every time.
    """
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    whole = data.numel() // WORD_BYTES * WORD_BYTES
    words = data[:whole]
    if words.storage_offset() % WORD_BYTES:
        # `view` refuses an offset in the storage that is no multiple of the larger type.
        words = words.clone()
    total = torch.zeros((), dtype=torch.int64, device=data.device)
    for part in words.view(torch.int64).split(SLICE_WORDS):  # type: ignore[no-untyped-call]
        total = total * _ODD + (part * _odd_numbers(part.device)[: part.numel()]).sum()
    rest = data[whole:].to(torch.int64) + 1
    return total * _ODD + (rest * _odd_numbers(rest.device)[: rest.numel()]).sum()


@cache
def _odd_numbers(device: torch.device) -> torch.Tensor:
    """Return an odd number for each word of a slice: any single changed word changes the sum."""
    weights = torch.arange(1, 2 * SLICE_WORDS, 2, dtype=torch.int64, device=device)
    return (weights * _ODD) | 1


def aliases(module: torch.nn.Module) -> dict[str, str]:
    """Return further names of tied weights, each with the name under which it is trained."""
    first: dict[int, str] = {}
    further = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(weight), name)
        if known != name:
            further[name] = known
    return further


def digest_over_ranks(weights: Sequence[torch.Tensor]) -> str:
    """Return one checksum of all ranks' weights, which may differ, the same on all of them.

    Empty if no rank has any. All ranks call it together, also those without any.

    Raises:
        CannotGoOnError: This process takes the place of a rank that had others.
    """
    digest = xxhash.xxh3_128()
    for weight in weights:
        part = own_part(weight).detach().cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(part.numpy().data)
    ours = [*digest.digest()]
    parts = gather(ours)
    nothing = [*xxhash.xxh3_128().digest()]
    if all(part == nothing for part in (*parts, ours)):
        return ""
    if parts[rank_and_world_size()[0]] != ours:  # told by ranks that did not hear of this one
        raise CannotGoOnError(
            "its frozen weights are not those of the rank whose place it takes: the script makes "
            "others in every process"
        )
    return xxhash.xxh3_128_hexdigest(bytes(byte for part in parts for byte in part))


def own_part(weight: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a weight, without padding; all if it is not sharded."""
    part = weight.detach()
    if is_dtensor(part):
        part = part.to_local()
    elif is_partitioned(weight):
        part = weight.ds_tensor[: held_of(weight)[1]]
    return part


def held_of(weight: "ZeroParameter") -> tuple[int, int]:
    """Return the first element and the number that this rank holds of a weight under ZeRO 3."""
    size: int = weight.partition_numel()
    start = weight.ds_process_group.rank() * size  # also once a script has destroyed its groups
    return start, max(0, min(size, weight.ds_numel - start))


def require_apart(tensor: torch.Tensor, what: str) -> None:
    """Refuse a tensor some of whose elements are one place in memory: nothing can be put into it.

    Raises:
        UnsupportedError: It is one, such as what `expand` gives.
    """
    if tensor.layout != torch.strided:
        return
    dims = sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
    reach, is_sure = 0, True
    for stride, size in dims:
        is_sure &= stride > reach or size == 1
        reach += stride * (size - 1)
    if is_sure or not tensor.numel():
        return
    places = torch.zeros(1, dtype=torch.int64)
    for stride, size in dims:
        places = (places[:, None] + stride * torch.arange(size)).view(-1) if stride else places
    if len({*places.tolist()}) < tensor.numel():
        raise UnsupportedError(
            f"{what} has elements that share memory (shape {[*tensor.shape]}, strides "
            f"{[*tensor.stride()]}, as expand() gives it), so that no version can be put back into "
            "it; make it with .clone(memory_format=torch.contiguous_format) before `protect`"
        )


def place_of(tensor: torch.Tensor, peers: Collection[int] | None = None) -> int | None:
    """Return the first element of this rank's part, in the flattened whole.

    None if the part is not one run of elements there: a tensor that is sharded along another
    dimension than its first, or along several of a mesh's, can be restored by as many ranks, but
    be neither exported nor resharded.

    Args:
        tensor: Any; if it is a DTensor, the dimensions of its mesh say how ranks share it.
        peers: The ranks of the data-parallel group. The whole is what these have between them then:
            a part of the tensor, where other dimensions of the mesh shard it. By default all.
    """
    if not is_dtensor(tensor):
        return 0
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    shape, among = [*tensor.shape], list[int]()
    for n, placement in enumerate(tensor.placements):
        if placement.is_replicate() or mesh.size(n) == 1:
            continue
        # `fully_shard` and tensor parallel layers have classes of their own for what both shard.
        dim = getattr(placement, "dim", None)
        if dim is None:
            return None
        row = tuple(slice(None) if n == axis else at for axis, at in enumerate(coordinate))
        if peers is None or {*peers} >= {*mesh.mesh[row].tolist()}:
            among += [n] if dim == 0 else [n, n]
        else:
            shape[dim] = _chunk(shape[dim], mesh.size(n), coordinate[n])[1]
    if len(among) > 1:
        return None
    start, count = 0, shape[0] if shape else 1
    for n in among:
        start, count = _chunk(shape[0], mesh.size(n), coordinate[n])
    numel_a_row = math.prod(shape[1:])
    # Whoever cut it otherwise, as FSDP2 may weights of sizes that do not divide, is not understood.
    is_understood = tensor.to_local().numel() == count * numel_a_row
    return start * numel_a_row if is_understood else None


def _chunk(length: int, parts: int, number: int) -> tuple[int, int]:
    """Return the start and the length of one of the parts that `torch.chunk` makes."""
    size = -(-length // parts)
    start = min(size * number, length)
    return start, min(size, length - start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The ranks that hold one tensor alike, and the process groups that lead to all of them."""

    ranks: tuple[int, ...]  # the holders, row by row over the axes
    # A process group for each dimension along which the tensor is replicated.
    axes: tuple[dist.ProcessGroup, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> "Replicas | None":
        """Return those of a tensor; `None` if this rank alone holds what it has.

        Args:
            tensor: A DTensor says itself along which dimensions of its mesh it is the same.
            group: The process group in which DDP replicates a tensor of another kind.
        """
        if not is_dtensor(tensor):
            if group is None or dist.get_world_size(group) == 1:
                return None
            return cls(ranks=tuple(dist.get_process_group_ranks(group)), axes=(group,))
        mesh, place = tensor.device_mesh, tensor.device_mesh.get_coordinate()
        along = [n for n, one in enumerate(tensor.placements) if one.is_replicate()]
        along = [n for n in along if mesh.size(n) > 1]
        if place is None or not along:
            return None
        row = tuple(slice(None) if n in along else at for n, at in enumerate(place))
        ranks: list[int] = mesh.mesh[row].flatten().tolist()
        return cls(ranks=tuple(ranks), axes=tuple(mesh.get_group(n) for n in along))

    def broadcast(self, data: torch.Tensor, *, source: int, rank: int) -> None:
        """Send one holder's data to the others; all holders call it together.

        Args:
            data: The holder's, or room for it.
            source: Which of the holders has it.
            rank: This process.
        """
        sizes = [dist.get_world_size(axis) for axis in self.axes]
        start, own = _place_in(source, sizes), _place_in(self.ranks.index(rank), sizes)
        for number, axis in enumerate(self.axes):
            # Along the first axis in the source's row alone; then that row has it for the next.
            if own[number + 1 :] == start[number + 1 :]:
                sender = self.ranks[_index_of((*own[:number], *start[number:]), sizes)]
                dist.broadcast(data, src=sender, group=axis)


def _place_in(index: int, sizes: Sequence[int]) -> tuple[int, ...]:
    place = list[int]()
    for size in reversed(sizes):
        index, at = divmod(index, size)
        place.append(at)
    return tuple(reversed(place))


def _index_of(place: Sequence[int], sizes: Sequence[int]) -> int:
    index = 0
    for at, size in zip(place, sizes, strict=True):
        index = index * size + at
    return index


def place_in_mesh(weights: Iterable[torch.Tensor]) -> dict[str, int]:
    """Return a rank's place in the largest mesh of its weights, by the names of its dimensions."""
    found: dict[str, int] = {}
    for mesh in {
        id(one): one for w in weights if is_dtensor(w) for one in [w.device_mesh]
    }.values():
        # torch has no public way from a mesh's slice to the whole.
        whole = getattr(mesh, "_get_root_mesh", lambda mesh=mesh: mesh)()
        for one in (mesh, whole):
            names, place = one.mesh_dim_names, one.get_coordinate()
            if names and place and len(names) > len(found):
                found = dict(zip(names, place, strict=True))
    return found


def _fsdp2_weights(models: Iterable[nn.Module]) -> "Iterator[FSDPParam]":
    """Yield FSDP2's own records of the weights that it shards."""
    for module in (part for model in models for part in model.modules() if is_fsdp2(part)):
        # FSDP2 names the weights that it shards nowhere else.
        for group in _groups_of(module._get_fsdp_state()):  # noqa: SLF001
            yield from group.fsdp_params


def data_parallel_ranks(
    models: Iterable[nn.Module], groups: Iterable[dist.ProcessGroup]
) -> list[int]:
    """Return the ranks that hold, or shard, the same tensors; empty if that is unknown.

    Args:
        models: FSDP2 has a mesh for each weight that it shards.
        groups: The process groups of DistributedDataParallel.
    """
    found = {tuple(sorted(dist.get_process_group_ranks(group))) for group in groups}
    for one in _fsdp2_weights(models):
        found.add(tuple(sorted(one.mesh_info.mesh.mesh.flatten().tolist())))
    return [*found.pop()] if len(found) == 1 else []


def is_cut_by_model(models: Sequence[nn.Module]) -> bool:
    """Return whether a mesh cuts or replicates weights otherwise than FSDP2 does.

    FSDP2's own dimension is the last: before it may come one of copies, as in HSDP.
    """
    fsdp2 = {id(one.sharded_param) for one in _fsdp2_weights(models)}
    for weight in (one for model in models for one in model.parameters()):
        if is_dtensor(weight):
            sharded = [not one.is_replicate() for one in weight.placements]
            if sum(sharded) != 1 or not sharded[-1] or id(weight) not in fsdp2:
                return True
    return False


SLICE_BYTES: Final = SLICE_WORDS * WORD_BYTES
_SUMS: Final = 1 << 64


def sum_over_ranks(
    weights: Mapping[str, torch.Tensor], groups: DataParallelGroups | None = None
) -> str:
    """Return the checksum of these weights, the same on all ranks, which call it together.

    Empty if no rank has any, or if the place of a rank's part in a weight is not known.

    Args:
        weights: This rank's, by name.
        groups: The data-parallel groups, if others hold other weights by the same names.
    """
    total, is_known, rank = 0, True, rank_and_world_size()[0]
    peers = None if groups is None else groups.of(rank)
    for name, weight in weights.items():
        # Checksums of parts add up to that of the whole, so no rank needs more than its own.
        part, place = own_part(weight).reshape(-1), _place(weight, peers)
        is_known = is_known and (place is not None or not part.numel())
        key, holders = name, Replicas.of(weight)
        if groups is not None:
            key = f"{name} {groups.part(holders.ranks if holders else [rank])}"
        number, of = _share(weight, peers)
        low, high = (part.numel() * n // of for n in (number, number + 1))
        own = cut_sum(part[low:high], first=(place or 0) + low)
        total += own * (xxhash.xxh3_64_intdigest(key.encode()) | 1)
    told = (total % _SUMS).to_bytes(WORD_BYTES, "little")
    found = gather([int(bool(weights)), int(is_known), *told])
    if not any(has for has, *_ in found) or not all(known for _, known, *_ in found):
        return ""
    words = (int.from_bytes(bytes(word), "little") for _, _, *word in found)
    return f"{sum(words) % _SUMS:016x}"


def cut_sum(part: torch.Tensor, *, first: int) -> int:
    """Return the sum of a flat tensor that is `part` from element `first` on, and zero elsewhere.

    A word that lies across a cut counts on both sides, with the bytes of each.
    """
    raw = part.detach().contiguous().view(torch.uint8)
    begin = at = first * part.element_size()
    end, total = begin + raw.numel(), 0
    while at < end:
        number = at // SLICE_BYTES
        stop = min(end, (number + 1) * SLICE_BYTES)
        low = at // WORD_BYTES * WORD_BYTES
        words = torch.zeros(-(-(stop - low) // WORD_BYTES), dtype=torch.int64, device=raw.device)
        words.view(torch.uint8)[at - low : stop - low] = raw[at - begin : stop - begin]
        shift = low // WORD_BYTES % SLICE_WORDS
        odd = _odd_numbers(raw.device)[shift : shift + len(words)]
        total += int((words * odd).sum()) * (2 * number + 1)
        at = stop
    return total % _SUMS


def _place(weight: torch.Tensor, peers: Collection[int] | None) -> int | None:
    return held_of(weight)[0] if is_partitioned(weight) else place_of(weight, peers)


def _share(weight: torch.Tensor, peers: Sequence[int] | None) -> tuple[int, int]:
    """Return which of how many shares of its part this rank counts: others have the same."""
    if is_partitioned(weight):
        return 0, 1
    if not is_dtensor(weight):
        rank, ranks = rank_and_world_size()
        return (rank, ranks) if peers is None else (peers.index(rank), len(peers))
    mesh, number, of = weight.device_mesh, 0, 1
    for dimension, at in enumerate(mesh.get_coordinate() or ()):
        if weight.placements[dimension].is_replicate():
            size = mesh.size(dimension)
            number, of = number * size + at, of * size
    return number, of
