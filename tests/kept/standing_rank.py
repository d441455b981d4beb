"""One rank of a job whose process groups outlive a lost rank; run by test_groups."""

import json
import os
import signal
import sys
import threading

import torch
import torch.distributed as dist

from gemini_lab.kept.groups import StandingGroups

rank, size, ports, is_late, end, lost = (
    int(sys.argv[1]),
    int(sys.argv[2]),
    [int(port) for port in sys.argv[3].split(",")],
    sys.argv[4] == "late",
    sys.argv[5],
    {*map(int, sys.argv[6].split(","))},
)
LOST = size - 1
kept = {*range(size)} - lost


def store(number: int) -> dist.TCPStore:
    """Return the first, served by rank 0, or the second, served by the last rank if it is late."""
    is_server = is_late and rank == LOST if number and end != "cut" else rank == 0
    return dist.TCPStore("127.0.0.1", ports[number], is_master=is_server, wait_for_workers=False)


def say(**told: object) -> None:
    print(json.dumps({"rank": rank, **told}), flush=True)


second = store(1) if is_late else None
groups = StandingGroups(kept=kept if is_late else (), told=second and second.get)
groups.install()
dist.init_process_group(
    "gloo", store=store(0) if not is_late else second, rank=rank, world_size=size
)
pair = dist.new_group([*range(size)])
some = [dist.new_group([0, 1]), dist.new_group([1, 2])]  # rank 1 is in both
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)  # the set-up
say(set_up=total.item(), backend=dist.get_backend())


def sum_in_some(value: float) -> list[float]:
    """Return what this rank's part of the groups of some ranks sums up."""
    found = []
    for members, group in zip(([0, 1], [1, 2]), some, strict=True):
        if rank in members:
            part = torch.tensor([value])
            dist.all_reduce(part, group=group)
            found.append(part.item())
    return found


say(some=sum_in_some(10.0**rank))
groups.record.close()
if not is_late:
    dist.all_reduce(total, group=pair)
    say(step=total.item())
    told = []
    groups.tell = lambda: told.append("broken")
    if end == "cut":  # the word comes since it is told
        groups.tell = lambda: (told.append("broken"), groups.break_off())
        for group in groups._groups if rank == LOST else ():
            group.cut()
    elif rank in lost:
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
    for group in groups.led_by(rank, kept):
        second.set(group, groups.record.encode(group))
groups.join(second)
ours = torch.tensor([rank + 10.0])
dist.all_reduce(ours)
rows = torch.zeros(size)
dist.all_gather_into_tensor(rows, torch.tensor([float(rank)]), group=pair)
say(some_after=sum_in_some(10.0**rank))
say(after=ours.item(), rows=rows.tolist())
sys.stdout.flush()
os._exit(0)
