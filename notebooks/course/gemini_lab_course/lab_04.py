"""Lab 04: the naive scheme's buffer, a machine on which nothing fits, and a planner of chunks."""

from collections.abc import Callable
from itertools import pairwise

from gemini_lab import Run
from gemini_lab.log.events import VersionComplete
from gemini_lab.units import KIB, format_bytes, format_seconds, parse_bandwidth
from gemini_lab_course.attacks import compared, withstood
from gemini_lab_course.verdict import WrongAnswerError, given, need, number

_MACHINE = '{"layer_ms": ..., "link_bytes_per_s": ...}'
_SLOWEST_BYTES_PER_S = 10e6
_LONGEST_MS = 200


def exercise_1(
    smallest_bytes: object, *, is_accepted: Callable[[float], bool], shard_bytes: int
) -> str:
    """Judge the smallest buffer that is accepted, to a KiB.

    Raises:
        WrongAnswerError: It is no number, is refused, or is not the smallest.
    """
    size = number(smallest_bytes, name="smallest_bytes", words="a number of bytes")
    need(size > 0, f"a buffer has a size above 0, and yours has {size:g}")
    need(is_accepted(size + KIB), f"{format_bytes(size)} are refused, even with a KiB more")
    need(not is_accepted(size - KIB), f"{format_bytes(size)} can do with a KiB less")
    return f"right: {format_bytes(size)}, {size / shard_bytes:.0%} of the shard"


def exercise_2(harder: object, *, train_on: Callable[..., Run]) -> str:
    """Judge a machine by its run's log: versions are planned, and leave, more rarely.

    Args:
        harder: The student's.
        train_on: Trains on a machine with this `layer_ms` and `link_bytes_per_s`.

    Raises:
        WrongAnswerError: It is no such machine, or the checkpoint fits after all.
    """
    run = train_on(**_machine(harder))
    plans = run.report().plans
    need(plans, "no plan is in the log: the job was not profiled before the run ended")
    every, delay = plans[-1].schedule.every_iterations, format_seconds(plans[-1].schedule.delay_s)
    sent = [entry for entry in run.events("version_complete") if entry.at_s > plans[-1].at_s]
    whole = [entry.event for entry in sent if isinstance(entry.event, VersionComplete)]
    versions = sorted({each.version for each in whole})
    need(every > 1, f"a version delays training by {delay}, too little to make versions rarer")
    apart = max((later - sooner for sooner, later in pairwise(versions)), default=0)
    need(apart == every, f"the log has {versions}; too few to see it? choose an easier machine")
    return f"right: a version delays training by {delay}, one in {every} is sent: {versions}"


def exercise_3(planner: object) -> str:
    """Judge a planner of chunks by attacking it.

    Raises:
        WrongAnswerError: It is no function, or there is a counterexample.
    """
    words = "a function of `profile` and more"
    result = withstood(planner, name="planner", stage="chunks", words=words)
    return f"right: {result.words}\n{compared(result)}"


def _machine(harder: object) -> dict[str, float]:
    machine = given(harder, dict, name="harder", words=f"a dictionary, {_MACHINE}")
    if set(machine) != {"layer_ms", "link_bytes_per_s"}:
        raise WrongAnswerError(f"`harder` has to name two things: {_MACHINE}")
    layer_ms = number(machine["layer_ms"], name="layer_ms", words="a number of ms")
    link = machine["link_bytes_per_s"]
    rate = parse_bandwidth(link) if isinstance(link, str) else link
    rate = number(rate, name="link_bytes_per_s", words="a number of bytes a second")
    need(layer_ms >= 0, f"layers cannot take {layer_ms:g} ms")
    need(layer_ms <= _LONGEST_MS, f"choose {_LONGEST_MS} ms or less, or it takes too long")
    need(rate >= _SLOWEST_BYTES_PER_S, f"choose 10 MB/s or more, or it takes too long ({rate:g})")
    return {"layer_ms": layer_ms, "link_bytes_per_s": rate}
