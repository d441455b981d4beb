"""Removal of locks that a killed worker left in PyTorch's folder of compiled extensions.

Before PyTorch 2.14, `torch.utils.cpp_extension` makes a file called `lock` before it compiles, and
removes it at the end. A process that finds one waits for ever. So each later start would hang, in
later runs too, until a user removes the file. Since 2.14 the kernel holds the lock, and frees it
with its process: this module does nothing then, and goes when 2.14 is the oldest supported.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psutil

QUIET_S: Final = 300.0
"""No process compiles beside a lock for so long without writing a file."""
_LOCAL: Final = frozenset(
    {"apfs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
)
"""File systems that one machine has to itself."""
_ALL_PROCESSES: Final = 0xEFFFFFFC  # PROC_PID_INIT_INO of Linux: the namespace that sees all others


def outlive_their_process(torch: Path) -> bool:
    """Return whether the locks of the PyTorch in that folder stay when their process is killed."""
    source = torch / "utils" / "cpp_extension.py"
    return source.exists() and "FileBaton(" in source.read_text(encoding="utf-8")


def build_root(environment: Mapping[str, str]) -> Path:
    """Return the folder in which PyTorch compiles extensions for this user."""
    if (told := environment.get("TORCH_EXTENSIONS_DIR")) is not None:
        return Path(told)
    cache = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - as
    return Path(cache) / "torch_extensions"  # PyTorch does, which fails for no user


def holder_may_be_hidden(lock: Path) -> bool:
    """Return whether another machine, or a container that shares the folder, may compile there."""
    if not _is_on_local_disk(lock):
        return True
    if _sees_every_process():
        return False
    with contextlib.suppress(OSError):
        written_s = max(path.stat().st_mtime for path in (lock.parent, *lock.parent.iterdir()))
        return time.time() - written_s < QUIET_S
    return True


class BuildLocks:
    """The locks that one node's workers may find."""

    def __init__(
        self,
        root: Path,  # the folder in which extensions are compiled, each in a folder of its own
        *,
        node: str,  # the node's name
        say: Callable[[str], object],  # receives a sentence on what was removed
        # Returns whether a lock's holder may be a process that this one cannot see.
        may_be_hidden: Callable[[Path], bool] = holder_may_be_hidden,
    ) -> None:
        self._root, self._node, self._say = root, node, say
        self._may_be_hidden = may_be_hidden
        self._own: set[Path] = set()  # that workers of this node have held
        self._said: set[str] = set()

    @classmethod
    def here(cls, node: str, say: Callable[[str], object]) -> "BuildLocks | None":
        """Return those of this user; `None` if PyTorch's locks go with their process."""
        torch = find_spec("torch")  # which imports nothing
        folders = (torch and torch.submodule_search_locations) or ()
        if any(outlive_their_process(Path(folder)) for folder in folders):
            return cls(build_root(os.environ), node=node, say=say)
        return None

    def note(self, held: Iterable[str]) -> None:
        """Remember the locks that workers of this node hold to compile."""
        self._own.update(Path(lock).resolve() for lock in held)

    def clear(self) -> None:
        """Remove locks without a holder; called before a start, when no worker of this node runs.

        A folder that cannot be read or written keeps no worker from starting; it is said once.
        """
        try:
            self._clear()
        except OSError as error:
            if (text := f"cannot look after locks of compilations: {error}") not in self._said:
                self._said.add(text)
                self._say(f"{self._node} {text}")

    def _clear(self) -> None:
        found = {*self._root.glob("*/lock"), *self._root.glob("*/*/lock"), *self._own}
        locks = {lock.resolve() for lock in found if lock.exists()}
        # A holder keeps its lock open, which tells one that is left from one that is held.
        for lock in locks - set(map(Path, _open_files() if locks else ())):
            if lock in self._own or not self._may_be_hidden(lock):
                who = "a worker" if lock in self._own else "a process that compiled there"
                with contextlib.suppress(FileNotFoundError):  # another node here removed it
                    lock.unlink()
                    self._say(f"removed {lock}: {who} was killed before it was done")
        self._own.clear()


def _is_on_local_disk(path: Path) -> bool:
    """Return whether the file system is one that no other machine writes to."""
    kinds = {one.mountpoint: one.fstype for one in psutil.disk_partitions(all=True)}
    found = (kinds[str(one)] for one in path.parents if str(one) in kinds)
    return next(found, "") in _LOCAL


def _sees_every_process() -> bool:
    """Return whether all processes of this machine are seen, as they are not in a container."""
    namespace = Path("/proc/self/ns/pid")
    return not namespace.exists() or namespace.stat().st_ino == _ALL_PROCESSES


def _open_files() -> Iterator[str]:
    """Yield the paths of the files that this user's processes have open on this machine."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.uids().real == os.getuid():
                yield from (file.path for file in process.open_files())
