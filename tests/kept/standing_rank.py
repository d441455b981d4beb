"""One rank of a job whose process groups outlive a lost rank; run by test_groups."""

import json
import os
import signal
import sys
import threading

import torch
import torch.distributed as dist

from gemini_lab.kept.groups import StandingGroups
from gemini_lab.kept.record import SetUpRecord

rank, size, ports, is_late, end = (
    int(sys.argv[1]),
    int(sys.argv[2]),
    [int(port) for port in sys.argv[3].split(",")],
    sys.argv[4] == "late",
    sys.argv[5],
)
LOST = size - 1


def store(number: int) -> dist.TCPStore:
    """The first is served by rank 0, the second by the rank that comes late, if one does."""
    is_server = is_late if number and end != "cut" else rank == 0
    return dist.TCPStore("127.0.0.1", ports[number], is_master=is_server, wait_for_workers=False)


def say(**told: object) -> None:
    print(json.dumps({"rank": rank, **told}), flush=True)


record = SetUpRecord()
if is_late:
    second = store(1)
    record = SetUpRecord.decode(second.get("record"))
groups = StandingGroups(record=record, is_alone=is_late)
groups.install()
dist.init_process_group(
    "gloo", store=store(0) if not is_late else second, rank=rank, world_size=size
)
pair = dist.new_group([*range(size)])
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)  # the set-up
say(set_up=total.item(), backend=dist.get_backend())
record.close()
if not is_late:
    dist.all_reduce(total, group=pair)
    say(step=total.item())
    told = []
    groups.tell = lambda: told.append("broken")
    if end == "cut":  # the word comes since it is told
        groups.tell = lambda: (told.append("broken"), groups.break_off())
        for group in groups._groups if rank == LOST else ():
            group.cut()
    elif rank == LOST:
        os.kill(os.getpid(), signal.SIGKILL if end == "killed" else signal.SIGSTOP)
    if end == "killed":  # the word comes while the collective has failed, and else it waits
        threading.Timer(0.5, groups.break_off).start()
    elif end == "silent":
        threading.Timer(2.0, groups.break_off).start()
    before = torch.tensor([7.0])
    dist.all_reduce(before)
    handle = dist.all_reduce(before, async_op=True)
    handle.wait()
    say(broken=groups.is_broken, told=told[:1])
    second = store(1)
    if rank == 0:
        second.set("record", record.encode())
groups.join(second)
ours = torch.tensor([rank + 10.0])
dist.all_reduce(ours)
rows = torch.zeros(size)
dist.all_gather_into_tensor(rows, torch.tensor([float(rank)]), group=pair)
say(after=ours.item(), rows=rows.tolist())
sys.stdout.flush()
os._exit(0)
