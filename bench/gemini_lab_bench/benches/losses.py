"""Whether memory suffices after real losses just where the placement says so: Fig. 9 for real.

In one lab of four nodes every pair of them is killed at once, one pair after the other, with groups
and with a ring. The exact chance for two lost nodes is the share of pairs that memory survives.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gemini_lab.errors import GeminiError
from gemini_lab.injector.failures import NodesLoss
from gemini_lab.lab.lab import Lab
from gemini_lab.lab.run import Run
from gemini_lab.placement import plan_placement, recovery_probability
from gemini_lab.training.quickstart import gpt_job
from gemini_lab_bench.benches.live_lab import ready_lab, wait_for
from gemini_lab_bench.progress import say
from gemini_lab_bench.rows import Row, single

NODES: Final = 4
LOST: Final = 2
STRATEGIES: Final = ("group", "ring")
BETWEEN: Final = 5  # iterations, and as often a version goes to the persistent tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Nodes that were lost at once, and what came of it."""

    positions: tuple[int, ...]  # where they were
    tier: str  # where the version came from that training went on from


def bench(repeats: int) -> list[Row]:
    """Lose every pair of nodes `repeats` times, in an order that is drawn."""
    rng = random.Random(repeats)
    pairs = [*itertools.combinations(range(NODES), LOST)] * repeats
    rows: list[Row] = []
    with ready_lab(NODES, LOST) as lab:
        for strategy in STRATEGIES:
            lab.wait_until_ready()
            run = lab.train(
                gpt_job(size="tiny", iterations=10**6),
                name=strategy,
                strategy=strategy,
                persist_every_iterations=BETWEEN,
                persistent_url=f"file://{lab.folder}/store-{strategy}",
            )
            losses: list[Loss] = []
            for pair in rng.sample(pairs, len(pairs)):
                losses.append(_lose(lab, run, pair))
                say(f"{strategy}: loss {len(losses)} of {len(pairs)}")
            run.stop()
            rows += rows_of(strategy, losses)
    return rows


def rows_of(strategy: str, losses: Sequence[Loss]) -> list[Row]:
    """Return how often memory sufficed beside the exact chance, and losses beside the placement."""
    placement = plan_placement(nodes=NODES, strategy=strategy)
    kept = [loss.tier == "memory" for loss in losses]
    otherwise = [
        loss.positions
        for loss, is_kept in zip(losses, kept, strict=True)
        if is_kept != placement.survives(loss.positions)
    ]
    settings = {"nodes": NODES, "lost_at_once": LOST, "losses": len(losses)}
    share = sum(kept) / len(kept)
    exact = float(recovery_probability(placement, LOST))
    return [
        single(f"{strategy}: memory sufficed", share, settings),
        single(f"{strategy}: exact chance", exact, settings),
        single(
            f"{strategy}: losses otherwise than placement says",
            len(otherwise),
            {**settings, "which": otherwise} if otherwise else settings,
        ),
    ]


def _lose(lab: Lab, run: Run, positions: tuple[int, ...]) -> Loss:
    """Kill the nodes on these positions once training has come some iterations further.

    Raises:
        GeminiError: The run does not get on.
    """
    lab.wait_until_ready()
    wait_for(run, iteration=run.iteration + BETWEEN + 2)
    before = run.recoveries
    names = tuple(run.members[position] for position in positions)
    run.inject(NodesLoss(names))
    wait_for(run, recoveries=before + 1)
    new = run.report().recoveries[before:]  # more than one where they were noticed one by one
    tier = new[-1].tier
    kept = set(names) & set(run.members)  # `lost_nodes` has those that the first notice named
    if tier is None or kept:
        raise GeminiError(f"{names} were to be lost, and {sorted(kept)} train on")
    return Loss(positions=positions, tier=tier)
