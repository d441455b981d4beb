"""When to give up: a script that fails for its own reasons, a version that does not load."""

import re
import signal
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gemini_lab.log.events import FailureCause, ReplicaRejected, VersionRejected
from gemini_lab.recovery.ends import WAY_OUT, Apart
from gemini_lab.recovery.messages import RestoreFailed, WorkerEnded
from gemini_lab.recovery.plan import Copy
from gemini_lab.recovery.protocol import Emit
from gemini_lab.recovery.root_state import RootState
from gemini_lab.shard.lineage import Lineage

MAX_ATTEMPTS: Final = 3  # script errors in a row, with no iteration finished between
MAX_KILLS: Final = 10  # the same for workers that a signal ended, or that a machine cannot start
MAX_BARREN: Final = 10  # failures in a row of starts that got no further than a version
FURTHER: Final = 2  # versions that a start has to make to have got further
MOST_ERRORS: Final = 64  # of the script's own, that are kept in mind
FREE_TRIES: Final = 3  # recoveries in a row that came to nothing, before the next one pauses
LONGEST_PAUSE_S: Final = 30.0
LONGEST_ERROR: Final = 200
_OF_THE_NETWORK: Final = re.compile(
    r"connection|broken ?pipe|EOFError|\bpeer\b|gloo|nccl|timed? ?out|rendezvous|TCPStore",
    re.IGNORECASE,
)
"""In the errors that ranks raise because another one is gone."""
_OF_THE_BUILD: Final = re.compile(r"doesn't have \w+ built in")
"""In what torch raises for a backend that it was built without. That no GPU is found may be a lost
GPU's fault, and another machine's may be there."""
BARREN_WAY_OUT: Final = (
    "look for what ends workers there: memory, a library that ends their process, a batch"
)
BUILD_WAY_OUT: Final = (
    "train with a backend that this PyTorch has (gloo on CPUs), or install a PyTorch with this one"
)
HANG_WAY_OUT: Final = (
    "if that was healthy, raise min_progress_s (in a step) or idle_s (elsewhere), or do long work "
    "inside `with protected.pause(...)`"
)
PAST_WAY_OUT: Final = "call gemini_lab.protect on every rank, and before the first collective"
FINAL_ERRORS: Final = frozenset({"ConfigError", "UnsupportedError", "CapacityError"})
"""Errors that the same script on the same machines would only raise again."""
USAGE: Final = 2
"""With what argparse and its kin end a script whose arguments they refuse."""
OF_THE_MACHINE: Final = frozenset({"CapacityError"})
"""Those of them that another machine may not raise: once a run has trained, it tries one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureVerdict:
    """The decision on a run whose workers failed or hang."""

    state: RootState  # the run's, with this attempt counted
    reason: str = ""  # why it does not simply start again; empty if it does
    cause: FailureCause = "machines"  # the same for programs
    # The node that is to blame, and which the run goes on without; `None`: it ends.
    left: str | None = None


def judge_exit(
    state: RootState, exited: WorkerEnded, *, node: str, spares: Sequence[str]
) -> FailureVerdict:
    """Decide on a run after a worker ended before its script did.

    Args:
        state: Before.
        exited: What its agent said.
        node: Where it ran.
        spares: Living nodes without a position.
    """
    error, most = own_error(exited), state.read_settings().max_same_errors
    errors = (*state.faults.errors, error)[-MOST_ERRORS:] if error else state.faults.errors
    state = _with_attempt(state, [node], errors)
    if error:
        times = errors.count(error)
        reason = reason_to_stop_repeating(exited, node=node, times=times, most=most)
        if reason is not None:
            return FailureVerdict(state=state, reason=reason, cause=cause_of(exited))
    final = FINAL_ERRORS - OF_THE_MACHINE if state.reached.newest else FINAL_ERRORS
    if _is_of_usage(state, exited):
        final |= {"SystemExit"}
    reason = reason_to_give_up(exited, node=node, attempts=state.faults.attempts, final=final)
    lacks = exited.error is not None and exited.error.error in OF_THE_MACHINE
    if reason is None and lacks and len(state.faults.barren) < MAX_BARREN:
        assert exited.error is not None
        told = f"rank {exited.rank} on {node}: {exited.error.text}"
        if left := node_to_leave([node], state, spares):
            return FailureVerdict(state=state, reason=told, cause="machines", left=left)
    # No script ends so by itself: the kernel lacks memory, or somebody on that machine kills.
    is_killed = reason is None and exited.code == -signal.SIGKILL
    if (
        is_killed
        and state.faults.attempts >= MAX_ATTEMPTS
        and (left := node_to_leave(state.faults.offences, state, spares))
    ):
        told = (
            f"rank {exited.rank} on {node} (failure {state.faults.attempts} with no iteration "
            f"finished between): {_said_last(exited)}"
        )
        return FailureVerdict(state=state, reason=told, cause="machines", left=left)
    if reason is None:
        failed = f"rank {exited.rank} on {node}, exit status {exited.code}: {_said_last(exited)}"
        return _judge_barren(state, failed, cause=cause_of(exited), spares=spares)
    left = (
        None
        if _is_the_scripts(state, exited)
        else node_to_leave(state.faults.offences, state, spares)
    )
    return FailureVerdict(state=state, reason=reason, cause=cause_of(exited), left=left)


def judge_hang(
    state: RootState,
    nodes: Sequence[str],
    *,
    seen: str,
    spares: Sequence[str],
    is_past: bool,
) -> FailureVerdict:
    """Decide on a run whose workers stand still.

    Args:
        state: Before.
        nodes: Where they run.
        seen: Where they stand.
        spares: Living nodes without a position.
        is_past: Whether they have gone past `protect`, which is the script's doing.
    """
    state = _with_attempt(state, nodes)
    if state.faults.attempts < MAX_ATTEMPTS:
        return _judge_barren(state, f"{seen}, and {HANG_WAY_OUT}", cause="machines", spares=spares)
    if is_past:
        return FailureVerdict(state=state, reason=f"{seen}; {PAST_WAY_OUT}", cause="script")
    reason = f"workers stood still repeatedly: {seen}; {HANG_WAY_OUT}"
    left = node_to_leave(state.faults.offences, state, spares)
    return FailureVerdict(state=state, reason=reason, left=left)


def judge_apart(state: RootState, apart: Apart, *, spares: Sequence[str]) -> FailureVerdict:
    """Decide on a run in which ranks ended while others train on.

    It may have been for a moment's reason, such as a time that was up on one machine first; so all
    start again, once. No start would get further if the same comes after the same iteration again,
    or if the data are of unequal length.

    Args:
        state: Before.
        apart: Who ended, and who trains on.
        spares: Living nodes without a position.
    """
    nodes = [state.seats.node_of(rank) for rank in apart.ended]
    error = f"{apart.what} of rank {apart.ended[0]} over after {apart.iteration}"
    is_again = error in state.faults.errors  # after the very same iteration
    state = _with_attempt(state, nodes, (*state.faults.errors, error)[-MOST_ERRORS:])
    most = state.read_settings().max_same_errors
    times = [*map(_without_numbers, state.faults.errors)].count(_without_numbers(error))
    if is_again or apart.comes_again or (most is not None and times >= most):
        return FailureVerdict(state=state, reason=f"{apart.seen}; {WAY_OUT}", cause="script")
    return _judge_barren(state, apart.seen, cause="script", spares=spares)


def is_of_apart(exited: WorkerEnded) -> bool:
    """Return whether a worker may have ended because another one ended before it.

    It lost its peer, sums of different sizes met, which ends its process, or it is that other one.
    """
    if exited.code in {0, -signal.SIGABRT}:
        return True
    error = exited.error
    return error is not None and is_of_the_network(f"{error.error}: {error.text}")


def judge_machine(
    state: RootState, node: str, *, reason: str, spares: Sequence[str], is_told: bool = False
) -> FailureVerdict:
    """Decide on a run whose recovery failed at one machine, with no worker to blame.

    Such a failure never ends a run: without another machine it is tried again, ever later.

    Args:
        state: Before.
        node: The machine.
        reason: What failed there.
        spares: Living nodes without a position.
        is_told: Whether its agent has said that it cannot do what it was told.
    """
    offences = (*state.faults.offences, node)
    state = state.with_parts(replace(state.faults, offences=offences))
    times = offences.count(node)
    if not is_told and times < MAX_ATTEMPTS:
        return FailureVerdict(state=state)
    left = node_to_leave([node], state, spares)
    return FailureVerdict(state=state, reason=reason if left else "", left=left)


def pause_s(state: RootState) -> float:
    """Return the pause before the next start of a run that keeps failing."""
    late = state.faults.fruitless - FREE_TRIES
    return min(2.0 ** min(late, 10), LONGEST_PAUSE_S) if late > 0 else 0.0


def _with_attempt(
    state: RootState, nodes: Sequence[str], errors: tuple[str, ...] | None = None
) -> RootState:
    """Return the state with one more failed attempt, on these nodes."""
    known = state.faults
    faults = replace(
        known,
        attempts=known.attempts + 1,
        errors=known.errors if errors is None else errors,
        offences=(*known.offences, *dict.fromkeys(nodes)),
        barren=() if has_got_further(state) else (*known.barren, nodes[0]),
    )
    return replace(state, faults=faults)


def _judge_barren(
    state: RootState, failed: str, *, cause: FailureCause, spares: Sequence[str]
) -> FailureVerdict:
    """Decide on a run that deserves another start, unless too many have come to nothing.

    A worker that always fails soon after the first iteration would be started again for ever.
    """
    times = len(state.faults.barren)
    if times < MAX_BARREN:
        return FailureVerdict(state=state)
    reason = (
        f"{times} starts in a row failed before they had got {FURTHER} versions further, the last "
        f"from version {state.reached.begun}: {failed}; {BARREN_WAY_OUT}"
    )
    left = node_to_leave(state.faults.barren, state, spares)
    return FailureVerdict(state=state, reason=reason, cause=cause, left=left)


def has_got_further(state: RootState) -> bool:
    """Return whether training has got further since the last start.

    It is by the versions that it made: what is in none is done again after the next failure. Where
    none are kept, it is by iterations.
    """
    if state.phase != "running":
        return False
    reached = (
        state.reached.iteration if state.read_settings().scheme == "none" else state.reached.newest
    )
    return reached >= state.reached.begun + FURTHER


def _is_of_usage(state: RootState, exited: WorkerEnded) -> bool:
    """Return whether a script refused its arguments, which it does on any machine."""
    error = exited.error
    has_left = error is not None and error.error == "SystemExit"
    return has_left and exited.code == USAGE and not state.reached.newest


def is_of_the_network(error: str) -> bool:
    """Return whether an error reads like one that a rank raises if another one is gone."""
    if _OF_THE_BUILD.search(error):
        return False
    return error.startswith("Dist") or _OF_THE_NETWORK.search(error) is not None


def cause_of(exited: WorkerEnded) -> FailureCause:
    """Return what ended a worker and with it the run: its script, or its machine."""
    error = exited.error
    said = "" if error is None else f"{error.error}: {error.text}"
    if exited.code < 0 or is_of_the_network(said):
        return "machines"
    return "machines" if error is not None and error.error in OF_THE_MACHINE else "script"


def own_error(exited: WorkerEnded) -> str:
    """Return the script's own exception; empty if a lost machine may be the cause.

    Numbers count for nothing: an index or a step differs each time.
    """
    error = exited.error
    if exited.code <= 0 or error is None or error.error in OF_THE_MACHINE:
        return ""
    if is_of_the_network(f"{error.error}: {error.text}"):
        return ""
    return _without_numbers(f"{error.error}: {error.text}")[:LONGEST_ERROR]


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "#", text)


def reason_to_stop_repeating(
    exited: WorkerEnded, *, node: str, times: int, most: int | None
) -> str | None:
    """Return why the run ends with an error that its script has raised before.

    Args:
        exited: What its agent said.
        node: Where it ran.
        times: How often the same error has ended a worker in this run, this time included.
        most: How often it may.
    """
    if most is None or times < most:
        return None
    has_left = exited.error is not None and exited.error.error == "SystemExit"
    how = f"left with exit status {exited.code}" if has_left else "raised the same error"
    return (
        f"rank {exited.rank} on {node} {how}, {times} times in this run with no other cause: "
        f"{_said_last(exited)}; mend the script, or raise max_same_errors"
    )


def reason_to_give_up(
    exited: WorkerEnded, *, node: str, attempts: int, final: Collection[str] = FINAL_ERRORS
) -> str | None:
    """Return why the run ends with this worker; `None` if it deserves another start.

    Args:
        exited: What its agent said.
        node: Where it ran.
        attempts: Workers that failed with no iteration finished between, this one included.
        final: Errors after which no start is worth it.
    """
    error = exited.error
    lacks = error is not None and _OF_THE_BUILD.search(error.text) is not None
    is_final = lacks or (error is not None and error.error in final)
    is_machines = exited.code < 0 or (error is not None and error.error in OF_THE_MACHINE)
    if not is_final and attempts < (MAX_KILLS if is_machines else MAX_ATTEMPTS):
        return None
    is_told = error is not None and is_final and error.error != "SystemExit"
    told = f"{error.error}: {error.text}" if error is not None and is_told else _said_last(exited)
    told += f"; {BUILD_WAY_OUT}" if lacks else ""
    times = "" if is_final else f" (failure {attempts} with no iteration finished between)"
    return f"rank {exited.rank} on {node}, exit status {exited.code}{times}: {told}"


def _said_last(exited: WorkerEnded) -> str:
    lines = [line.strip() for line in exited.output.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def _is_the_scripts(state: RootState, exited: WorkerEnded) -> bool:
    """Return whether a worker would end so on any other machine, too."""
    is_final = exited.error is not None and exited.error.error in FINAL_ERRORS
    return is_final or _is_of_usage(state, exited)


def node_to_leave(offences: Sequence[str], state: RootState, spares: Sequence[str]) -> str | None:
    """Return the node on which every attempt failed, if another machine can take its place.

    A machine that was excluded counts as another one: it may be well again.

    Args:
        offences: Where each attempt did.
        state: With the newest attempt counted.
        spares: Living nodes without a position.
    """
    is_one = len({*offences}) == 1
    return offences[0] if is_one and spares and offences[0] not in state.nodes.excluded else None


def leave(state: RootState, node: str, spares: Sequence[str]) -> tuple[RootState, str]:
    """Exclude a node; without a fresh machine, use the one again that was excluded first.

    A fresh machine gets as many attempts as the run began with, and so does the first machine that
    is used again. Machines that only take turns get no more attempts, and their pauses grow.

    Args:
        state: The run's.
        node: The node to exclude.
        spares: Living nodes without a position.

    Returns:
        The state, and the node that is used again; empty for none.
    """
    has_fresh = any(spare not in state.nodes.excluded for spare in spares)
    back = "" if has_fresh else next(one for one in state.nodes.excluded if one in spares)
    nodes, faults = state.nodes, state.faults
    if node not in nodes.again or has_got_further(state):
        faults = replace(faults, attempts=0, offences=(), barren=())
    if has_fresh:
        faults = replace(faults, fruitless=0)
    nodes = nodes.used_again([back] if back else [])
    nodes = replace(nodes, excluded=(*nodes.excluded, node))
    return replace(state, nodes=nodes, faults=faults), back


def without_copy(
    state: RootState, said: RestoreFailed, lineage: Lineage, known: Sequence[Copy]
) -> RootState:
    """Return the state without a copy in memory that could not be used.

    A copy that fails although it is avoided was sent again, whole, from another node: what does
    not load then is the version, of which no copy is used again.

    Args:
        state: Before.
        said: What its worker said.
        lineage: Of the version.
        known: The copies of that shard and version in memory that are not avoided yet.
    """
    assert said.holder is not None
    bad = Copy(shard=said.shard, version=said.version, node=said.holder, lineage=lineage)
    more = known if bad in state.discarded.bad_copies else [bad]
    return state.with_parts(
        replace(state.discarded, bad_copies=(*state.discarded.bad_copies, *more))
    )


def rejections(
    before: RootState, after: RootState, said: RestoreFailed, known: Sequence[Copy]
) -> Iterator[Emit]:
    """Emit that a copy could not be used, and whether none of its version is left."""
    number = before.recovery
    yield Emit(
        event=ReplicaRejected(
            recovery=number,
            epoch=before.epoch,
            shard=said.shard,
            version=said.version,
            holder=said.holder,
            reason=said.reason,
        )
    )
    if said.holder is not None and {*known} <= {*after.discarded.bad_copies}:
        reason = f"no copy of shard {said.shard} in memory could be used"
        yield rejected_version(before, said.version, reason)


def rejected_version(state: RootState, version: int, reason: str) -> Emit:
    """Return the event that a version is tried no more."""
    return Emit(
        event=VersionRejected(
            recovery=state.recovery, epoch=state.epoch, version=version, reason=reason
        )
    )
