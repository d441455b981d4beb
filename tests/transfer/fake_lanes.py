"""Devices of some ranks whose lanes work in any order that their waiting allows, all in one thread.

What is at work is as NCCL has it: an operation stays at the head of its lane until its counterparts
are at the heads of theirs. A device on which operations of two communicators are at work at once is
what may hang a GPU; it is an error here.
"""

import random
import threading
import time
from collections import deque

import torch

LANES = ("training", "nccl", "wire", "bus", "local")


class NotYetError(Exception):
    """A mark is not reached; ask again later."""


class Devices:
    """Those of all ranks, and their order of work."""

    def __init__(self, world: int, seed: int) -> None:
        self.world = world
        self.draw = random.Random(seed)
        self.queues = {(rank, lane): deque() for rank in range(world) for lane in LANES}
        self.given = dict.fromkeys(self.queues, 0)
        self.done = dict.fromkeys(self.queues, 0)

    def give(self, rank: int, lane: str, kind: str, *what) -> None:
        self.queues[rank, lane].append((kind, *what))
        self.given[rank, lane] += 1

    def mark(self, rank: int, lane: str) -> tuple:
        return (rank, lane, self.given[rank, lane])

    def reached(self, mark: tuple) -> bool:
        rank, lane, count = mark
        return self.done[rank, lane] >= count

    def step(self) -> bool:
        """Let one random lane do its next work; false if none can."""
        for key in self.draw.sample(list(self.queues), len(self.queues)):
            if self.queues[key] and self._work(key):
                self._check_one_communicator()
                return True
        return False

    def _work(self, key: tuple[int, str]) -> bool:
        kind, *what = self.queues[key][0]
        if kind == "follow" and not self.reached(what[0]):
            return False
        if kind == "collective":
            return self._collective(what[0])
        if kind == "swap":
            return self._swap(key[0], *what)
        if kind == "do":
            what[0]()
        self._finish(key)
        return True

    def _finish(self, key: tuple[int, str]) -> None:
        self.queues[key].popleft()
        self.done[key] += 1

    def _collective(self, number: int) -> bool:
        keys = [(rank, "nccl") for rank in range(self.world)]
        if any(not self.queues[k] or self.queues[k][0] != ("collective", number) for k in keys):
            return False
        for key in keys:
            self._finish(key)
        return True

    def _swap(self, rank: int, sends: list, _receives: list) -> bool:
        """Move what a counterpart waits for; the operation ends when nothing is left of it."""
        moved = False
        for number in reversed(range(len(sends))):
            source, peer = sends[number]
            other = self.queues[peer, "wire"]
            into = other[0][2] if other and other[0][0] == "swap" else []
            match = next((n for n, (_, sender) in enumerate(into) if sender == rank), None)
            if match is not None:
                into.pop(match)[0].copy_(source)
                sends.pop(number)
                moved = True
        for one in range(self.world):
            queue = self.queues[one, "wire"]
            if queue and queue[0][0] == "swap" and not queue[0][1] and not queue[0][2]:
                self._finish((one, "wire"))
                moved = True
        return moved

    def _check_one_communicator(self) -> None:
        for rank in range(self.world):
            heads = [self.queues[rank, lane] for lane in ("nccl", "wire")]
            at_work = [queue[0][0] for queue in heads if queue and queue[0][0] != "follow"]
            busy = {"collective", "swap"} <= set(at_work)
            assert not busy, f"two communicators are at work on rank {rank}"


class FakeLanes:
    """One rank's side of `Devices`: what `gemini_lab.transfer.device_queues.Lanes` asks for."""

    def __init__(self, devices: Devices, rank: int) -> None:
        self.devices, self.rank = devices, rank
        self.rooms: list[torch.Tensor] = []

    def enter_thread(self) -> None:
        pass

    def room(self, size_bytes: int) -> torch.Tensor:
        self.rooms.append(torch.empty(size_bytes, dtype=torch.uint8))
        return self.rooms[-1]

    def copy(self, lane, target, source) -> None:
        self.devices.give(self.rank, lane, "do", lambda: target.copy_(source))

    def swap(self, lane, sends, receives) -> None:
        assert lane == "wire"
        self.devices.give(self.rank, lane, "swap", list(sends), list(receives))

    def mark(self, lane) -> tuple:
        return self.devices.mark(self.rank, lane)

    def follow(self, lane, mark) -> None:
        self.devices.give(self.rank, lane, "follow", mark)

    def join(self, lane, work) -> None:
        self.follow(lane, self.mark("training") if work is None else work)

    def finish(self, mark) -> None:
        """Wait on a thread that seals; the test's own, which moves all lanes, asks again later."""
        is_own = threading.current_thread() is threading.main_thread()
        ends_s = time.monotonic() + 60
        while not is_own and not self.devices.reached(mark) and time.monotonic() < ends_s:
            time.sleep(0.0002)
        if not self.devices.reached(mark):
            raise NotYetError

    # -- what training does ----------------------------------------------------------------------

    def compute(self, work) -> None:
        self.devices.give(self.rank, "training", "do", work)

    def collective(self, number: int, *, is_async: bool) -> tuple | None:
        """Call one as torch does: on a lane of its own, after what was computed so far."""
        self.follow("nccl", self.mark("training"))
        self.devices.give(self.rank, "nccl", "collective", number)
        if is_async:
            return self.mark("nccl")
        self.follow("training", self.mark("nccl"))
        return None


class GlooLanes:
    """Lanes that do everything at once, and swap by a group of their own on CPUs."""

    def __init__(self, group) -> None:
        self.group = group

    def room(self, size_bytes: int) -> torch.Tensor:
        return torch.zeros(size_bytes, dtype=torch.uint8)

    home = room

    def enter_thread(self) -> None:
        pass

    def require_here(self, _tensors) -> None:
        pass

    def copy(self, _lane, target, source) -> None:
        target.copy_(source)

    def swap(self, _lane, sends, receives) -> None:
        works = [self.group.isend(one, peer) for one, peer in sends]
        works += [self.group.irecv(one, peer) for one, peer in receives]
        for work in works:
            work.wait()

    def mark(self, _lane) -> None:
        pass

    def follow(self, _lane, _mark) -> None:
        pass

    def join(self, _lane, _work) -> None:
        pass

    def finish(self, _mark) -> None:
        pass
