"""Requests: what a user asks of a run, one value from the shell to the root agent.

A request travels as JSON: from a command to the owner of the run in an `Ask`, and from the owner to
the root agent in the store, as a `StoredRequest` that numbers it. A new verb is a class here, a
method of `Requestable`, a case of the root agent, and a command.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Annotated, Any, ClassVar, Final

import msgspec

from gemini_lab.errors import ConfigError, shown
from gemini_lab.limits import Count, require_text
from gemini_lab.placement.planner import check_placement
from gemini_lab.seats import listed
from gemini_lab.units import LARGEST, check_number, most_of

REQUESTS: Final = "requests/"
"""In the store: a key for each kind of request, and for each node that is to be drained."""
LONGEST_BYTES: Final = 20_000
"""Of a stored request; the longest node's name is far below it."""

Rising = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""The number of a request: nanoseconds, which all 64 bits hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The state of a run, as far as a request is checked against it."""

    name: str  # the run's
    living: Sequence[str]  # nodes whose agents live, standbys included
    members: Sequence[str]  # nodes with ranks
    settings: Mapping[str, Any]  # of the job; empty until its script has called `protect`
    placed: int | None  # number of nodes of a placement that the user gave; `None` without one
    workers_per_node: int
    model_parallel_size: int  # ranks that hold one model between them; see `events.Protected`
    # Returns why this machine has no memory for so many more nodes, or nothing.
    lacks_memory: Callable[[int], str]


def _verb(name: str) -> str:
    """`GiveUpProgress` is `give_up_progress` in JSON."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Request(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="ask",
    tag=_verb,
):
    """A wish of a user; its numbers and texts are checked where it is made and where it arrives."""

    # Why a run that is over cannot do it; empty if such a run has nothing left to do.
    late: ClassVar[str] = ""

    @property
    def key(self) -> str:
        """Key in the store; a newer request with the same key replaces an older one."""
        return REQUESTS + _verb(type(self).__name__)

    def answer(self, run: str) -> str:
        """Return what the owner of `run` tells the user."""
        raise NotImplementedError

    def check(self, run: RunFacts) -> None:
        """Refuse what this run cannot do.

        Raises:
            ConfigError: It cannot.
        """


class StopRun(Request, frozen=True, kw_only=True):
    """End the run; its log and persistent versions stay."""

    def answer(self, run: str) -> str:
        return f"{run} ends"


class SaveVersion(Request, frozen=True, kw_only=True):
    """Save the next version to the persistent tier, because the run may end soon."""

    def answer(self, run: str) -> str:
        return f"the next version of {run} goes to the persistent tier"


class GiveUpProgress(Request, frozen=True, kw_only=True):
    """Go on from the best version at hand instead of waiting for newer ones."""

    def answer(self, run: str) -> str:
        return f"{run} no longer waits for versions that may come back"


class RewindRun(Request, frozen=True, kw_only=True):
    """Take back iterations."""

    steps: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]  # how many
    skip: bool = True  # whether their batches do not come again

    late = "no iteration of it can be taken back"

    def __post_init__(self) -> None:
        check_number("steps", self.steps, least=1, is_whole=True)

    def answer(self, run: str) -> str:
        return f"{run} goes back when its ranks have agreed on where"


class ResizeRun(Request, frozen=True, kw_only=True):
    """Change the number of nodes."""

    nodes: Annotated[int, msgspec.Meta(ge=1, le=int(most_of("nodes")))]

    late = "it has no size any more"

    def __post_init__(self) -> None:
        check_number("nodes", self.nodes, least=1, is_whole=True)

    def answer(self, run: str) -> str:
        return f"{run} continues with {self.nodes} nodes as soon as it can"

    def check(self, run: RunFacts) -> None:
        settings = run.settings
        if "replicas" in settings:
            reason = why_no_size(
                scheme=settings.get("scheme", ""),
                replicas=settings.get("replicas", 1),
                strategy=settings.get("strategy", "auto"),
                nodes=self.nodes,
                placed=run.placed,
                workers_per_node=run.workers_per_node,
                model_parallel_size=run.model_parallel_size,
            )
            if reason:
                raise ConfigError(f"{run.name} cannot have {self.nodes} nodes: {reason}")
        more = self.nodes - len(run.living)
        if why := run.lacks_memory(more):
            raise ConfigError(f"{run.name} cannot have {self.nodes} nodes, {more} more: {why}")


class DrainNode(Request, frozen=True, kw_only=True):
    """Move the ranks of a node to another machine, because its machine is about to go."""

    node: str

    late = "no node of it has to be drained"

    def __post_init__(self) -> None:
        require_text("a node's name", self.node)

    @property
    def key(self) -> str:
        """A key of its own for each node: a second drain does not replace the first."""
        return f"{super().key}/{self.node}"

    def answer(self, run: str) -> str:
        return f"{self.node} leaves {run} as soon as its ranks can move"

    def check(self, run: RunFacts) -> None:
        if self.node not in run.living:
            raise ConfigError(
                f"no node {shown(self.node)} is there; there are {listed(run.living)}"
            )
        settings = run.settings
        if self.node in run.members and "replicas" in settings:
            reason = why_no_drain(scheme=settings["scheme"], replicas=settings["replicas"])
            if reason:
                raise ConfigError(f"{self.node} cannot be drained: {reason}")


def why_no_drain(*, scheme: str, replicas: int) -> str:
    """Return why no node of a job with these settings can be drained; empty if they can."""
    if scheme == "none":
        return 'with scheme "none" there are no versions with which its ranks could go on elsewhere'
    if replicas == 1:
        return "with one replica nobody else has its shards; use 2 or more"
    return ""


def why_no_size(
    *,
    scheme: str,
    replicas: int,
    nodes: int,
    strategy: str = "auto",
    placed: int | None = None,
    workers_per_node: int = 1,
    model_parallel_size: int = 1,
) -> str:
    """Return why a job with these settings cannot go on with so many nodes; empty if it can.

    Args:
        scheme: When versions leave.
        replicas: Copies of each shard.
        nodes: The number of nodes asked for.
        strategy: How copies are placed.
        placed: Number of nodes of the placement that came with the job, if one did.
        workers_per_node: Ranks of each.
        model_parallel_size: Ranks that hold one model between them; 0 if that is unknown.
    """
    if scheme == "none":
        return 'with scheme "none" there are no versions with which another number could go on'
    if placed not in {None, nodes}:
        return f"the placement that came with the job is of {placed} nodes"
    if nodes < 1:
        return "a run needs at least one node"
    if reason := _why_not_placed(nodes, replicas, strategy):
        return reason
    if not model_parallel_size:
        return (
            "its ranks hold different tensors, and nothing tells which of them are data-parallel: "
            "fully_shard does, or DistributedDataParallel over some ranks"
        )
    ranks = nodes * workers_per_node
    if not ranks % model_parallel_size:
        return ""
    step = model_parallel_size // gcd(model_parallel_size, workers_per_node)
    near = (nodes // step * step, (nodes // step + 1) * step)
    will_do = [str(n) for n in near if n and not _why_not_placed(n, replicas, strategy)]
    return (
        f"a model takes {model_parallel_size} ranks (tensor or pipeline parallel), and {nodes} "
        f"nodes have {ranks}; give it {' or '.join(will_do) or f'a multiple of {step}'}"
    )


def _why_not_placed(nodes: int, replicas: int, strategy: str) -> str:
    try:
        check_placement(nodes=nodes, replicas=replicas, strategy=strategy)
    except ConfigError as error:
        return str(error)
    return ""


AnyRequest = StopRun | SaveVersion | GiveUpProgress | RewindRun | ResizeRun | DrainNode


class StoredRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request in the store."""

    job: Count  # number of the job that it is for
    number: Rising  # rises from request to request: the same request once more is news
    request: AnyRequest  # the wish

    @classmethod
    def following(
        cls, items: Mapping[str, str], job: int, request: AnyRequest, *, now_ns: int
    ) -> "StoredRequest":
        """Return the request with a number above all those in the store's content.

        An owner's clock may have been ahead, and the root agent ignores a number that does not
        rise.
        """
        number = max([now_ns, *(1 + one.number for _, one in stored_requests(items))])
        return cls(job=job, number=number, request=request)

    def to_text(self) -> str:
        """Return its value in the store."""
        return msgspec.json.encode(self).decode()


def stored_requests(items: Mapping[str, str]) -> Iterator[tuple[str, StoredRequest]]:
    """Yield the requests in the store's content with their keys; what is none is skipped.

    Anybody with the lab's token may have written there, and all ranks compute with these numbers.
    """
    for key, text in items.items():
        if key.startswith(REQUESTS) and len(text) <= LONGEST_BYTES:
            try:
                yield key, msgspec.json.decode(text, type=StoredRequest)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue


class NewRequests:
    """The requests in the store that one root agent has not read before."""

    def __init__(self) -> None:
        self._read: dict[str, StoredRequest] = {}  # the last one of each key

    def read(self, items: Mapping[str, str], *, job: int | None) -> list[StoredRequest]:
        """Return what is new for this job in the store's content, in the order of asking."""
        found = {
            key: one
            for key, one in stored_requests(items)
            if one.job == job and self._read.get(key) != one
        }
        self._read |= found
        return sorted(found.values(), key=lambda one: one.number)


class Requestable:
    """A run that users ask for something, here or at its owner elsewhere.

    Each method returns at once, with what the owner says; the run's log has what comes of it.
    """

    @abstractmethod
    def ask(self, request: AnyRequest) -> str:
        """Pass a request on, and return the answer.

        Raises:
            ConfigError: The run cannot do it, or its owner does not answer.
        """

    def stop(self) -> str:
        """End the run; its log and persistent versions stay."""
        return self.ask(StopRun())

    def save_version(self) -> str:
        """Save the next version to the persistent tier, however new the last saved one is."""
        return self.ask(SaveVersion())

    def give_up_progress(self) -> str:
        """Go on from the best version at hand: do not wait for newer ones that may come back.

        A waiting run says for what, in its log and in `progress`. Training computes again what it
        gives up; if training is not deterministic, that progress is lost. Versions that come back
        later are not used again.
        """
        return self.ask(GiveUpProgress())

    def rewind(self, steps: int, *, skip: bool = True) -> str:
        """Take back iterations without a restart of any process.

        The ranks agree on an iteration and go back at its end. The log names the version
        (`rewound`), or the reason against it (`rewind_failed`). See `protected.rewind`.

        Args:
            steps: How many of the iterations that are done by then.
            skip: Whether their batches do not come again.

        Raises:
            ConfigError: The run is over, or `steps` is no number of iterations.
        """
        return self.ask(RewindRun(steps=steps, skip=skip))

    def resize(self, nodes: int) -> str:
        """Change the number of nodes.

        All ranks stop at the end of an iteration, and the shards of its version are divided again
        from memory, so training repeats nothing. The run asks for missing machines and trains on
        until they come. The log says what the run waits for, when it has the size (`resized`), or
        why its script refuses it (`resize_refused`).

        Raises:
            ConfigError: The run is over, cannot have that size, or is all on one machine with too
                little memory for so many nodes.
        """
        return self.ask(ResizeRun(nodes=nodes))

    def drain(self, node: str) -> str:
        """Move a node's ranks to a standby, because its machine is about to go.

        All ranks stop at the end of an iteration and start again with the standby in the node's
        place, so training repeats nothing. Without a standby the node trains on until one joins.
        The log says what the run waits for, and when the machine may be taken (`node_drained`).

        Raises:
            ConfigError: The run is over, the node is not there, or no other node has its shards.
        """
        return self.ask(DrainNode(node=node))
