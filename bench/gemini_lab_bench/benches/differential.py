"""The `differential` bench: replicas that peers make of gradients, beside replicas that are copies.

Two nodes train on slower and slower links, three times on each: without checkpoints, with copies,
and with gradients. Layers take the same emulated time throughout, in which processors are idle: so
what is felt is the network's, and not that of two ranks and what makes their versions on one small
machine. What making a version costs a processor is measured by itself, on one thread and on memory
that nobody else uses.
"""

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch

from gemini_lab.engine.frameworks.payload_blocks import WEIGHT, FlatRun
from gemini_lab.engine.gradients.maker_process import Repeater, make_version, rehearse
from gemini_lab.engine.gradients.update_recorder import RecordedStep, Update
from gemini_lab.lab.lab import Lab
from gemini_lab.memory.slab_form import Bytes
from gemini_lab.recovery.messages import MakeVersion
from gemini_lab.units import MB, MIB
from gemini_lab_bench.benches.contention import SETTINGS, crossing, workload
from gemini_lab_bench.benches.live_lab import ready_lab
from gemini_lab_bench.benches.timed_runs import TimedRun, TimedWorkload, in_lab
from gemini_lab_bench.rows import Row

LAYER_S: Final = 0.02
"""Emulated time of a layer's forward pass."""
LINKS_BYTES_PER_S: Final = (40.0 * MB, 20.0 * MB, 10.0 * MB, 6.5 * MB)
"""From links on which copies have room to such on which they take three times what there is."""
ITERATIONS: Final = 28
"""Of each run: profiled ones, those until a schedule is followed, and those that count."""
IMPORTS_S: Final = 12.0
"""So long at least a run with gradients trains before that: what makes versions imports first."""
COUNTED: Final = 10
ARMS: Final = ("none", "copies", "gradients")
NUMEL: Final = 4 * MIB
_SMALL_BYTES: Final = 4096

Turn = Mapping[float, Mapping[str, TimedRun]]
"""One repeat: for each link, the runs of all arms."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the links' speeds."""
    parser.add_argument(
        "--links",
        type=lambda text: tuple(float(one) * MB for one in text.split(",")),
        default=LINKS_BYTES_PER_S,
        metavar="MB/S,...",
        help="speeds of the nodes' links (40,20,10,6.5)",
    )


def bench(repeats: int, *, links: Sequence[float] = LINKS_BYTES_PER_S) -> list[Row]:
    """Return what making a version costs, and iteration times with both kinds of replicas."""
    made = [cost_row(kind, repeats) for kind in ("AdamW", "SGD")]
    with ready_lab(2) as lab:
        turns = [{link: _runs(lab, link) for link in links} for _ in range(repeats)]
    return [*made, *rows(turns)]


def _work(link_bytes_per_s: float, *, more: int = 0) -> TimedWorkload:
    return replace(
        workload(LAYER_S),
        link_bytes_per_s=link_bytes_per_s,
        iterations=ITERATIONS + more,
        counted=COUNTED,
    )


def _runs(lab: Lab, link_bytes_per_s: float) -> dict[str, TimedRun]:
    work = _work(link_bytes_per_s)
    none = in_lab(lab, work, scheme="none")
    copies = in_lab(lab, work, scheme="gemini", replicate="copies", **SETTINGS)
    longer = _work(link_bytes_per_s, more=math.ceil(IMPORTS_S / copies.iteration_s))
    gradients = in_lab(lab, longer, scheme="gemini", replicate="gradients", **SETTINGS)
    return dict(zip(ARMS, (none, copies, gradients), strict=True))


def rows(turns: Sequence[Turn]) -> list[Row]:
    """Return the bytes of a version, the cost of checkpoints at each point, where they are felt.

    Idle time is told as a multiple of the time that copies take the link for, in all rows. A run
    with gradients of which a counted version left in full says nothing of them, and is left out.
    """
    points = [runs for turn in turns for runs in turn.values()]
    shares = tuple(runs["gradients"].sent_bytes / runs["copies"].sent_bytes for runs in points)
    found = [Row("bytes of a version, gradients / copies", shares, unit="")]
    for link in turns[0]:
        here = [turn[link] for turn in turns]
        settings = _work(link).conditions
        values: dict[str, list[float | None]] = {
            "idle / checkpoint of copies": [_room(runs, link) for runs in here],
            "copies / none": [_cost(runs, "copies") for runs in here],
            "gradients / none": [_cost(runs, "gradients") for runs in here],
        }
        found += [
            Row(name, _there(some), unit="", settings=settings, why_not=_why_not(some))
            for name, some in values.items()
        ]
        held = {arm: [_held(runs, arm) for runs in here] for arm in ARMS[1:]}
        found += [
            Row(f"update held up, {arm}", _there(some), settings=settings, why_not=_why_not(some))
            for arm, some in held.items()
        ]
    return found + [_felt(turns, arm) for arm in ARMS[1:]]


def _felt(turns: Sequence[Turn], arm: str) -> Row:
    points = [
        [(_room(runs, link), _cost(runs, arm)) for link, runs in turn.items()] for turn in turns
    ]
    felt = [crossing([(x, y) for x, y in some if y is not None]) for some in points]
    name = f"{arm} are felt below: idle / checkpoint of copies"
    there = tuple(one for one in felt if one is not None)
    return Row(name, there, unit="", why_not="" if there else "not felt at any point")


def _room(runs: Mapping[str, TimedRun], link_bytes_per_s: float) -> float:
    return runs["copies"].idle_s / (runs["copies"].sent_bytes / link_bytes_per_s)


def _cost(runs: Mapping[str, TimedRun], arm: str) -> float | None:
    counts = _counts(runs, arm)
    return runs[arm].iteration_s / runs["none"].iteration_s if counts else None


def _held(runs: Mapping[str, TimedRun], arm: str) -> float | None:
    return runs[arm].waited_s if _counts(runs, arm) else None


def _counts(runs: Mapping[str, TimedRun], arm: str) -> bool:
    """Return whether all counted versions left as this arm's: gradients below a copy's bytes."""
    return arm != "gradients" or runs[arm].sent_bytes < 0.9 * runs["copies"].sent_bytes


def _there(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(one for one in values if one is not None)


def _why_not(values: Sequence[float | None]) -> str:
    return "" if _there(values) else "a counted version left in full"


def cost_row(kind: str, repeats: int, *, numel: int = NUMEL) -> Row:
    """Measure processor time a parameter to make a version, on one thread."""
    threads = torch.get_num_threads()
    rehearse(kind)
    memory, difference, order = _task(kind, numel)
    repeater, values = Repeater(), []
    for number in range(-1, repeats):
        started_s = time.process_time()
        make_version(order, memory, difference, repeater)
        if number >= 0:
            values.append((time.process_time() - started_s) / numel * 1e9)
    torch.set_num_threads(threads)
    settings = {"optimizer": kind, "numel": numel, "threads": 1}
    return Row(f"making a version, {kind}", tuple(values), unit="ns/param", settings=settings)


def _task(kind: str, numel: int) -> tuple[Bytes, Bytes, MakeVersion]:
    """Return a slab with room for two versions, a difference, and what to do with them."""
    states = ["exp_avg", "exp_avg_sq"] if kind == "AdamW" else ["momentum_buffer"]
    names = [WEIGHT, *states]
    tensors = {
        name: FlatRun(offset_bytes=_SMALL_BYTES + 4 * numel * number, numel=numel, dtype="float32")
        for number, name in enumerate(names)
    }
    gradient = FlatRun(offset_bytes=_SMALL_BYTES, numel=numel, dtype="float32")
    options: dict[str, Any] = {"lr": 1e-3} | ({} if kind == "AdamW" else {"momentum": 0.9})
    made: Any = getattr(torch.optim, kind)
    (group,) = made([torch.zeros(1)], **options).param_groups
    step = RecordedStep(
        kind=kind,
        modes={},
        threads=1,
        updates=(
            Update(
                tensors=tensors,
                present=tuple(names),
                gradient=gradient,
                scalars={"step": torch.tensor(7.0)} if kind == "AdamW" else {},
                options={key: value for key, value in group.items() if key != "params"},
            ),
        ),
        powers_since=0,
        small=b"",
        small_room_bytes=_SMALL_BYTES,
    ).encode()
    payload_bytes = _SMALL_BYTES + 4 * numel * len(names)
    memory, difference = (
        np.zeros(2 * payload_bytes, np.uint8),
        np.zeros(_SMALL_BYTES + 4 * numel, np.uint8),
    )
    for run in tensors.values():
        run.of(memory).uniform_(0.1, 1)
    gradient.of(difference).normal_()
    difference[: len(step)] = np.frombuffer(step, np.uint8)
    order = MakeVersion(
        base_bytes=0,
        into_bytes=payload_bytes,
        payload_bytes=payload_bytes,
        chunk_bytes=4 * MIB,
    )
    return memory, difference, order
