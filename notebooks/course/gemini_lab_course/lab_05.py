"""Lab 05: tiers of loaded shards, settings that outlive a lost group, and a recovery planner."""

from collections.abc import Callable

from gemini_lab import RunReport
from gemini_lab_course.attacks import compared, withstood
from gemini_lab_course.verdict import WrongAnswerError, another_kind, as_list, given, need, struck

_TIERS = ("local", "peer", "persistent")


def exercise_1(
    tiers: object, *, train: Callable[[], RunReport], undisturbed: RunReport, ranks: int
) -> str:
    """Judge the tier of each rank's shard by the log of a run.

    Args:
        tiers: The student's.
        train: Trains with the failure in question, and gives the report.
        undisturbed: The same job's without failures.
        ranks: How many there are.

    Raises:
        WrongAnswerError: It is no such list, or the log has other tiers.
    """
    foretold = _listed(tiers, ranks=ranks)
    report = train()
    need(struck(report), "the run had no failure to recover from; run the cell again")
    found = [receipt.tier for receipt in struck(report)[-1].receipts]
    need(len(found) == ranks, f"the log tells of {len(found)} shards only; run the cell again")
    missed = sum(mine != seen for mine, seen in zip(foretold, found, strict=True))
    need(
        missed == 0,
        f"the log has something else for {missed} of the {ranks} ranks",
        hint="What is in the memory of the node on which each rank starts again?",
    )
    match = report.losses_match(undisturbed)
    need(match, str(match))
    return "right: " + ", ".join(f"rank {rank} {tier}" for rank, tier in enumerate(found))


def _listed(tiers: object, *, ranks: int) -> list[str]:
    words = f"a list of {ranks} tiers"
    listed = as_list(tiers)
    if listed is None:
        raise another_kind(tiers, name="tiers", words=words)
    need(len(listed) == ranks, f"`tiers` has to be {words}, and yours has {len(listed)}")
    for tier in listed:
        if tier not in _TIERS:
            raise WrongAnswerError(f"a tier is one of {', '.join(_TIERS)}, and yours has {tier!r}")
    return [str(tier) for tier in listed]


def exercise_2(better: object, *, train: Callable[..., RunReport], undisturbed: RunReport) -> str:
    """Judge settings by the log of a run that loses two nodes at once.

    Args:
        better: The student's.
        train: Trains with these settings and the failure, and gives the report.
        undisturbed: The same job's without failures.

    Raises:
        WrongAnswerError: They are none, cannot be, or memory is not enough with them.
    """
    settings = given(better, dict, name="better", words='a dictionary, {"setting": value}')
    need(settings, '`better` is empty; make it {"setting": value}')
    report = train(**settings)
    need(struck(report), "the run had no failure to recover from; run the cell again")
    recovery = struck(report)[-1]
    need(len(recovery.injections) == 2, "the failure did not strike both nodes; run it again")
    need(
        recovery.tier == "memory",
        f"memory was not enough: {recovery.reason}",
        hint="How many nodes keep each shard? Any so many, less one, may be lost at once.",
    )
    match = report.losses_match(undisturbed)
    need(match, str(match))
    return f"right: version {recovery.version} from memory, and {match}"


def exercise_3(planner: object) -> str:
    """Judge a recovery's planner by attacking it.

    Raises:
        WrongAnswerError: It is no function, or there is a counterexample.
    """
    words = "a function of `copies`, `living` and more"
    result = withstood(planner, name="planner", stage="recovery", words=words)
    return f"right: {result.words}\n{compared(result)}"
