"""One rank of three, of which two cut their link; run by test_cut_link."""

import json
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from gemini_lab.engine.session import cut_link

rank, port = int(sys.argv[1]), int(sys.argv[2])
store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=3, timeout=timedelta(seconds=20))
dist.all_reduce(torch.zeros(1))
told = {"rank": rank, "reaches": []}
if rank:
    told["cut"] = cut_link(f"127.0.0.1:{port}", rank, 3 - rank)
else:
    told["cut"] = 0
for other in {0, 1, 2} - {rank}:  # a small message fits where nobody takes it yet
    try:
        sent = dist.isend(torch.tensor([rank]), other)
        dist.recv(room := torch.tensor([-1]), other)
        sent.wait()
        told["reaches"].append(room.item())
    except RuntimeError:
        pass
print(json.dumps(told), flush=True)
sys.stdin.read(1)  # rank 0 serves the store, and nobody's end closes a link
os._exit(0)
