"""Costs and benefits of protection on a user's cluster: `plan(...)` in one cell."""

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
from gemini_lab.simulator.forecast import (
    HISTORIES,
    Forecast,
    Price,
    Sensitivity,
    forecast,
    history_days,
    policies_for,
    tornado,
)
from gemini_lab.simulator.interval import Interval
from gemini_lab.simulator.outages import FailureRate, Outage, poisson_failures
from gemini_lab.simulator.policy import Policy, gemini, gemini_lab
from gemini_lab.simulator.traffic import chunk_schedule
from gemini_lab.simulator.workload import NETWORK_SHARE, Workload
from gemini_lab.units import (
    check_number,
    format_bytes,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
)

TOKENS_PER_GPU: Final = 8 * 512
FLOPS_PER_GPU: Final = 6 * 100.3e9 * TOKENS_PER_GPU / 62
"""The paper's GPT-2 100B: micro-batches of 8 x 512 tokens, 62 s an iteration: 40 TFLOP/s a GPU."""
IDLE_SHARE: Final = 0.154
"""Of the paper's GPT-2 100B iteration on p4d, the network is idle this share."""
SPAN_SHARES: Final = (0.28, *[0.144] * 5)
"""How that idle time is cut into spans: 28 % in the largest is fitted, see `paper_workload`."""
MOST_PER_DAY: Final = 24.0
"""Failures of a machine that are taken: with more there is nothing to plan, and much to do."""


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
        failures_per_node_per_day: As given.
        days: Length of each simulated history.
        max_overhead: As given.
        price: As given; `None`: costs are in node-hours.
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
    failures_per_node_per_day: float
    days: float
    max_overhead: float | None
    price: Price | None

    def __repr__(self) -> str:
        best = max(self.forecasts, key=lambda each: each.effective.mean)
        return (
            f"WhatIf({self.workload.nodes} nodes, {format_bytes(self.workload.checkpoint_bytes)} "
            f"a checkpoint, picks m = {self.proposal.placement.replicas}, best: "
            f"{best.policy.name} with {best.effective.mean:.1%} effective, simulated)"
        )

    def facts(self) -> list[tuple[str, str]]:
        """Return questions and answers, in words."""
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

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row a policy, as in `HEAD`; of the simulation with 95 % intervals."""
        return [
            (
                each.policy.name,
                format_seconds(each.wasted_s),
                _spread(each.simulated_wasted),
                f"{each.effective.mean:.2%} ± {each.effective.half_width:.2%}",
                f"{each.bill.idle_share:.1%}",
                _cost(each.cost_per_hour),
            )
            for each in self.forecasts
        ]

    def sensitivity(self, *, histories: int = 3) -> tuple[Sensitivity, ...]:
        """Return what halving and doubling each input does to this system's ratio, by effect.

        Args:
            histories: Simulated for each change, two or more; each takes about a tenth of a second.
        """
        replicas = self.placement.replicas
        return tornado(
            self.workload,
            lambda w: gemini_lab(w, replicas=replicas, max_overhead=self.max_overhead),
            failures_per_node_per_day=self.failures_per_node_per_day,
            days=self.days,
            seeds=range(histories),
        )

    def __str__(self) -> str:
        lines = [f"{question:<34}{answer}" for question, answer in self.facts()]
        lines += ["", _line(HEAD), *map(_line, self.rows()), "", self._cost_is(), ""]
        return "\n".join([*lines, *(f"- {text}" for text in self.assumptions)])

    def _cost_is(self) -> str:
        if self.price is None:
            return "cost: paid node-hours for a node-hour of training that counts"
        return "cost: of a node-hour of training that counts, in the price's currency"

    def _repr_html_(self) -> str:
        notes = "".join(f"<li>{_marked(text)}</li>" for text in self.assumptions)
        tables = f"{_table(self.facts())}{_table(self.rows(), head=HEAD)}"
        folded = f"<details><summary>What this assumes</summary><ul>{notes}</ul></details>"
        return f"{tables}<p>{_marked(self._cost_is())}</p>{folded}"


HEAD: Final = (
    "policy",
    "wasted (Eq. 1)",
    "wasted (simulated)",
    "effective (simulated)",
    "idle nodes",
    "cost",
)
_WIDTHS: Final = (19, 15, 19, 22, 11, 14)


def _table(rows: Iterable[Sequence[str]], *, head: Sequence[str] = ()) -> str:
    """Return rows as HTML, each with its name to the left."""
    heads = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    lines = [f"<tr>{heads}</tr>"] if head else []
    for name, *cells in rows:
        rest = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        first = f'<th scope="row" style="text-align:left">{html.escape(name)}</th>'
        lines.append(f"<tr>{first}{rest}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _marked(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _spread(seconds: Interval | None) -> str:
    if seconds is None:
        return "no recovery"
    unit, name = (1.0, "s") if seconds.mean < 120 else (60.0, "min")  # as `format_seconds` does
    if math.isinf(seconds.half_width):
        return f"{seconds.mean / unit:.1f} {name}, once"
    return f"{seconds.mean / unit:.1f} ± {seconds.half_width / unit:.1f} {name}"


def _cost(each: Interval) -> str:
    """Return a cost with its interval; without one if training may be lost entirely."""
    if not math.isfinite(each.half_width):
        return f"{each.mean:.4g}"
    return f"{each.mean:.4g} ± {float(f'{each.half_width:.1g}'):g}"


def _line(row: Sequence[str]) -> str:
    first, *others = zip(row, _WIDTHS, strict=True)
    return f"{first[0]:<{first[1]}}" + "".join(f"{cell:>{width}}" for cell, width in others)


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
    price: float | Price | None = None,
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
        price: A node-hour's, for trained, waiting and extra machines alike, or a `Price`; without
            it costs are counted in node-hours.
        seed: Of the simulation.

    Raises:
        ConfigError: An input is out of range.
        CapacityError: The memory cannot hold the replicas.
    """
    check_number("nodes", nodes, least=1, is_whole=True)
    check_number("replicas", replicas, least=1, is_whole=True)
    _check_failures(failures_per_node_per_day)
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
    needed, room = _memory(workload, replicas, memory)
    prices = price if isinstance(price, Price) else Price(node=1.0 if price is None else price)
    ours = gemini(workload, replicas=replicas, max_overhead=max_overhead)
    policies = policies_for(workload, replicas=replicas, max_overhead=max_overhead)
    days = history_days(nodes, failures_per_node_per_day)
    histories = _histories(nodes, failures_per_node_per_day, days=days, seed=seed)
    play = partial(forecast, workload, days=days, placement=placement, price=prices, seed=seed)
    return WhatIf(
        workload=workload,
        placement=placement,
        memory_needed_bytes=needed,
        checkpoint_s=(replicas - 1) * workload.shard_bytes / workload.network_bytes_per_s,
        schedule=chunk_schedule(workload, replicas=replicas, max_overhead=max_overhead),
        recovery_probability={
            k: float(recovery_probability(placement, k)) for k in range(1, min(nodes, 4) + 1)
        },
        forecasts=tuple(play(policy, histories) for policy in policies),
        proposal=propose_placement(
            nodes=nodes,
            failures_per_node_per_day=failures_per_node_per_day,
            repair_s=_repair_s(workload, ours),
            memory_bytes=room,
            shard_bytes=workload.shard_bytes,
            target=target,
            racks=racks,
        ),
        assumptions=(*assumptions, *(f"{p.name}: {p.assumptions}" for p in policies)),
        failures_per_node_per_day=failures_per_node_per_day,
        days=days,
        max_overhead=max_overhead,
        price=None if price is None else prices,
    )


def _check_failures(per_node_per_day: float) -> None:
    """Refuse a rate of failure with which nothing is trained."""
    check_number("failures_per_node_per_day", per_node_per_day)
    if per_node_per_day > MOST_PER_DAY:
        raise ConfigError(
            f"`failures_per_node_per_day` is {MOST_PER_DAY:g} at most: a machine that fails more "
            f"often than every hour trains next to nothing (got {per_node_per_day:g})"
        )


def _repair_s(workload: Workload, ours: Policy) -> float:
    """Return the time from a machine's loss until its successor has its copies again."""
    repair_s = workload.detection_s + ours.serialise_s + ours.peer_s
    if not workload.standbys:  # another machine comes first, uniformly within these bounds
        repair_s += sum(workload.replacement_s) / 2
    return repair_s


def _memory(workload: Workload, replicas: int, memory: str | float | None) -> tuple[int, int]:
    """Return the bytes that a node needs for checkpoints, and those that it has."""
    needed = BUFFERS * replicas * workload.shard_bytes
    room = BUFFERS * 6 * workload.shard_bytes if memory is None else parse_bytes(memory)
    if needed > room:
        raise CapacityError(
            f"{replicas} replicas need {format_bytes(needed)} a node ({replicas} shards of "
            f"{format_bytes(workload.shard_bytes)}, {BUFFERS} buffers each), but there are "
            f"{format_bytes(room)}; lower `replicas`, or use more nodes or memory"
        )
    return needed, room


def _histories(
    nodes: int, failures_per_node_per_day: float, *, days: float, seed: int
) -> list[tuple[Outage, ...]]:
    """Simulate the outages of the cluster in each history."""
    rate = FailureRate(per_node_per_day=failures_per_node_per_day)
    return [
        poisson_failures(nodes=nodes, days=days, rate=rate, seed=seed + number)
        for number in range(HISTORIES)
    ]


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
    """Return the job in numbers, and the names of those that were not given."""
    if not isinstance(params, str):
        check_number("params", params, is_above=True)
    if iteration_s is not None:
        check_number("iteration_s", iteration_s, is_above=True)
    if idle_s is not None:
        check_number("idle_s", idle_s)
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
