"""The newest entries of a Trainer's `log_history`, as lines in a buffer of one size.

A history grows with training, and a version's room does not. Each entry is written once; to take
the buffer along with every version costs a copy of it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

import torch

from gemini_lab.units import KIB

ROOM_BYTES: Final = 256 * KIB
"""Some 2,000 entries of a loss, a norm and a learning rate."""

Entry = Mapping[str, object]


class LogHistory:
    """What is kept of a history; when its room is full, the older half goes.

    Args:
        room_bytes: Of all entries together, as JSON.
    """

    def __init__(self, room_bytes: int = ROOM_BYTES) -> None:
        self._room_bytes = room_bytes
        self._lines: list[bytes] = []
        self._seen = 0  # of the Trainer's list

    def follow(self, entries: Sequence[Entry]) -> torch.Tensor:
        """The history as bytes, zeros behind it, after whatever `entries` has more than before."""
        for entry in entries[self._seen :]:
            self._lines.append(json.dumps(entry).encode() + b"\n")
            if sum(map(len, self._lines)) > self._room_bytes:
                del self._lines[: -(-len(self._lines) // 2)]
        self._seen = len(entries)
        text = b"".join(self._lines)
        return torch.frombuffer(bytearray(text.ljust(self._room_bytes, b"\0")), dtype=torch.uint8)

    def read(self, kept: torch.Tensor) -> list[Entry]:
        """The entries in what `follow` gave; they are what was followed so far."""
        text = bytes(kept.numpy().data).rstrip(b"\0")
        self._lines = text.splitlines(keepends=True)
        self._seen = len(self._lines)
        return [json.loads(line) for line in self._lines]
