"""Checksums by which a later look tells whether a value has changed; of what is large, of parts."""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
import xxhash

from gemini_lab.engine.state.keepsakes import GENERATORS, keepsakes
from gemini_lab.shard.codec import encode

NUMBERS: Final = (bool, int, float, complex, str, type(None), np.generic)
CONTAINERS: Final = (list, tuple, set, dict, deque)
DEEPEST: Final = 4
_ENDS: Final = 8  # elements of a container that are looked at, from each of its ends
_MANY: Final = 1_000  # elements of a set: of more of them only the number counts
_SAMPLE: Final = 256


def is_kind(value: object, kinds: tuple[type, ...] | type) -> bool:
    """By its type alone: a weak proxy answers for something that may be gone."""
    return issubclass(type(value), kinds)


def digest(
    value: object,
    *,
    is_known: Callable[[object], bool] = lambda _: False,
    is_left_out: Callable[[object], bool] = lambda _: False,
) -> int | None:
    """A checksum of a value; `None` for what has no plain values, or another thread changes now.

    Args:
        value: A number, a container, an array, a tensor or a generator; else it has none.
        is_known: Whether what is inside of it counts as the same always.
        is_left_out: Whether a value, or one inside of it, has no checksum.
    """

    def look(one: Any, depth: int) -> int | None:
        if is_left_out(one):
            return None
        if depth and not is_kind(one, NUMBERS) and is_known(one):
            return 0
        if is_kind(one, CONTAINERS) and depth < DEEPEST:
            parts = [*one.items()] if is_kind(one, dict) else [*one]
            chosen = _chosen_of_set(parts) if is_kind(one, set) else _ends(parts)
            looked = [look(part, depth + 1) for part in chosen]
            if is_kind(one, set):
                looked.sort(key=str)
            return xxhash.xxh3_64_intdigest(repr((len(parts), looked)).encode())
        plain = _plain_bytes(one)
        return None if plain is None else xxhash.xxh3_64_intdigest(plain)

    try:
        return look(value, 0)
    except RuntimeError:
        return None


def _ends(parts: list[Any]) -> list[Any]:
    return parts[:_ENDS] + parts[-_ENDS:]


def _chosen_of_set(parts: list[Any]) -> list[Any]:
    """Sets that are equal may give their elements in any order, and so have no ends."""
    return parts if len(parts) <= _MANY else []


def _plain_bytes(value: Any) -> bytes | None:
    """What a value without parts is, or the first of many; of trained weights versions tell."""
    if is_kind(value, NUMBERS):
        return repr(value).encode()
    if is_kind(value, GENERATORS):
        return encode(keepsakes({"it": value})["it"].read())
    if is_kind(value, np.ndarray) and value.dtype != object:
        return bytes(value.reshape(-1)[:_SAMPLE].tobytes())
    if type(value) is torch.Tensor and not (value.is_leaf and value.requires_grad):
        sample = value.detach().flatten()[:_SAMPLE].clone().cpu()
        return bytes(sample.view(torch.uint8).numpy().tobytes())
    return None
