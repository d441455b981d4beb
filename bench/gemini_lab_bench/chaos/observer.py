"""Observers of a run's memory and of its tier: what is whole there at every instant.

One reads the headers of all slabs from outside, through the descriptors of the agents that own
them, and asks nobody. What it must not see: that no version is whole any more, though no agent is
gone that was there when one was. The other reads the tier's files, whatever the run is told of
them.
"""

import contextlib
import os
import threading
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final, Self

import psutil

from gemini_lab.errors import GeminiError, IntegrityError
from gemini_lab.memory.slab import CopyInfo, Slab
from gemini_lab.node.processes import is_alive
from gemini_lab.storage.persistent import PersistentTier
from gemini_lab_bench.chaos.aftermath import NOTHING, Seen
from gemini_lab_bench.chaos.victims import nodes_of

LOOK_S: Final = 0.05
LOOK_AT_TIER_S: Final = 0.2
FIND_S: Final = 1.0
AGAIN: Final = 20
AGAIN_S: Final = 0.005
MEMORY: Final = "/memfd:gemini-slab"

Held = Mapping[Hashable, AbstractSet[CopyInfo]]
"""The copies that each living holder has."""


class Wholeness:
    """Follows who holds what, look after look.

    Args:
        shards: How many make a version whole.
    """

    def __init__(self, shards: int) -> None:
        self.looks = 0  # how many there were at which a version was whole
        # When no version was whole, without a holder gone: each time, the first moment.
        self.gaps_s: list[float] = []
        # The newest version that was whole, at each moment at which that was another one.
        self.newest = [NOTHING]
        self._shards = range(shards)
        self._holders: frozenset[Hashable] | None = (
            None  # when a version was whole last, none gone since
        )

    def newest_whole(self, held: Held, at_s: float = 0.0) -> Seen:
        """Return the newest version of the newest lineage of which all shards are there."""
        shards: dict[tuple[int, int, int], set[int]] = {}
        for copies in held.values():
            for copy in copies:
                name = copy.lineage.epoch, copy.lineage.rewinds, copy.version
                shards.setdefault(name, set()).add(copy.shard)
        whole = [name for name, found in shards.items() if found.issuperset(self._shards)]
        epoch, rewinds, version = max(whole, default=(0, 0, 0))
        return Seen(at_s=at_s, version=version, epoch=epoch, rewinds=rewinds)

    def is_whole(self, held: Held) -> bool:
        """Return whether all shards of some version are there, all of one lineage."""
        return self.newest_whole(held).version > 0

    def is_explained(self, held: Held) -> bool:
        """Return whether one is, or none needs to be: none was yet, or a holder is gone."""
        return self.is_whole(held) or self._holders is None or not self._holders <= set(held)

    def look(self, held: Held, at_s: float) -> None:
        newest = self.newest_whole(held, at_s)
        if newest.line != self.newest[-1].line:
            self.newest.append(newest)
        if newest.version:
            self.looks += 1
            self._holders = frozenset(held)
        elif not self.is_explained(held):
            self.gaps_s.append(at_s)
            self._holders = None
        else:
            self._holders = None


class Observer:
    """Looks at the slabs of a run's agents, from entering the `with` block to leaving it.

    Args:
        mark: Of the run's processes.
        shards: Of the run.
    """

    def __init__(self, mark: str, shards: int) -> None:
        self.seen = Wholeness(shards)  # what it saw
        self._mark = mark
        self._agents: list[psutil.Process] = []
        self._slabs: dict[tuple[int, int], Slab] = {}  # by process and inode
        self._found_s = float("-inf")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="observer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._forget(set(self._slabs))

    def _go_on(self) -> None:
        while not self._is_over.wait(LOOK_S):
            held = self._held()
            for _ in range(AGAIN):
                # Slabs are read one after the other, while the run goes on.
                if self.seen.is_explained(held):
                    break
                time.sleep(AGAIN_S)
                held = self._held()
            self.seen.look(held, time.time())

    def _held(self) -> Held:
        """Return what each agent has that lives before and after it was read."""
        now_s = time.monotonic()
        if now_s > self._found_s + FIND_S:
            self._found_s = now_s
            self._agents = [node.agent for node in nodes_of(self._mark).values()]
        open_now = {place for agent in self._agents for place in self._open(agent.pid)}
        self._forget(set(self._slabs) - open_now)
        held: dict[Hashable, set[CopyInfo]] = {}
        for (pid, _), slab in self._slabs.items():
            held.setdefault(pid, set()).update(slab.copies())
        return {agent.pid: held.get(agent.pid, set()) for agent in self._agents if is_alive(agent)}

    def _open(self, pid: int) -> Iterator[tuple[int, int]]:
        """Yield the slabs that a process has open; those that are new are attached to."""
        with contextlib.suppress(OSError):
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError, IntegrityError):
                    if not str(file.readlink()).startswith(MEMORY):
                        continue
                    place = pid, file.stat().st_ino
                    if place not in self._slabs:
                        self._attach(place, file)
                    yield place

    def _attach(self, place: tuple[int, int], file: Path) -> None:
        fd = os.open(file, os.O_RDWR)
        try:
            self._slabs[place] = Slab.attach(fd)
        finally:
            os.close(fd)

    def _forget(self, places: Iterable[tuple[int, int]]) -> None:
        for place in places:
            self._slabs.pop(place).close()


class TierObserver:
    """Looks at the files of a run's tier, from entering the `with` block to leaving it.

    Args:
        folder: With the files; the run may have another way there, which may be broken.
    """

    def __init__(self, folder: Path) -> None:
        # The versions that were whole, at each moment at which these were others.
        self.seen: list[tuple[float, frozenset[int]]] = []
        self._tier = PersistentTier(str(folder))
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="tier-observer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def newest(self, spoilt: AbstractSet[int]) -> int:
        """Return the newest version that was whole there last, without those; 0 for none."""
        return max(self.seen[-1][1] - spoilt, default=0) if self.seen else 0

    def readable(self) -> frozenset[int]:
        """Return the versions there of which every bit is right, read now."""
        found = []
        for version in self._tier.versions():
            with contextlib.suppress(GeminiError):
                for shard in range(self._tier.shards(version)):
                    self._tier.read_file(version, shard)
                found.append(version)
        return frozenset(found)

    def _go_on(self) -> None:
        while not self._is_over.wait(LOOK_AT_TIER_S):
            at_s = time.time()  # what is committed later may not be seen
            with contextlib.suppress(GeminiError):
                versions = frozenset(self._tier.versions())
                if not self.seen or versions != self.seen[-1][1]:
                    self.seen.append((at_s, versions))
