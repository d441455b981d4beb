"""What workers print, in the run's folder: one file a rank, which says on which node and when.

A file that has grown to `MOST_BYTES` becomes `rank-0.log.1`, and so on; the oldest goes.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 64 << 20
KEPT: Final = 3  # older files of a rank


class OutputFiles:
    """The files of one run.

    Args:
        folder: Where they lie; it is made when there is something to write.
        most_bytes: How large one may grow.
    """

    def __init__(self, folder: Path, *, most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        self._heads: dict[int, str] = {}

    def write(self, rank: int, lines: Sequence[str], *, node: str, epoch: int) -> None:
        """Add lines that a worker printed."""
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"rank-{rank}.log"
        if path.exists() and path.stat().st_size > self._most_bytes:
            self._turn(path)
            self._heads.pop(rank, None)
        head = f"{node}, epoch {epoch}"
        with path.open("a", encoding="utf-8") as file:
            if self._heads.get(rank) != head:
                self._heads[rank] = head
                moment = time.strftime("%Y-%m-%d %H:%M:%S")
                file.write(f"-- rank {rank} on {head}, {moment} --\n")
            file.writelines(line + "\n" for line in lines)

    def _turn(self, path: Path) -> None:
        """Make room for a new file."""
        for number in range(KEPT, 0, -1):
            older = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
            if older.exists():
                older.replace(path.with_name(f"{path.name}.{number}"))
