"""One rank of two; the second is stopped in the middle of a message. Run by test_broken.

Prints what the first finds when it is told to break off: a `version` that is on its way from the
other rank, or a `collective` of training's.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable

import torch
import torch.distributed as dist

from gemini_lab.kept.groups import StandingGroups
from gemini_lab.memory.slab import Slab, SlotSpec
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.replicator import Replicator
from gemini_lab.transfer.version import OutgoingVersion, Peers, Wire

SIZE_BYTES = 2**28
SMALL_BYTES = 2**16  # the first rank has sent its own, and waits for the other's
WITHIN_S = 20.0

kind, rank, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def say(**told: object) -> None:
    print(json.dumps(told), flush=True)


def stop_other(first: Callable[[], int], last: Callable[[], int]) -> None:
    """Stop the other rank when the first byte of a message is here, and not its last."""
    while not first():
        pass
    os.kill(int(store.get("pid")), signal.SIGSTOP)
    say(is_half=not last())


store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
if rank == 1:
    store.set("pid", str(os.getpid()))
if kind == "version":
    slots = [SlotSpec(0, SMALL_BYTES), SlotSpec(1, SIZE_BYTES)]
    slab = Slab.create(slots, chunk_bytes=SIZE_BYTES)
    group = CheckpointGroup(store, rank=rank, world_size=2, timeout_s=600)
    peers = Peers(rank=rank, sends_to=(1 - rank,), receives_from={1 - rank: 1})
    replicator = Replicator(Wire(group=group), peers, slab, on_moved=lambda _: None)
    size_bytes = SIZE_BYTES if rank else SMALL_BYTES
    state = torch.ones(size_bytes, dtype=torch.uint8)
    theirs = slab.begin(1 - rank, 1).data  # it is written next
    replicator.send(OutgoingVersion(version=1, pieces=[(0, state)], payload_bytes=size_bytes))
    if rank == 0:
        stop_other(lambda: theirs[0], lambda: theirs[-1])
        say(broken_off=replicator.stop(WITHIN_S))
        try:
            replicator.wait()
        except RuntimeError as error:
            say(error=str(error))
        replicator.close()
        threading._shutdown()  # as when a script ends
        say(whole=[copy.version for copy in slab.copies()])
    else:
        replicator.wait()
else:
    groups = StandingGroups()
    groups.install()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    numbers = torch.full((SIZE_BYTES,), rank, dtype=torch.uint8)
    under_way = dist.broadcast(numbers, 1, async_op=True)
    if rank == 0:
        stop_other(lambda: int(numbers[0]), lambda: int(numbers[-1]))
        threading.Timer(0.5, groups.break_off).start()
        future = under_way.get_future()
        under_way.wait()
        future.wait()
        say(broken=groups.is_broken)
    else:
        under_way.wait()
os._exit(0)
