"""A copy in a slab of which parts are read, each chunk verified when it is first touched."""

from gemini_lab.errors import IntegrityError
from gemini_lab.memory.slab import ReadBuffer, chunk_digest


class HeldShard:
    """A whole version of a shard in memory.

    Args:
        copy: It.
        chunk_bytes: What one checksum covers.

    Raises:
        IntegrityError: Its table of checksums is damaged.
    """

    def __init__(self, copy: ReadBuffer, chunk_bytes: int) -> None:
        self._copy, self._chunk_bytes = copy, chunk_bytes
        self._verified: set[int] = set()
        if chunk_digest(copy.digests.tobytes()) != copy.info.digest:
            raise IntegrityError("its table of checksums is damaged")

    def read(self, start: int, end: int) -> memoryview:
        """Return the bytes of a range, in place.

        Raises:
            IntegrityError: A chunk that they touch differs from its checksum.
        """
        for number in range(start // self._chunk_bytes, -(-end // self._chunk_bytes)):
            if number not in self._verified:
                at = number * self._chunk_bytes
                chunk = self._copy.data[at : at + self._chunk_bytes]
                if chunk_digest(chunk) != int(self._copy.digests[number]):
                    raise IntegrityError(f"chunk {number} differs from its checksum")
                self._verified.add(number)
        return self._copy.data[start:end]
