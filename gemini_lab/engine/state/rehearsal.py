"""A rehearsal: state that was put back is read again, and compared bit by bit.

A version is loaded into what it was made of before there is a failure, and into a new process after
one. Whatever is another one then is refused by its name.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.autograd import grad_mode

from gemini_lab.engine.frameworks.framework import Pieces
from gemini_lab.engine.frameworks.tensors import same_bytes
from gemini_lab.errors import GeminiError, UnsupportedError
from gemini_lab.shard.codec import encode
from gemini_lab.shard.layout import DTYPE_BYTES, ShardLayout
from gemini_lab.units import MIB

COMPARED_BYTES: Final = 32 * MIB
_ARRAYS: Final = (torch.Tensor, np.ndarray)
_SCRIPTS: Final = ("made", "also")  # parts of a small state


@contextmanager
def left_alone(
    things: Iterable[object], *, module: nn.Module, refilled: Iterable[object] = ()
) -> Iterator[None]:
    """Permit loads into things inside the block that no holder of them notices.

    What their `load_state_dict` replaces is put back: a script may hold it. Optimizers that are
    refilled in place are so in copies. And torch counts no
    write to the model's tensors, which a pass that is under way may still need.
    """
    kept = [(vars(one), dict(vars(one))) for one in things if hasattr(one, "__dict__")]
    for one in refilled:
        if isinstance(one, torch.optim.Optimizer):
            one.state = defaultdict(dict, _cloned(dict(one.state)))
            one.param_groups = [
                {**_cloned({k: v for k, v in group.items() if k != "params"}), "params": params}
                for group in one.param_groups
                for params in (group["params"],)
            ]
    held = (one for one in [*module.parameters(), *module.buffers()] if not one.is_inference())
    try:
        with ExitStack() as counts:
            for one in held:
                # Without this a rehearsal would look to autograd like a write to saved tensors.
                counts.enter_context(grad_mode._unsafe_preserve_version_counter(one))  # noqa: SLF001
            yield
    finally:
        for attributes, before in kept:
            for name in attributes.keys() - before.keys():
                del attributes[name]
            attributes.update(before)


def _cloned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _cloned(one) for key, one in value.items()}
    return value


@contextmanager
def named(what: str) -> Iterator[None]:
    """Turn any error of somebody's own object inside the block into one that names it."""
    try:
        yield
    except GeminiError:
        raise
    except Exception as error:
        raise UnsupportedError(
            f"{what} cannot be put back from a version ({type(error).__name__}: {error}); have it "
            "take what it gives, or leave it out if nothing that comes later depends on it"
        ) from error


def require_put_back(flat: torch.Tensor, layout: ShardLayout, pieces: Pieces) -> None:
    """Refuse large tensors that are not those of a payload, bit by bit; name the first."""
    for start, tensor in pieces:
        now = tensor.detach().view(torch.uint8)
        then = flat[start : start + now.numel()]
        at = _first_difference(then, now)
        if at is not None:
            at += start
            raise UnsupportedError(
                f"{_at(layout, at)} is not what was put back there from a version: the tensor "
                "shares its memory with another one, or changes what is copied into it; give each "
                "weight and each part of the optimizer's state memory of its own"
            )


def _first_difference(then: torch.Tensor, now: torch.Tensor) -> int | None:
    """Return the first byte in which `now` differs from `then`, which lies in CPU memory.

    A device compares by itself, part by part: it has little memory to spare, and to bring its
    tensors to pageable memory takes ten times as long as to send it pinned bytes.
    """
    for low in range(0, now.numel(), COMPARED_BYTES):
        one, other = then[low : low + COMPARED_BYTES], now[low : low + COMPARED_BYTES]
        if now.device.type == "cpu":
            if same_bytes(one, other):
                continue
        elif torch.equal(one := one.to(now.device), other):
            continue
        return low + int((one != other).nonzero()[0])
    return None


def _at(layout: ShardLayout, offset_bytes: int) -> str:
    """Return what lies at a place of the payload, for users."""
    for piece in layout.pieces:
        spec = layout.tensors[piece.tensor]
        itemsize = DTYPE_BYTES[spec.dtype]
        start = spec.offset_bytes + piece.tensor_offset * itemsize
        if start <= offset_bytes < start + piece.numel * itemsize:
            return f"{piece.state or 'the weight'} of {piece.weight!r}"
    return "a tensor of the optimizer's state"


def differences(
    then: object, now: object, where: str = "", *, is_scripts: bool = False
) -> dict[str, str]:
    """Return where two states differ, bit by bit, and in what.

    Of what the script names itself only tensors and arrays count: an object may well put back a
    number when it is used next.
    """
    if isinstance(then, Mapping):
        named_now = now if isinstance(now, Mapping) else {}
        parts = [(key, one, named_now.get(key)) for key, one in then.items()]
    elif isinstance(then, (list, tuple)):
        in_order = [*now] if isinstance(now, (list, tuple)) else []
        parts = [(n, *pair) for n, pair in enumerate(zip_longest(then, in_order[: len(then)]))]
    else:
        counts = isinstance(then, _ARRAYS) or not is_scripts
        is_same = not counts or then is now or encode(then) == encode(now)
        return {} if is_same else {where: f"{_said(then)} became {_said(now, then)}"}
    found: dict[str, str] = {}
    is_scripts |= where in _SCRIPTS
    for key, one, other in parts:
        found |= differences(one, other, _place(where, key), is_scripts=is_scripts)
    return found


def _place(where: str, key: object) -> str:
    if where in _SCRIPTS:
        return f"also={{{key!r}: ...}}"
    return f"{where}[{key!r}]" if where else str(key)


def _said(value: object, other: object = None) -> str:
    """Return a value in a few words; what it has in common with another one is left out."""
    if not isinstance(value, _ARRAYS):
        return f"{value!r:.60}"
    kind = f"{str(value.dtype).removeprefix('torch.')} {[*value.shape]}"
    is_alike = isinstance(other, _ARRAYS) and kind == _said(other)
    return "other values" if is_alike else kind
