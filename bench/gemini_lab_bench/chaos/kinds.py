"""Kinds of faults that a campaign strikes with, as plain values; the injector's by its names."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final, Literal

import msgspec

from gemini_lab.errors import ConfigError
from gemini_lab.injector.failures import (
    BitFlip,
    Failure,
    NodeLoss,
    RackLoss,
    RootLoss,
    WorkerCrash,
    WorkerHang,
    WrongSums,
    meaning,
)

Place = Literal["rank", "standby", "pair", "rack", "all", "root", "elsewhere"]
Means = Literal["nothing", "disk", "network", "clock", "store", "sockets"]
JobForm = Literal["usual", "verified", "resizable"]
Moment = Literal[
    "calm",
    "meanwhile",
    "together",
    "fence",
    "inventory",
    "plan",
    "start",
    "retrieve",
    "warm_up",
    "save",
    "commit",
    "end",
]
AIMED: Final[tuple[Moment, ...]] = (
    "fence",
    "inventory",
    "plan",
    "start",
    "retrieve",
    "warm_up",
)
"""Moments in a recovery, by the step that has just begun."""
OF_SAVES: Final[tuple[Moment, ...]] = ("save", "commit")
"""Moments of a save: it begins; its version is in the tier."""


class FaultKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something that can break."""

    text: str  # what is done, for people
    # Of whom: a rank's node, a standby, the nodes that keep a shard, a rack, all nodes, the root's
    # node, or what is no node's.
    place: Place = "elsewhere"
    # What the run must have for it: a tier with a disk of its own, or one behind a store that can
    # be broken, nodes with networks of their own, or clocks of their own, or leave to close other
    # processes' sockets.
    needs: Means = "nothing"
    lasts_s: tuple[float, float] | None = None  # between which durations it lasts; `None`: for good
    ends_run: bool = False  # whether the run is over with it: nothing comes after it
    # Whether a recovery is sure to come of it, for others to be aimed at.
    begins_recovery: bool = False
    costs_s: float = 2.0  # about how long a campaign takes for one, on a small busy machine
    # Which form of the job it is for; other than the usual one it is only drawn where it is named.
    job: JobForm = "usual"
    at: tuple[Moment, ...] = ()  # the moments that it comes at, where it does not come at any
    # The kinds one of which mostly strikes with it, as it is hardly felt alone.
    beside: tuple[str, ...] = ()
    repeats: bool = False  # whether it may come back after a pause, once or twice


SHORT: Final = (0.1, 9.0)  # around a lease of 2 s: some are back before they are missed
AWAY: Final = (0.1, 12.0)
PAST_LEASE: Final = (4.0, 15.0)
SMALLER: Final = (2.0, 15.0)
NOTICE: Final = (1.0, 20.0)  # some machines are taken before their ranks have moved
MOMENT: Final = (0.05, 0.5)  # about what a word takes
REFUSING: Final = (0.05, 1.2)  # within a lease of 2 s: who refuses beyond it is as good as dead
EDITS: Final = (4.0, 40.0)
STORE: Final = (2.0, 30.0)  # some until long after a start has asked for what it lost


def _failure(
    kind: type[Failure],
    *,
    place: Place = "rank",
    begins_recovery: bool = False,
    costs_s: float = 2.0,
    job: JobForm = "usual",
) -> FaultKind:
    """Return the kind that the injector has too, by the same name and in the same words."""
    words = meaning(kind).rstrip(".")
    text = words if words.startswith("SIG") else words[0].lower() + words[1:]
    return FaultKind(text, place, begins_recovery=begins_recovery, costs_s=costs_s, job=job)


def _store(text: str, *, beside: tuple[str, ...] = ("pair_kill",)) -> FaultKind:
    """Return a kind of a store's answers, felt if memory has lost what is asked for."""
    return FaultKind(text, needs="store", lasts_s=STORE, costs_s=12, beside=beside, repeats=True)


def _limit(text: str, *, place: Place = "rank") -> FaultKind:
    """Return what an agent can have no more of, felt where it has to start something."""
    beside = ("node_loss", "worker_crash")
    return FaultKind(text, place, lasts_s=AWAY, costs_s=10, beside=beside, repeats=True)


KINDS: Final[dict[str, FaultKind]] = {
    "worker_crash": _failure(WorkerCrash, begins_recovery=True, costs_s=5),
    "worker_hang": _failure(WorkerHang, begins_recovery=True, costs_s=14),
    "worker_stop": FaultKind("a worker stopped, and continued", "rank", lasts_s=SHORT, costs_s=6),
    "warm_kill": FaultKind("SIGKILL to a warm parent", "rank", begins_recovery=True, costs_s=6),
    "warm_stop": FaultKind("a warm parent stopped, and continued", "rank", lasts_s=SHORT),
    "bulk_kill": FaultKind("SIGKILL to a node's bulk processes", "rank"),
    "bulk_stop": FaultKind("bulk processes stopped, and continued", "rank", lasts_s=SHORT),
    "agent_kill": FaultKind("SIGKILL to an agent alone", "rank", begins_recovery=True, costs_s=6),
    "agent_stop": FaultKind("an agent stopped, and continued", "rank", lasts_s=SHORT, costs_s=6),
    "node_loss": _failure(NodeLoss, begins_recovery=True, costs_s=8),
    "node_stop": FaultKind("all of a node stopped: it returns", "rank", lasts_s=SHORT, costs_s=7),
    "node_return": FaultKind(
        "all of a node frozen past its lease: its place is given away, and it returns",
        "rank",
        lasts_s=PAST_LEASE,
        begins_recovery=True,
        costs_s=12,
    ),
    "node_drain": FaultKind(
        "a node drained on a notice, and all of it killed when that is over",
        "rank",
        lasts_s=NOTICE,
        costs_s=10,
    ),
    "root_loss": _failure(RootLoss, place="root", begins_recovery=True, costs_s=10),
    "root_stop": FaultKind(
        "the root's node stopped: it returns", "root", lasts_s=SHORT, costs_s=10
    ),
    "standby_kill": FaultKind("SIGKILL to all of a standby", "standby", costs_s=4),
    "standby_stop": FaultKind("a standby stopped: it returns", "standby", lasts_s=SHORT),
    "pair_kill": FaultKind(
        "SIGKILL to all who keep a shard", "pair", begins_recovery=True, costs_s=30
    ),
    "pair_stop": FaultKind(
        "all who keep a shard stopped: they return", "pair", lasts_s=SHORT, costs_s=12
    ),
    "rack_loss": _failure(RackLoss, place="rack", begins_recovery=True, costs_s=15),
    "rack_stop": FaultKind("all of a rack stopped: it returns", "rack", lasts_s=SHORT, costs_s=12),
    "all_kill": FaultKind(
        "SIGKILL to all nodes and standbys", "all", begins_recovery=True, costs_s=40
    ),
    "all_stop": FaultKind("all nodes stopped: they return", "all", lasts_s=SHORT, costs_s=12),
    "link_cut": FaultKind("the connection of node and root closed", "rank"),
    "worker_cut": FaultKind(
        "all connections between two workers closed", "rank", begins_recovery=True, costs_s=5
    ),
    "link_slow": FaultKind(
        "all of a node's traffic at 64 KiB/s", "rank", needs="network", lasts_s=AWAY, costs_s=8
    ),
    "partition": FaultKind(
        "a node cut off from everybody", "rank", needs="network", lasts_s=AWAY, costs_s=10
    ),
    "partition_out": FaultKind(
        "nothing that a node sends arrives", "rank", needs="network", lasts_s=AWAY, costs_s=10
    ),
    "partition_in": FaultKind(
        "nothing that is sent to a node arrives", "rank", needs="network", lasts_s=AWAY, costs_s=10
    ),
    "clock_step": FaultKind(
        "a node's clock set, by up to an hour either way", "rank", needs="clock"
    ),
    "bit_flip": _failure(BitFlip),
    "wrong_sums": _failure(WrongSums, begins_recovery=True, costs_s=8, job="verified"),
    "resize": FaultKind(
        "the run resized to a node less, and back",
        lasts_s=SMALLER,
        begins_recovery=True,
        costs_s=10,
        job="resizable",
    ),
    "etcd_kill": FaultKind("SIGKILL to etcd", costs_s=4),
    "etcd_stop": FaultKind("etcd stopped, and continued", lasts_s=AWAY, costs_s=4),
    "owner_stop": FaultKind("the run's owner stopped, and continued", lasts_s=SHORT, costs_s=5),
    "owner_kill": FaultKind("SIGKILL to the run's owner", ends_run=True, costs_s=20),
    "log_full": FaultKind("the disk of the run's log full", lasts_s=AWAY, costs_s=5),
    "tier_away": FaultKind("the persistent tier cannot be reached", lasts_s=AWAY),
    "tier_full": FaultKind("the persistent tier's disk full", needs="disk", lasts_s=AWAY),
    "tier_hang": FaultKind("writes to the tier hang", needs="disk", lasts_s=AWAY),
    "tier_slow": FaultKind("writes to the tier crawl", needs="disk", lasts_s=AWAY),
    "tier_flip": FaultKind("a bit turned in the tier's newest shard"),
    "tier_torn": FaultKind("the tier's newest manifest cut short"),
    "tier_unread": _store(
        "the tier lists its files, and gives none (503, as a store that is asked too much)"
    ),
    "tier_unlisted": _store("the tier lists nothing, though all is there"),
    "tier_late": _store("the tier's lists are some versions old"),
    "tier_stale": _store("what is read of the tier is some versions old"),
    "tier_cut": _store("reads of the tier give half of each file"),
    "tier_html": _store("reads of the tier give a proxy's page"),
    "tier_denied": _store("the tier refuses reads and writes: permission denied"),
    "tier_slow_call": _store("one call to the tier, and no other, takes long"),
    "link_flap": FaultKind(
        "all links of an agent to others closed, again and again, as a request is made",
        "rank",
        needs="sockets",
        lasts_s=MOMENT,
        at=OF_SAVES,
        beside=("node_drain", "rewind"),
        repeats=True,
    ),
    "port_refuse": FaultKind(
        "an agent's connections closed, and its port refuses for a moment",
        "rank",
        needs="sockets",
        lasts_s=REFUSING,
        costs_s=6,
        repeats=True,
    ),
    "agent_files": _limit("an agent that can open no further files"),
    "agent_memory": _limit("an agent that gets no further memory"),
    "standby_shm": _limit("a standby whose memory files can grow no further", place="standby"),
    "script_edit": FaultKind(
        "the script's own module edited, and edited back",
        lasts_s=EDITS,
        costs_s=8,
        beside=("worker_crash", "node_loss"),
    ),
    "rewind": FaultKind("training told to take back some iterations, and do them again"),
    "hands": FaultKind(
        "three shells ask at once, for -1, 10^9, 2^62 or 10^30 of something",
        lasts_s=SHORT,
        costs_s=8,
    ),
    "save_kill": FaultKind(
        "SIGKILL to all of a node as a version is saved",
        "rank",
        begins_recovery=True,
        costs_s=8,
        at=OF_SAVES,
    ),
    "save_root_kill": FaultKind(
        "SIGKILL to all of the root's node as a version is saved",
        "root",
        begins_recovery=True,
        costs_s=10,
        at=OF_SAVES,
    ),
    "end_kill": FaultKind("SIGKILL to all of a node as the run ends", "rank", at=("end",)),
}
"""Every kind by its name."""
USUAL: Final = tuple(name for name, kind in KINDS.items() if kind.job == "usual")
"""Those that a campaign draws where none is named."""


def named(words: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds that words name, in the words' order; a word may be a pattern as `tier_*`.

    Raises:
        ConfigError: A word names none.
    """
    found: dict[str, None] = {}
    for word in words:
        if not (kinds := [kind for kind in KINDS if fnmatchcase(kind, word)]):
            raise ConfigError(f"no fault is called {word!r}; choose from {', '.join(KINDS)}")
        found |= dict.fromkeys(kinds)
    return tuple(found)
