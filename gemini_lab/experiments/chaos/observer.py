"""An observer of a run's memory: whether a whole version is there at every instant.

It reads the headers of all slabs from outside, through the descriptors of the agents that own them,
and asks nobody. What it must not see: that no version is whole any more, though no agent is gone
that was there when one was.
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

from gemini_lab.errors import IntegrityError
from gemini_lab.experiments.chaos.victims import nodes_of
from gemini_lab.memory.slab import CopyInfo, Slab
from gemini_lab.node.processes import is_alive

LOOK_S: Final = 0.05
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

    Attributes:
        looks: How many there were at which a version was whole.
        gaps_s: When no version was whole, without a holder gone: each time, the first moment.
    """

    def __init__(self, shards: int) -> None:
        self.looks = 0
        self.gaps_s: list[float] = []
        self._shards = range(shards)
        self._holders: frozenset[Hashable] | None = (
            None  # when a version was whole last, none gone since
        )

    def is_whole(self, held: Held) -> bool:
        """Whether all shards of some version are there, all of one lineage."""
        shards: dict[Hashable, set[int]] = {}
        for copies in held.values():
            for copy in copies:
                shards.setdefault((copy.version, copy.lineage), set()).add(copy.shard)
        return any(found.issuperset(self._shards) for found in shards.values())

    def is_explained(self, held: Held) -> bool:
        """Whether one is, or none needs to be: none was yet, or a holder is gone."""
        return self.is_whole(held) or self._holders is None or not self._holders <= set(held)

    def look(self, held: Held, at_s: float) -> None:
        """Take in what every living holder has."""
        if self.is_whole(held):
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

    Attributes:
        seen: What it saw.
    """

    def __init__(self, mark: str, shards: int) -> None:
        self.seen = Wholeness(shards)
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
        """What each agent has that lives before and after it was read."""
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
        """The slabs that a process has open; those that are new are attached to."""
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
