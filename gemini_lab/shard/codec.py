"""Small state (schedules, counters, random states, the user's own objects) as bytes, and back.

The form is msgpack with extension types; nothing in it can run code when it is read. What comes
back is equal in value and type: tuples stay tuples, keys keep their types, integers have any size,
tensors and arrays keep dtype, shape and every bit. Tensors come back in CPU memory.
"""

import ctypes
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from typing import Any, Final

import msgpack
import numpy as np
import torch

from gemini_lab.errors import IntegrityError, UnsupportedError
from gemini_lab.shard.layout import LENGTH_BYTES, framed

_BIG_INT: Final = 1
_TUPLE: Final = 2
_BYTEARRAY: Final = 3
_ORDERED: Final = 4
_TENSOR: Final = 5
_ARRAY: Final = 6
_SCALAR: Final = 7  # numpy's own scalars
_DEQUE: Final = 8
_COUNTER: Final = 9  # in which torch's MultiStepLR has its milestones
_DICTS: Final[dict[type, int]] = {OrderedDict: _ORDERED, Counter: _COUNTER}
_PLAIN: Final = (type(None), bool, int, float, str, bytes, bytearray)


def encode(state: Any) -> bytes:
    """Encode `state` as bytes, from which `decode` makes an equal state.

    Args:
        state: None, bool, int, float, str, bytes, bytearray, numpy array or scalar, torch tensor,
            or lists, tuples, deques, dicts and Counters of these, nested as deep as you like within
            reason.

    Raises:
        UnsupportedError: Something in it is of another type; the message says where.
    """
    try:
        return _pack(state)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        where = next(_misfits(state, "state", 0), f"the state as a whole: {error}")
        raise UnsupportedError(
            f"cannot store {where}; keep None, bool, int, float, str, bytes, numpy arrays and "
            "dense torch tensors (of a DTensor its to_local()), in lists, tuples, deques and dicts"
        ) from error


def decode(data: bytes | bytearray | memoryview) -> Any:
    """Decode the bytes that `encode` made.

    Raises:
        IntegrityError: The bytes are cut short or are none of `encode`'s.
    """
    try:
        return _unpack(data)
    except Exception as error:  # whatever damaged bytes lead to
        raise IntegrityError(
            f"{len(data)} bytes of small state cannot be read: {error}; take another copy"
        ) from error


def encode_framed(state: Any) -> bytes:
    """Encode `state` with its length in front, so that more bytes may follow."""
    encoded = encode(state)
    return len(encoded).to_bytes(LENGTH_BYTES, "little") + encoded


def decode_framed(data: bytes | bytearray | memoryview) -> Any:
    """Decode the bytes that `encode_framed` made; ignore what follows them in `data`."""
    return decode(memoryview(framed(data))[LENGTH_BYTES:])


def _pack(state: Any) -> bytes:
    packed: bytes = msgpack.packb(
        state, default=_extend, strict_types=True, unicode_errors="surrogatepass"
    )
    return packed


def _unpack(data: bytes | bytearray | memoryview) -> Any:
    return msgpack.unpackb(
        data, ext_hook=_reduce, strict_map_key=False, unicode_errors="surrogatepass"
    )


def _extend(value: Any) -> msgpack.ExtType:
    """Encode a value that msgpack has no type for as an extension type."""
    kind = type(value)
    if kind is int:
        size_bytes = value.bit_length() // 8 + 1
        return msgpack.ExtType(_BIG_INT, value.to_bytes(size_bytes, "big", signed=True))
    if kind is tuple:
        return msgpack.ExtType(_TUPLE, _pack(list(value)))
    if kind is bytearray:
        return msgpack.ExtType(_BYTEARRAY, bytes(value))
    if kind is deque:
        return msgpack.ExtType(_DEQUE, _pack([value.maxlen, list(value)]))
    if kind in _DICTS:
        return msgpack.ExtType(_DICTS[kind], _pack(dict(value)))
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        return msgpack.ExtType(_TENSOR, _pack([name, list(value.shape), _raw(value)]))
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in "OV":
        code = _ARRAY if isinstance(value, np.ndarray) else _SCALAR
        fields = [value.dtype.str, list(value.shape), value.tobytes()]
        return msgpack.ExtType(code, _pack(fields))
    raise TypeError(f"a {kind.__name__} cannot be stored")


def _raw(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor's elements.

    Raises:
        TypeError: It has none of its own: it is made of other tensors, as a DTensor is.
    """
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    has_none = hasattr(tensor, "__tensor_flatten__") or (flat.nbytes and not flat.data_ptr())
    if has_none or tensor.is_quantized:
        raise TypeError(f"a {type(tensor).__name__} is made of other tensors")
    # Not by numpy: a tensor that it has seen cannot be resized any more, as observers do.
    return ctypes.string_at(flat.data_ptr(), flat.nbytes)


def _reduce(code: int, data: bytes) -> Any:
    """Return the value behind an extension type."""
    if code == _BIG_INT:
        return int.from_bytes(data, "big", signed=True)
    if code == _BYTEARRAY:
        return bytearray(data)
    content = _unpack(data)
    if code == _TUPLE:
        return tuple(content)
    if code == _ORDERED:
        return OrderedDict(content)
    if code == _COUNTER:
        return Counter(content)
    if code == _DEQUE:
        most, items = content
        return deque(items, most)
    name, shape, raw = content
    if code == _TENSOR:
        tensor = torch.empty(shape, dtype=getattr(torch, name))
        if raw:
            flat = tensor.reshape(-1).view(torch.uint8)
            flat.copy_(torch.frombuffer(bytearray(raw), dtype=torch.uint8))
        return tensor
    array = np.frombuffer(bytearray(raw), np.dtype(name)).reshape(shape)
    return array[()] if code == _SCALAR else array


def _misfits(value: Any, path: str, depth: int) -> Iterator[str]:
    """Yield each place in `value` that cannot be stored, and what is there."""
    if depth > 100:
        yield f"{path[:60]}...: it is nested too deeply, or contains itself"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _misfits(key, f"the key {key!r} of {path}", depth + 1)
            yield from _misfits(item, f"{path}[{key!r}]", depth + 1)
    elif type(value) in {list, tuple, deque}:
        for index, item in enumerate(value):
            yield from _misfits(item, f"{path}[{index}]", depth + 1)
    if type(value) in {dict, list, tuple, deque, *_PLAIN}:
        return
    try:
        _extend(value)
    except (TypeError, ValueError, RuntimeError):
        yield f"{path}, a {type(value).__module__}.{type(value).__qualname__}"
