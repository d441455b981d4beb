"""PyTorch's reconfigurable Gloo groups, with a rank that is killed amid an all-reduce.

    python docs/examples/gloo_reconfigure.py [ROUNDS]

It needs PyTorch 2.14 or later and nothing else. Four ranks all-reduce, and rank 2 is killed. Each
survivor prints when its all-reduce failed, though `abort` is called from another thread after 3 s.
Then a new process takes rank 2, and all join again by `_reconfigure`.
"""
# ruff: noqa: ANN001, D103, SLF001
# mypy: ignore-errors

import multiprocessing as mp
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

RANKS, LOST, TIMEOUT_S, ABORT_AFTER_S = 4, 2, 20.0, 3.0


def rank(number: int, store_port: int, inbox, outbox) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", store_port, is_master=False)
    dist.init_process_group(
        "gloo", store=store, rank=number, world_size=RANKS,
        timeout=timedelta(seconds=TIMEOUT_S), enable_reconfigure=True,
    )  # fmt: skip
    outbox.put((number, "handle", dist._get_reconfigure_handle()))
    while True:
        uuid, handles, dies = inbox.get()
        began = time.monotonic()
        dist._reconfigure(uuid, handles, timeout=timedelta(seconds=TIMEOUT_S)).wait()
        joined = time.monotonic() - began
        one = torch.ones(8)
        dist.all_reduce(one)
        outbox.put((number, "joined", (dist.get_rank(), joined, one[0].item())))
        if dies and number == LOST:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        aborts = threading.Timer(ABORT_AFTER_S, dist.group.WORLD.abort)
        aborts.daemon = True
        aborts.start()
        began = time.monotonic()
        try:
            dist.all_reduce(torch.ones(1 << 22))
            how = "went through"
        except RuntimeError as error:
            how = str(error).split("] ")[-1][:70]
        aborts.cancel()
        threads = len([*Path("/proc/self/task").iterdir()])
        outbox.put((number, "failed", (time.monotonic() - began, how, threads)))
        outbox.put((number, "handle", dist._get_reconfigure_handle()))


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(f"PyTorch {torch.__version__}: timeout {TIMEOUT_S} s, abort after {ABORT_AFTER_S} s")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context, outbox = mp.get_context("spawn"), mp.get_context("spawn").Queue()
    inboxes, processes = {}, {}
    heard = {"handle": {}, "joined": {}, "failed": {}}

    def start(number: int) -> None:
        inboxes[number] = context.Queue()
        processes[number] = context.Process(
            target=rank, args=(number, store.port, inboxes[number], outbox), daemon=True
        )
        processes[number].start()

    def told(what: str, count: int) -> dict:
        while len(heard[what]) < count:
            number, kind, value = outbox.get(timeout=2 * TIMEOUT_S + 20)
            heard[kind][number] = value
        found, heard[what] = heard[what], {}
        return found

    for number in range(RANKS):
        start(number)
    handles = told("handle", RANKS)
    for round_ in range(rounds):
        for number in range(RANKS):
            inboxes[number].put((round_ + 1, [handles[n] for n in range(RANKS)], True))
        joined = told("joined", RANKS)
        print(
            f"round {round_}: joined in {max(one[1] for one in joined.values()):.3f} s, "
            f"sums {sorted(one[2] for one in joined.values())}"
        )
        for number, (after_s, how, threads) in sorted(told("failed", RANKS - 1).items()):
            print(f"  rank {number}: after {after_s:5.1f} s, {threads} threads: {how}")
        processes[LOST].join()
        start(LOST)
        handles = told("handle", RANKS)


if __name__ == "__main__":
    main()
