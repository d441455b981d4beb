"""Memory for bytes on their way that is shared with another process of the node, and keeps nothing.

Unlike a slab it has no header and no checksums: whatever is made of what lies in it is verified.
"""

import mmap
import os
from typing import Self

import numpy as np

from gemini_lab.memory.free import require_memory
from gemini_lab.memory.slab import anonymous_file, reserve
from gemini_lab.memory.slab_form import Chunked


class Room(Chunked):
    """So many bytes, in chunks as messages carry them."""

    def __init__(self, fd: int, *, chunk_bytes: int) -> None:
        super().__init__(np.frombuffer(mmap.mmap(fd, os.fstat(fd).st_size), np.uint8), chunk_bytes)
        self.fd = fd  # with which another process maps the same memory

    @classmethod
    def create(cls, size_bytes: int, *, chunk_bytes: int) -> Self:
        """Create a room, with its memory allocated now."""
        require_memory(
            size_bytes,
            purpose="room for gradients, of which peers make versions",
            way_out='leave out "replicate": "gradients", or use machines with more memory',
        )
        fd = anonymous_file()
        try:
            reserve(fd, size_bytes)
            return cls(fd, chunk_bytes=chunk_bytes)
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Give the descriptor back; the memory goes with the last view of others."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.data = np.empty(0, np.uint8)
