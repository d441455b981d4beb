"""Locks that a killed worker leaves where PyTorch compiles extensions, DeepSpeed's among them.

`torch.utils.cpp_extension` makes a file called `lock` before it compiles, and removes it at the
end. Who finds one waits until it is gone, for ever: a worker that is killed while it compiles would
hold up all later ones, those of later runs too. It keeps the file open as long as it lives, which
tells a lock that is left from one that is held; but only to who sees its process, and many machines
may share the folder.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

LOOK_S: Final = 5.0
"""Between two looks at a lock that a worker waits for: each goes through all processes."""
QUIET_S: Final = 300.0
"""Nothing was written beside a lock for so long: nobody compiles there, seen or not."""
_LOCAL: Final = frozenset(
    {"apfs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
)
"""File systems that one machine has to itself."""
_ALL_PROCESSES: Final = 0xEFFFFFFC  # PROC_PID_INIT_INO of Linux: the namespace that sees all others


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Locks that no process of this machine holds.

    Attributes:
        ours: Made since this node's agent started, so by a worker of this job.
        abandoned: Made before, where another machine or container can hold none.
        unsure: The other ones: who holds them may be out of sight.
    """

    ours: tuple[Path, ...] = ()
    abandoned: tuple[Path, ...] = ()
    unsure: tuple[Path, ...] = ()


def build_root(environment: Mapping[str, str]) -> Path:
    """Where PyTorch compiles extensions for this user."""
    if (told := environment.get("TORCH_EXTENSIONS_DIR")) is not None:
        return Path(told)
    cache = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "torch_extensions"


def locks_below(root: Path) -> list[Path]:
    """All locks of extensions that are compiled below `root`, each in a folder of its own."""
    return [*root.glob("*/lock"), *root.glob("*/*/lock")]


def left_locks(
    locks: Iterable[Path], *, since_s: float, can_be_out_of_sight: Callable[[Path], bool]
) -> Left:
    """Those of `locks` that nobody here holds, sorted by how certain it is that nobody does.

    Args:
        locks: Paths; those that are gone do not count.
        since_s: When this node's agent started, in seconds since the epoch.
        can_be_out_of_sight: Whether the process that holds a lock may be one that this one cannot
            see.
    """
    made_s = {}
    for lock in locks:
        with contextlib.suppress(OSError):  # released meanwhile
            made_s[lock.resolve()] = lock.stat().st_mtime
    held = set(_open_files()) if made_s else set()
    left = {lock: at_s for lock, at_s in made_s.items() if str(lock) not in held}
    older = [lock for lock, at_s in left.items() if at_s < since_s]
    unsure = tuple(lock for lock in older if can_be_out_of_sight(lock))
    return Left(
        ours=tuple(lock for lock in left if lock not in older),
        abandoned=tuple(lock for lock in older if lock not in unsure),
        unsure=unsure,
    )


def holder_may_be_hidden(lock: Path) -> bool:
    """Whether another machine, or a container that shares the folder, may compile there now."""
    if not _is_on_local_disk(lock):
        return True
    if _sees_every_process():
        return False
    with contextlib.suppress(OSError):
        written_s = max(path.stat().st_mtime for path in (lock.parent, *lock.parent.iterdir()))
        return time.time() - written_s < QUIET_S
    return True


class BuildLocks:
    """One node's look after such locks: takes away what is left, and names what may be.

    Args:
        root: Where extensions are compiled.
        node: The node's name.
        say: Is told what was done or seen, as a sentence.
        since_s: When this node's agent started, in seconds since the epoch.
        can_be_out_of_sight: See `left_locks`.
        clock: Seconds, of a clock that nobody sets.
    """

    def __init__(
        self,
        root: Path,
        *,
        node: str,
        say: Callable[[str], object],
        since_s: float,
        can_be_out_of_sight: Callable[[Path], bool] = holder_may_be_hidden,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._node, self._say = root, node, say
        self._since_s = since_s
        self._is_hidden = can_be_out_of_sight
        self._clock = clock
        self._looked_s = -LOOK_S
        self._seen: set[Path] = set()  # at the last look, as left
        self._told: set[Path] = set()

    def clear(self) -> None:
        """No worker of this node runs: whatever one of them left goes, and what others left."""
        left = self._left(locks_below(self._root))
        for lock in left.ours:
            self._remove(lock, "a worker was killed while it compiled there")
        for lock in left.abandoned:
            self._remove(lock, "whoever compiled there was killed before this lab started")
        self._tell(left.unsure, "a worker that compiles there waits until it is gone")

    def look(self, waited_for: Mapping[int, str]) -> None:
        """Workers run, and some of them wait for a lock: if nobody holds it, it goes.

        It has to be found so twice, as whoever releases one closes it first.

        Args:
            waited_for: The lock for which each rank waits.
        """
        now_s = self._clock()
        if not waited_for or now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        ranks = ", ".join(map(str, sorted(waited_for)))
        wait = f"rank {ranks} waits" if len(waited_for) == 1 else f"ranks {ranks} wait"
        left = self._left({Path(lock) for lock in waited_for.values()})
        # A new one may be held by a worker on another machine, unless the folder is not shared.
        sure = {*left.abandoned, *(lock for lock in left.ours if not self._is_hidden(lock))}
        for lock in sorted(sure & self._seen):
            self._remove(lock, f"{wait} for it, and whoever compiled there is gone")
        self._seen = sure
        self._tell(left.unsure, f"{wait} until it is gone")

    def _left(self, locks: Iterable[Path]) -> Left:
        return left_locks(locks, since_s=self._since_s, can_be_out_of_sight=self._is_hidden)

    def _tell(self, unsure: Iterable[Path], meanwhile: str) -> None:
        for lock in sorted({*unsure} - self._told):
            self._told.add(lock)
            self._say(
                f"{lock} is older than this lab, and no process of {self._node} holds it: "
                f"{meanwhile}; if nobody on another machine, or in another container, compiles "
                "there, remove it"
            )

    def _remove(self, lock: Path, why: str) -> None:
        lock.unlink(missing_ok=True)
        self._say(f"removed {lock}: {why}")


def _is_on_local_disk(path: Path) -> bool:
    """Whether the file system is one that no other machine writes to."""
    kinds = {one.mountpoint: one.fstype for one in psutil.disk_partitions(all=True)}
    found = (kinds[str(one)] for one in path.parents if str(one) in kinds)
    return next(found, "") in _LOCAL


def _sees_every_process() -> bool:
    """Whether no process of this machine is out of sight, as it is from within a container."""
    namespace = Path("/proc/self/ns/pid")
    return not namespace.exists() or namespace.stat().st_ino == _ALL_PROCESSES


def _open_files() -> Iterator[str]:
    """Paths of the files that this user's processes have open on this machine."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.uids().real == os.getuid():
                yield from (file.path for file in process.open_files())
