"""A shard as a safetensors file: its data is the payload byte for byte, its layout the metadata."""

import json
from typing import Any, Final

from gemini_lab.errors import IntegrityError
from gemini_lab.shard.layout import ShardLayout

_DTYPES: Final = {
    "float64": "F64",
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}  # of other types the format knows nothing: their bytes are written
_LENGTH_BYTES: Final = 8  # before the header


def pack_header(payload_bytes: int, layout: ShardLayout) -> bytes:
    """Return the header that makes a payload of `payload_bytes` a safetensors file.

    Raises:
        IntegrityError: The layout is that of a payload of another size.
    """
    if payload_bytes != layout.payload_bytes:
        raise IntegrityError(
            f"the payload of shard {layout.rank} has {payload_bytes} bytes, its layout "
            f"{layout.payload_bytes}; write it with the layout that it was made with"
        )
    header: dict[str, Any] = {"__metadata__": {"layout": json.dumps(layout.to_json())}}
    end_bytes = layout.small_offset_bytes + layout.small_capacity_bytes
    header["small"] = _entry("U8", (end_bytes,), 0, end_bytes)
    for number, tensor in enumerate(layout.tensors):
        start_bytes = tensor.offset_bytes
        if gap := start_bytes - end_bytes:  # the format wants every byte to belong to a tensor
            header[f"padding.{number}"] = _entry("U8", (gap,), end_bytes, start_bytes)
        end_bytes = start_bytes + tensor.size_bytes
        dtype = _DTYPES.get(tensor.dtype)
        shape = (tensor.size_bytes,) if dtype is None else tensor.shape
        header[tensor.name] = _entry(dtype or "U8", shape, start_bytes, end_bytes)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def header_end(start: bytes | memoryview) -> int:
    """Return the offset of the payload, given the first bytes of a file."""
    return _LENGTH_BYTES + int.from_bytes(start[:_LENGTH_BYTES], "little")


def unpack_layout(header: bytes | memoryview) -> ShardLayout:
    """Return the layout in what stands before the payload."""
    values = json.loads(bytes(header[_LENGTH_BYTES:]))
    return ShardLayout.from_json(json.loads(values["__metadata__"]["layout"]))


def unpack(data: bytes) -> tuple[memoryview, ShardLayout]:
    """Return the payload and the layout in a file whose bytes were verified."""
    end = header_end(data)
    return memoryview(data)[end:], unpack_layout(data[:end])


def _entry(dtype: str, shape: tuple[int, ...], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [*shape], "data_offsets": [start, end]}
