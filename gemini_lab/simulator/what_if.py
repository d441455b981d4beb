"""What protection would cost and give on a cluster of one's own: `plan(...)` in one cell."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gemini_lab.errors import CapacityError, ConfigError
from gemini_lab.pipeliner.schedule import ChunkSchedule
from gemini_lab.placement import (
    Placement,
    Proposal,
    plan_placement,
    propose_placement,
    recovery_probability,
)
from gemini_lab.placement.memory import BUFFERS
from gemini_lab.simulator.catalog import model_named
from gemini_lab.simulator.failures import FailureRate, poisson_failures
from gemini_lab.simulator.outcome import Outcome
from gemini_lab.simulator.policy import POLICIES, Policy, expected_wasted_s, gemini
from gemini_lab.simulator.simulate import simulate
from gemini_lab.simulator.traffic import chunk_schedule
from gemini_lab.simulator.workload import Workload
from gemini_lab.units import format_bytes, format_seconds, parse_bandwidth, parse_bytes

TOKENS_PER_GPU: Final = 8 * 512
FLOPS_PER_GPU: Final = 6 * 100.3e9 * TOKENS_PER_GPU / 62
"""The paper's GPT-2 100B: micro-batches of 8 x 512 tokens, 62 s an iteration: 40 TFLOP/s a GPU."""
IDLE_SHARE: Final = 0.154
"""Of the paper's GPT-2 100B iteration on p4d, the network is idle this share."""
SPAN_SHARES: Final = (0.28, *[0.144] * 5)
"""How that idle time is cut into spans: 28 % in the largest is fitted, see `paper_workload`."""
NETWORK_SHARE: Final = 0.6
"""Checkpoint traffic's share of the link's nominal rate: 240 of 400 Gbit/s in Fig. 8."""
FAILURES: Final = 300
LONGEST_DAYS: Final = 3650.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What to expect of one policy.

    Attributes:
        wasted_s: Mean wasted time of a failure by Eq. (1), lost nodes replaced (a model).
        outcome: A simulated run with Poisson failures.
    """

    policy: Policy
    wasted_s: float
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The answer of `plan`.

    Attributes:
        workload: The job and its cluster as they were understood.
        placement: Who keeps whose replica.
        memory_needed_bytes: CPU memory a node for checkpoints: m shards in two buffers each.
        checkpoint_s: To send the m - 1 remote copies of a shard at the rate that the link gives.
        schedule: How one GPU's part of it fits the idle spans.
        recovery_probability: Chance that memory suffices when k nodes are lost at once, by k.
        forecasts: One a policy.
        proposal: The m that the planner would pick, with its reasoning.
        assumptions: Every number that was not given.
    """

    workload: Workload
    placement: Placement
    memory_needed_bytes: int
    checkpoint_s: float
    schedule: ChunkSchedule
    recovery_probability: Mapping[int, float]
    forecasts: tuple[Forecast, ...]
    proposal: Proposal
    assumptions: tuple[str, ...]

    def __repr__(self) -> str:
        best = max(self.forecasts, key=lambda each: each.outcome.effective_ratio)
        return (
            f"WhatIf({self.workload.nodes} nodes, {format_bytes(self.workload.checkpoint_bytes)} "
            f"a checkpoint, picks m = {self.proposal.placement.replicas}, best: "
            f"{best.policy.name} with {best.outcome.effective_ratio:.1%} effective, simulated)"
        )

    def facts(self) -> list[tuple[str, str]]:
        """Question and answer, in words."""
        chances = ", ".join(f"k = {k}: {p:.4%}" for k, p in self.recovery_probability.items())
        delay_s, every = self.schedule.delay_s, self.schedule.every_iterations
        return [
            ("checkpoint", format_bytes(self.workload.checkpoint_bytes)),
            ("shard of a node", format_bytes(self.workload.shard_bytes)),
            ("memory a node", format_bytes(self.memory_needed_bytes)),
            ("time to send the replicas", format_seconds(self.checkpoint_s)),
            ("idle time of an iteration", format_seconds(self.workload.idle_s)),
            (
                "a version is sent",
                f"every {every} iterations, to be worth its delay"
                if every > 1
                else "every iteration",
            ),
            (
                "it lengthens its iteration",
                "no" if delay_s < 1e-3 else f"by {format_seconds(delay_s)} (model)",
            ),
            ("memory suffices for k lost nodes", chances),
            ("m that the planner picks", self.proposal.reason),
        ]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Policy, wasted time (model), wasted time and effective ratio (simulation)."""
        return [
            (
                each.policy.name,
                format_seconds(each.wasted_s),
                format_seconds(each.outcome.wasted_s),
                f"{each.outcome.effective_ratio:.2%}",
            )
            for each in self.forecasts
        ]

    def __str__(self) -> str:
        lines = [f"{question:<34}{answer}" for question, answer in self.facts()]
        lines += ["", f"{HEAD[0]:<12}{HEAD[1]:>22}{HEAD[2]:>26}{HEAD[3]:>28}"]
        lines += [f"{a:<12}{b:>22}{c:>26}{d:>28}" for a, b, c, d in self.rows()]
        return "\n".join([*lines, "", *(f"- {text}" for text in self.assumptions)])

    def _repr_html_(self) -> str:
        def table(rows: Sequence[Sequence[str]]) -> str:
            cells = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
            return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"

        notes = "".join(f"<li>{html.escape(text)}</li>" for text in self.assumptions)
        return f"{table(self.facts())}{table([HEAD, *self.rows()])}<ul>{notes}</ul>"


HEAD: Final = ("policy", "wasted (Eq. 1, model)", "wasted (simulation)", "effective (simulation)")


def plan(
    *,
    params: str | float,
    nodes: int,
    gpus_per_node: int = 8,
    network: str | float,
    store: str | float,
    failures_per_node_per_day: float = 0.015,
    replicas: int = 2,
    memory: str | float | None = None,
    iteration_s: float | None = None,
    idle_s: float | None = None,
    standbys: int = 1,
    racks: Sequence[str] | None = None,
    max_overhead: float | None = 0.03,
    target: float = 0.999,
    seed: int = 0,
) -> WhatIf:
    """Say what in-memory checkpoints would cost and give on a cluster.

    Args:
        params: Size of the model, such as `"70B"`, a name of the catalog, or a number.
        nodes: Machines, N.
        gpus_per_node: GPUs on each.
        network: Nominal rate of a node's link, such as `"400 Gbit/s"`.
        store: Rate of the shared persistent store, all nodes together.
        failures_per_node_per_day: Failures that lose a node and its memory.
        replicas: Copies of each shard, m.
        memory: CPU memory a node for checkpoints; without it, it is taken to suffice.
        iteration_s: Duration of an iteration; without it, a guess from the paper's GPU rate.
        idle_s: Network idle time of an iteration; without it, the paper's share.
        standbys: Machines that wait.
        racks: Failure domain of each node.
        max_overhead: Share of the iteration that replicas may cost on average; where sending every
            version costs more, only every j-th is sent. None sends every version.
        target: Chance with which the planner's own m has to make memory suffice for 30 days.
        seed: Of the simulation.

    Raises:
        ConfigError: An input is out of range.
        CapacityError: The memory cannot hold the replicas.
    """
    if failures_per_node_per_day < 0:
        raise ConfigError(f"a failure rate starts at 0 (got {failures_per_node_per_day} a day)")
    placement = plan_placement(nodes=nodes, replicas=replicas, racks=racks)
    workload, assumptions = _workload(
        params,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        network=network,
        store=store,
        iteration_s=iteration_s,
        idle_s=idle_s,
        standbys=standbys,
    )
    needed = BUFFERS * replicas * workload.shard_bytes
    room = BUFFERS * 6 * workload.shard_bytes if memory is None else parse_bytes(memory)
    if needed > room:
        raise CapacityError(
            f"{replicas} replicas need {format_bytes(needed)} a node ({replicas} shards of "
            f"{format_bytes(workload.shard_bytes)}, {BUFFERS} buffers each), but there are "
            f"{format_bytes(room)}; lower `replicas`, or use more nodes or memory"
        )
    ours = gemini(workload, replicas=replicas, max_overhead=max_overhead)
    repair_s = workload.detection_s + ours.serialise_s + ours.peer_s
    if not standbys:
        repair_s += sum(workload.replacement_s) / 2
    return WhatIf(
        workload=workload,
        placement=placement,
        memory_needed_bytes=needed,
        checkpoint_s=(replicas - 1) * workload.shard_bytes / workload.network_bytes_per_s,
        schedule=chunk_schedule(workload, replicas=replicas, max_overhead=max_overhead),
        recovery_probability={
            k: float(recovery_probability(placement, k)) for k in range(1, min(nodes, 4) + 1)
        },
        forecasts=_forecasts(workload, ours, placement, failures_per_node_per_day, seed),
        proposal=propose_placement(
            nodes=nodes,
            failures_per_node_per_day=failures_per_node_per_day,
            repair_s=repair_s,
            memory_bytes=room,
            shard_bytes=workload.shard_bytes,
            target=target,
            racks=racks,
        ),
        assumptions=(*assumptions, *(f"{f.name}: {f.assumptions}" for f in _policies(workload))),
    )


def _workload(
    params: str | float,
    *,
    nodes: int,
    gpus_per_node: int,
    network: str | float,
    store: str | float,
    iteration_s: float | None,
    idle_s: float | None,
    standbys: int,
) -> tuple[Workload, list[str]]:
    """The job in numbers, and those among them that were not given."""
    size = model_named(params).params if isinstance(params, str) else float(params)
    assumed = [
        f"checkpoint traffic gets {NETWORK_SHARE:.0%} of the link, as in the paper's Fig. 8",
        (
            "detection 15 s, serialisation 0.93 GB/s a node, warm-up 253 s, a new machine in 4 to "
            "7 min: the paper's Fig. 14"
        ),
    ]
    if iteration_s is None:
        iteration_s = 6 * size * TOKENS_PER_GPU / FLOPS_PER_GPU
        assumed.append(
            f"an iteration takes {format_seconds(iteration_s)}: {TOKENS_PER_GPU} tokens a GPU at "
            f"{FLOPS_PER_GPU / 1e12:.0f} TFLOP/s, the rate of the paper's runs; give "
            "`iteration_s`"
        )
    if idle_s is None:
        idle_s = IDLE_SHARE * iteration_s
        assumed.append(
            f"the network is idle {IDLE_SHARE:.1%} of an iteration, as in the paper's 100 B run; "
            "give `idle_s`, or profile your job"
        )
    workload = Workload(
        nodes=nodes,
        params=size,
        gpus_per_node=gpus_per_node,
        iteration_s=iteration_s,
        idle_spans_s=tuple(share * idle_s for share in SPAN_SHARES),
        network_bytes_per_s=NETWORK_SHARE * parse_bandwidth(network),
        copy_bytes_per_s=parse_bandwidth(network),
        store_bytes_per_s=parse_bandwidth(store),
        standbys=standbys,
    )
    return workload, assumed


def _policies(workload: Workload) -> list[Policy]:
    return [make(workload) for make in POLICIES]


def _forecasts(
    workload: Workload, ours: Policy, placement: Placement, rate: float, seed: int
) -> tuple[Forecast, ...]:
    """Every policy on the same failures, enough of them to mean something."""
    per_day = rate * workload.nodes
    days = min(LONGEST_DAYS, max(30.0, FAILURES / per_day)) if per_day else 30.0
    outages = poisson_failures(
        nodes=workload.nodes, days=days, rate=FailureRate(per_node_per_day=rate), seed=seed
    )
    forecasts = []
    for policy in _policies(workload):
        used, where = (ours, placement) if policy.name == ours.name else (policy, None)
        wasted_s = expected_wasted_s(workload, used)
        outcome = simulate(workload, used, outages, days=days, placement=where, seed=seed)
        forecasts.append(Forecast(policy=used, wasted_s=wasted_s, outcome=outcome))
    return tuple(forecasts)
