"""Checksums of tensors, wherever they lie."""

import ctypes
from functools import cache
from typing import Final

import torch
import xxhash

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
    """A tensor whose elements have its values: a conjugate's, say, may be those of the other."""
    return tensor.detach().resolve_conj().resolve_neg()


def bytes_in(tensor: torch.Tensor) -> "ctypes.Array[ctypes.c_char]":
    """The bytes of a contiguous tensor in CPU memory, in place; who calls keeps the tensor.

    Not by numpy: a tensor that it has seen cannot be resized any more.
    """
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two contiguous tensors in CPU memory are alike bit by bit."""
    size_bytes = one.nbytes
    return size_bytes == other.nbytes and not _compare(one.data_ptr(), other.data_ptr(), size_bytes)


def tensor_sum(tensor: torch.Tensor) -> torch.Tensor:
    """A checksum of a tensor's bytes as one 64-bit word on its own device, without waiting for it.

    Whole numbers wrap around and are added in any order, so it is the same every time.
    """
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    whole = data.numel() // WORD_BYTES * WORD_BYTES
    words = data[:whole]
    if words.storage_offset() % WORD_BYTES:
        words = words.clone()
    total = torch.zeros((), dtype=torch.int64, device=data.device)
    for part in words.view(torch.int64).split(SLICE_WORDS):  # type: ignore[no-untyped-call]
        total = total * _ODD + (part * _weights(part.device)[: part.numel()]).sum()
    rest = data[whole:].to(torch.int64) + 1
    return total * _ODD + (rest * _weights(rest.device)[: rest.numel()]).sum()


@cache
def _weights(device: torch.device) -> torch.Tensor:
    """An odd number for each word of a slice: no single changed word leaves the sum as it was."""
    weights = torch.arange(1, 2 * SLICE_WORDS, 2, dtype=torch.int64, device=device)
    return (weights * _ODD) | 1
