"""Locks that a killed worker leaves where PyTorch compiles extensions, DeepSpeed's among them.

Before PyTorch 2.14, `torch.utils.cpp_extension` makes a file called `lock` before it compiles, and
removes it at the end. Who finds one waits until it is gone, for ever: a worker that is killed while
it compiles would hold up all later ones, those of later runs too. It keeps the file open as long as
it lives, which tells a lock that is left from one that is held; but only to who sees its process,
and many machines may share the folder. Of this node's own workers it is known which of them held
one. Since 2.14 the file stays and the kernel holds the lock, which is gone with its process.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
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


def outlive_their_process(torch: Path) -> bool:
    """Whether the locks of the PyTorch in that folder stay when their process is killed."""
    source = torch / "utils" / "cpp_extension.py"
    return source.exists() and "FileBaton(" in source.read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Locks that no process of this machine holds.

    Attributes:
        abandoned: No process of another machine or container can hold them, either.
        unsure: Who holds them may be out of sight.
    """

    abandoned: tuple[Path, ...] = ()
    unsure: tuple[Path, ...] = ()


def build_root(environment: Mapping[str, str]) -> Path:
    """Where PyTorch compiles extensions for this user."""
    if (told := environment.get("TORCH_EXTENSIONS_DIR")) is not None:
        return Path(told)
    cache = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - as
    return Path(cache) / "torch_extensions"  # PyTorch does, which fails for no user


def left_locks(locks: Iterable[Path], *, can_be_out_of_sight: Callable[[Path], bool]) -> Left:
    """Those of `locks` that nobody here holds.

    Args:
        locks: Paths; those that are gone do not count.
        can_be_out_of_sight: Whether the process that holds a lock may be one that this one cannot
            see.
    """
    there = [lock.resolve() for lock in locks if lock.exists()]
    held = set(_open_files()) if there else set()
    left = [lock for lock in there if str(lock) not in held]
    unsure = tuple(lock for lock in left if can_be_out_of_sight(lock))
    return Left(abandoned=tuple(lock for lock in left if lock not in unsure), unsure=unsure)


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
        root: Where extensions are compiled, each in a folder of its own.
        node: The node's name.
        say: Is told what was done or seen, as a sentence.
        can_be_out_of_sight: See `left_locks`.
        clock: Seconds, of a clock that nobody sets.
    """

    def __init__(
        self,
        root: Path,
        *,
        node: str,
        say: Callable[[str], object],
        can_be_out_of_sight: Callable[[Path], bool] = holder_may_be_hidden,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._node, self._say = root, node, say
        self._is_hidden = can_be_out_of_sight
        self._clock = clock
        self._looked_s = -LOOK_S
        self._own: set[Path] = set()  # that workers of this node have held
        self._seen: set[Path] = set()  # at the last look, as abandoned
        self._told: set[Path] = set()
        self._said: set[str] = set()

    @classmethod
    def here(cls, node: str, say: Callable[[str], object]) -> "BuildLocks | None":
        """Those of this user; None where PyTorch's locks go with their process."""
        torch = find_spec("torch")  # which imports nothing
        folders = (torch and torch.submodule_search_locations) or ()
        if any(outlive_their_process(Path(folder)) for folder in folders):
            return cls(build_root(os.environ), node=node, say=say)
        return None

    def clear(self) -> None:
        """No worker of this node runs: what one of them held goes, and what earlier runs left."""
        with self._as_far_as_it_goes():
            self._clear()

    def _clear(self) -> None:
        locks = {*self._root.glob("*/lock"), *self._root.glob("*/*/lock"), *self._own}

        def is_hidden(lock: Path) -> bool:
            return lock not in self._own and self._is_hidden(lock)

        left = left_locks(locks, can_be_out_of_sight=is_hidden)
        for lock in left.abandoned:
            who = "a worker" if lock in self._own else "whoever compiled there"
            self._remove(lock, f"{who} was killed before it was done")
        self._own.clear()

    def look(self, *, held: Mapping[int, str], waited_for: Mapping[int, str]) -> None:
        """Workers run, and some of them wait for a lock: if nobody holds it, it goes.

        It has to be found so twice, as whoever releases one closes it first.

        Args:
            held: The lock that each rank holds.
            waited_for: The lock for which each rank waits.
        """
        with self._as_far_as_it_goes():
            self._look(held, waited_for)

    def _look(self, held: Mapping[int, str], waited_for: Mapping[int, str]) -> None:
        self._own.update(Path(lock).resolve() for lock in held.values())
        now_s = self._clock()
        if not waited_for or now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        ranks = ", ".join(map(str, sorted(waited_for)))
        wait = f"rank {ranks} waits" if len(waited_for) == 1 else f"ranks {ranks} wait"
        locks = {Path(lock) for lock in waited_for.values()}
        left = left_locks(locks, can_be_out_of_sight=self._is_hidden)
        for lock in sorted({*left.abandoned} & self._seen):
            self._remove(
                lock,
                f"{wait} for it, and whoever compiled there is gone; who finds nothing "
                "compiled there now starts anew",
            )
        self._seen = {*left.abandoned}
        for lock in sorted({*left.unsure} - self._told):
            self._told.add(lock)
            self._say(
                f"{wait} for {lock}, and no process of {self._node} holds it; if nobody on another "
                "machine, or in another container, compiles there, remove it"
            )

    @contextlib.contextmanager
    def _as_far_as_it_goes(self) -> Iterator[None]:
        """A folder that cannot be read or written keeps nobody from starting; that is said."""
        try:
            yield
        except OSError as error:
            if (text := f"cannot look after locks of compilations: {error}") not in self._said:
                self._said.add(text)
                self._say(f"{self._node} {text}")

    def _remove(self, lock: Path, why: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # another node on this machine did
            lock.unlink()
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
