"""The `overhead` bench: what a checkpoint of every iteration costs training (paper, Fig. 7).

The other side of the comparison is the same script under plain torchrun: no agent, no hook, nothing
of ours but, where a link is emulated, its pacing.
"""

import tempfile
from typing import Final

from gemini_lab.experiments.bench import Row
from gemini_lab.experiments.benches.copy import memory_rows, wire_rows
from gemini_lab.experiments.benches.timed_runs import (
    AS_IF_LARGE,
    TimedRun,
    Workload,
    in_lab,
    under_torchrun,
)
from gemini_lab.lab.lab import Lab
from gemini_lab.units import MB, MIB

IDLE: Final = Workload(
    iterations=40, counted=16, layer_s=0.04, link_bytes_per_s=80.0 * MB, zero=AS_IF_LARGE
)
"""A paced link, idle for longer than a checkpoint takes, as an accelerator would leave it."""
LOOPBACK: Final = Workload(size="small", iterations=12, counted=8)
"""Nothing emulated: computing, copying and sending share the CPU."""
PROFILE_ITERATIONS: Final = 8


def bench(repeats: int) -> list[Row]:
    """Iteration times with and without checkpoints, in turn; a ratio is that of one turn."""
    with (
        tempfile.TemporaryDirectory(prefix="gemini-lab-bench-") as folder,
        Lab(2, 0, folder=folder) as lab,
    ):
        idle = [
            {
                "plain torchrun": under_torchrun(IDLE),
                "gemini": in_lab(lab, IDLE, scheme="gemini", profile_iterations=PROFILE_ITERATIONS),
                "blocking": in_lab(lab, IDLE, scheme="blocking"),
            }
            for _ in range(repeats)
        ]
        loopback = [
            {
                "plain torchrun": under_torchrun(LOOPBACK),
                "background": in_lab(lab, LOOPBACK),
                "blocking": in_lab(lab, LOOPBACK, scheme="blocking"),
            }
            for _ in range(repeats)
        ]
    return [
        *compare(idle, IDLE, name="idle link"),
        *compare(loopback, LOOPBACK, name="loopback"),
        *_floor(loopback, repeats),
    ]


def compare(turns: list[dict[str, TimedRun]], workload: Workload, *, name: str) -> list[Row]:
    """Iteration times of each arm, and what they are beside those of the first arm, turn by turn.

    The processor time is what rank 0's process takes more of in an iteration: what no idle time of
    a network hides.

    Args:
        turns: For each repeat, the arms by name; the first one is what the others are held against.
        workload: What all of them ran.
        name: What to call it.
    """
    base, *others = turns[0]
    rows = [
        Row(
            name=f"{name}, {arm}",
            values=tuple(turn[arm].iteration_s for turn in turns),
            settings=workload.conditions,
        )
        for arm in (base, *others)
    ]
    rows += [
        Row(
            name=f"{name}, {arm} / {base}",
            values=tuple(turn[arm].iteration_s / turn[base].iteration_s for turn in turns),
            unit="",
        )
        for arm in others
    ]
    rows += [
        Row(
            name=f"{name}, {arm}: processor time added, {where}",
            values=tuple(getattr(turn[arm], of) - getattr(turn[base], of) for turn in turns),
        )
        for arm in others
        for where, of in (("the whole process", "process_s"), ("its training thread", "thread_s"))
    ]
    return rows


def _floor(turns: list[dict[str, TimedRun]], repeats: int) -> list[Row]:
    """What background checkpoints add to an iteration, beside the least that their bytes take.

    The least is one copy, one checksum and one exchange by bare Gloo of the same bytes, each alone.
    """
    payload_bytes = turns[0]["background"].sent_bytes
    rates = {row.name: row.median for row in (*memory_rows(repeats), *wire_rows(repeats))}
    size_mib = payload_bytes / MIB
    floor_s = sum(size_mib / rates[name] for name in ("memcpy", "checksum", "bare Gloo"))
    added = tuple(
        turn["background"].iteration_s - turn["plain torchrun"].iteration_s for turn in turns
    )
    return [
        Row(name="loopback, added by background", values=added),
        Row(name="loopback, floor", values=(floor_s,), settings={"bytes": payload_bytes}),
        Row(name="loopback, added / floor", values=tuple(one / floor_s for one in added), unit=""),
    ]
