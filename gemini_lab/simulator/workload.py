"""Workload of a simulation: a training job and its cluster, in numbers."""

import math
from dataclasses import dataclass, replace
from typing import Final, Self

from gemini_lab.errors import ConfigError
from gemini_lab.recovery.wasted_time import checkpoint_bytes
from gemini_lab.simulator.catalog import MODELS
from gemini_lab.simulator.times import Measured, Times
from gemini_lab.units import GB, check_number

SERIALISE_BYTES_PER_S: Final = 75.2 * GB / 81
"""One node's shard of GPT-2 100B, 75.2 GB, takes torch.save 81 s (paper, section 7.3)."""
NETWORK_SHARE: Final = 0.6
"""Checkpoint traffic's share of the link's nominal rate: 240 of 400 Gbit/s in Fig. 8."""
REPLACEMENT_S: Final = (240.0, 420.0)
"""From when a machine is asked for until it is there, in the paper: 4 to 7 min (Fig. 14)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One job on one cluster; the defaults of the times are the paper's (Fig. 14).

    Attributes:
        nodes: Machines that train, N.
        params: Parameters of the model; a checkpoint has 12 bytes for each.
        iteration_s: Duration of an iteration without checkpoints, T_iter.
        idle_spans_s: Idle times of the training network in an iteration, in order, all before the
            optimizer step.
        network_bytes_per_s: What checkpoint traffic gets of a node's link.
        store_bytes_per_s: The shared persistent store, all nodes together.
        gpus_per_node: Each sends and keeps its own part of the node's shard.
        copy_bytes_per_s: From GPU to CPU memory, a node; without it, as fast as the network
            (footnote 2).
        serialise_bytes_per_s: torch.save, a node.
        detection_s: From a failure until all know of it.
        warm_up_s: From loaded states until training runs at full speed.
        replacement_s: Shortest and longest time until a new machine is there.
        standbys: Machines that wait to take a lost one's place.
        times: What a real run's log says of its times; without it nothing is drawn from one.
        assumed: What its log did not say and was taken for granted, in words.
    """

    nodes: int
    params: float
    iteration_s: float
    idle_spans_s: tuple[float, ...]
    network_bytes_per_s: float
    store_bytes_per_s: float
    gpus_per_node: int = 8
    copy_bytes_per_s: float | None = None
    serialise_bytes_per_s: float = SERIALISE_BYTES_PER_S
    detection_s: float = 15.0
    warm_up_s: float = 253.0
    replacement_s: tuple[float, float] = REPLACEMENT_S
    standbys: int = 0
    times: Times | None = None
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_number("nodes", self.nodes, least=1, is_whole=True)
        check_number("gpus_per_node", self.gpus_per_node, least=1, is_whole=True)
        check_number("standbys", self.standbys, is_whole=True)
        check_number("detection_s", self.detection_s)
        check_number("warm_up_s", self.warm_up_s)
        above_zero = {
            "params": self.params,
            "iteration_s": self.iteration_s,
            "network_bytes_per_s": self.network_bytes_per_s,
            "store_bytes_per_s": self.store_bytes_per_s,
            "serialise_bytes_per_s": self.serialise_bytes_per_s,
            "copy_bytes_per_s": self.copy_rate,
        }
        for name, value in above_zero.items():
            check_number(name, value, is_above=True)
        if len(self.replacement_s) != 2 or not (
            0 <= self.replacement_s[0] <= self.replacement_s[1] < math.inf
        ):
            raise ConfigError(
                "`replacement_s` is the shortest and the longest time, from 0 on (got "
                f"{self.replacement_s})"
            )
        if not all(span >= 0 for span in self.idle_spans_s) or self.idle_s > self.iteration_s:
            raise ConfigError(
                f"idle spans of {self.idle_s:g} s in all do not fit an iteration of "
                f"{self.iteration_s:g} s; none may be negative"
            )

    @property
    def checkpoint_bytes(self) -> int:
        """Size of a whole checkpoint."""
        return checkpoint_bytes(self.params)

    @property
    def shard_bytes(self) -> int:
        """Size of one node's part of it."""
        return -(-self.checkpoint_bytes // self.nodes)

    @property
    def idle_s(self) -> float:
        """Network idle time of an iteration."""
        return sum(self.idle_spans_s)

    @property
    def copy_rate(self) -> float:
        """Bytes per second from GPU to CPU memory, a node."""
        return self.network_bytes_per_s if self.copy_bytes_per_s is None else self.copy_bytes_per_s

    @property
    def store_s(self) -> float:
        """To write a whole checkpoint to the store, or to read it."""
        return self.checkpoint_bytes / self.store_bytes_per_s

    @property
    def serialise_s(self) -> float:
        """To serialise one node's shard."""
        return self.shard_bytes / self.serialise_bytes_per_s

    @classmethod
    def from_log(
        cls,
        measured: Measured,
        *,
        store_bytes_per_s: float | None = None,
        standbys: int | None = None,
        detection_s: float | None = None,
        warm_up_s: float | None = None,
        replacement_s: tuple[float, float] | None = None,
    ) -> Self:
        """Make the workload of a real run from the times in its log (`report.measure`).

        The network's rate is the shard's share of the time until a version was whole; idle spans
        are not in a log, so the whole iteration is taken for idle and what it waited for
        checkpoints stands in `times.waited`. Detection and warm-up are the means of all recoveries,
        and machines take as long to come as those that came. Where none came, they take as long as
        the paper's, and `assumed` says so.

        Args:
            measured: What the log says.
            store_bytes_per_s: Of the persistent tier; by default as fast as the network.
            standbys: Instead of as many as the run had.
            detection_s: Of a run without recoveries, which does not tell it.
            warm_up_s: The same.
            replacement_s: Shortest and longest time until a machine is there, instead of the log's.

        Raises:
            ConfigError: The log has no recovery, and the times of one are not given, or it has one
                and they are.
        """
        times = measured.times
        detect_s, warm_s = _recovery_s(times, detection_s, warm_up_s)
        shard_bytes = -(-measured.checkpoint_bytes // measured.nodes)
        sent = max(1, measured.replicas - 1) * shard_bytes
        rate = sent / max(times.version.mean_s, 1e-6)
        assumed: tuple[str, ...] = ()
        if replacement_s is not None:
            times = replace(times, replacement=None)
        elif times.replacement is not None:
            replacement_s = min(times.replacement.samples_s), max(times.replacement.samples_s)
        else:
            replacement_s = REPLACEMENT_S
            least_s, most_s = REPLACEMENT_S
            text = (
                f"{times.source} has no machine that came: one takes {least_s:g} to {most_s:g} s "
                "here, as in the paper's Fig. 14; give `replacement_s`"
            )
            assumed = (text,)
        return cls(
            nodes=measured.nodes,
            params=measured.checkpoint_bytes / 12,
            iteration_s=times.iteration.mean_s,
            idle_spans_s=(times.iteration.mean_s,),
            network_bytes_per_s=rate,
            store_bytes_per_s=store_bytes_per_s or rate * measured.nodes,
            gpus_per_node=measured.gpus_per_node,
            detection_s=detect_s,
            warm_up_s=warm_s,
            replacement_s=replacement_s,
            standbys=measured.standbys if standbys is None else standbys,
            times=times if any(times.recoveries.values()) else None,
            assumed=assumed,
        )


def _recovery_s(
    times: Times, detection_s: float | None, warm_up_s: float | None
) -> tuple[float, float]:
    """Return detection and warm-up: the log's means, or as given if it has no recovery."""
    if any(times.recoveries.values()):
        if detection_s is not None or warm_up_s is not None:
            raise ConfigError(
                f"{times.source} tells detection and warm-up; leave out `detection_s` and "
                "`warm_up_s`, or change the workload by dataclasses.replace(..., times=None)"
            )
        return times.spread("detect").mean_s, times.spread("warm_up").mean_s
    if detection_s is None or warm_up_s is None:
        raise ConfigError(
            f"{times.source} has no recovery that tells how long detection and warm-up take; learn "
            "from a run with failures (`gemini-lab quickstart` makes one), or give `detection_s` "
            "and `warm_up_s`"
        )
    return detection_s, warm_up_s


def paper_workload(*, nodes: int = 16, standbys: int = 0) -> Workload:
    """Return GPT-2 100B on p4d.24xlarge machines with a store of 20 Gbit/s (section 7.1).

    The iteration is the text's 62 s. The idle time of 10 s is read from Fig. 8; how it is cut
    into spans is not published: 28 % in the largest of six is fitted to what is known of Fig. 16's
    job. Checkpoint traffic gets 240 Gbit/s of the 400, by Fig. 8's 2.5 s. With more nodes, times
    stay what they are with 16, as the paper's Fig. 15b assumes: 62 s an iteration, 8 min to the
    store, and 81 s to serialise a shard, although that shard is smaller.
    """
    model = MODELS["GPT-2 100B"]
    return Workload(
        nodes=nodes,
        params=model.params,
        iteration_s=62.0,
        idle_spans_s=(2.8, *[1.44] * 5),
        network_bytes_per_s=NETWORK_SHARE * 400e9 / 8,
        copy_bytes_per_s=400e9 / 8,
        store_bytes_per_s=20e9 / 8,
        serialise_bytes_per_s=SERIALISE_BYTES_PER_S * 16 / nodes,
        standbys=standbys,
    )
