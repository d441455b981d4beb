"""`attack`: look for the smallest case that breaks a stage that the reader wrote."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from gemini_lab.placement import Placement
from gemini_lab_course.attacks.chunks import CHUNKS
from gemini_lab_course.attacks.chunks import cases as chunk_cases
from gemini_lab_course.attacks.divisions import DIVISION
from gemini_lab_course.attacks.divisions import cases as division_cases
from gemini_lab_course.attacks.outcome import BesideOurs, Counterexample, StageFault, Withstood
from gemini_lab_course.attacks.placements import PLACEMENT, PlacementCase, figures
from gemini_lab_course.attacks.placements import cases as placement_cases
from gemini_lab_course.attacks.recoveries import RECOVERY
from gemini_lab_course.attacks.recoveries import cases as recovery_cases
from gemini_lab_course.attacks.roots import attack_root
from gemini_lab_course.attacks.search import NOTHING
from gemini_lab_course.verdict import WrongAnswerError, another_kind

__all__ = [
    "BesideOurs",
    "Counterexample",
    "StageFault",
    "Withstood",
    "attack",
    "compared",
    "withstood",
]

STAGES: Final = {
    "root": "event",
    "chunks": "profile",
    "recovery": "copies",
    "placement": "nodes",
    "division": "held",
}
"""The stages that can be attacked, each with a parameter that only its planner takes."""
WHAT: Final = (
    "a Placement, or a function that plans as plan_placement, plan_chunks or plan_recovery, "
    "divides what ranks hold, or decides as a root agent"
)


def attack(
    mine: object, *, stage: str | None = None, within_s: float = 100.0, run: int = 0
) -> Counterexample | Withstood:
    """Look for the smallest case that breaks `mine`: fewest nodes, then fewest failures.

    All small cases are tried, the smallest first, so what is found is the smallest there is. A
    planner is asked each twice, as it has to answer the same. A function is called with those of
    its stage's arguments that it takes by name:

    - placement: `nodes` and `replicas`; it gives a `Placement`, or for each shard the nodes that
      keep it, its owner first;
    - chunks: `profile`, `checkpoint_bytes`, `replicas`, `bandwidth_bytes_per_s`, `alpha_s`,
      `buffer_bytes`, `sub_buffers` and `mu`, as `plan_chunks`; it gives a `ChunkSchedule` or its
      `Chunk`s;
    - recovery: `placement`, `members`, `copies`, `living`, `standbys` and `persistent`, as
      `plan_recovery`; it gives a `RecoveryPlan`;
    - division: `held`, for each rank a dictionary from its pieces of state to their bytes; it gives
      such a list of what a version keeps there;
    - root: `state`, `event` and `cluster`, as `lab.train(job, root=mine)` calls it; it gives what
      the root agent does, see `gemini_lab_course.own_root.deciding`. Its cases are runs of
      simulated labs: every single failure at many moments, then several.

    Args:
        mine: What is attacked: a function, or a `Placement`.
        stage: `"placement"`, `"chunks"`, `"recovery"`, `"division"` or `"root"`, if a function's
            parameters do not say.
        within_s: Stop looking after so many seconds of work, on a busy machine up to five times
            as long; the result then says so.
        run: Which of several runs. A root agent's later runs draw other failures at random; the
            other stages are asked all their cases each time.

    Raises:
        WrongAnswerError: There is nothing that can be attacked. A notebook shows it as a sentence.
    """
    if isinstance(mine, Placement):
        return _attack_placement(mine, within_s=within_s)
    if not callable(mine):
        raise another_kind(mine, name="mine", words=WHAT)
    name = stage if stage is not None else _stage_of(mine)
    if name == "placement":
        return PLACEMENT.attack(mine, placement_cases(), within_s=within_s)
    if name == "chunks":
        return CHUNKS.attack(mine, chunk_cases(), within_s=within_s)
    if name == "recovery":
        return RECOVERY.attack(mine, recovery_cases(), within_s=within_s)
    if name == "division":
        return DIVISION.attack(mine, division_cases(), within_s=within_s)
    if name == "root":
        return attack_root(mine, within_s=within_s, run=run)
    raise WrongAnswerError(f"there is no stage {name!r}; choose one of {', '.join(STAGES)}")


def withstood(
    mine: object, *, name: str, stage: str, words: str, within_s: float = 100.0
) -> Withstood:
    """Attack an answer, and return the result if no case breaks it.

    Args:
        mine: The student's.
        name: The variable that holds it.
        stage: What it is attacked as.
        words: What it has to be.
        within_s: As for `attack`.

    Raises:
        WrongAnswerError: It is no function, there is a counterexample, or time was up before all
            cases were tried.
    """
    if not callable(mine):
        raise another_kind(mine, name=name, words=words)
    result = attack(mine, stage=stage, within_s=within_s)
    if isinstance(result, Counterexample) and result.fault.why == NOTHING:
        raise WrongAnswerError(f"no answer yet: `{name}` has to be {words} that returns something")
    if isinstance(result, Counterexample):
        raise WrongAnswerError(
            f"not yet: with {result.words}",
            hint=f"Call `{name}` with just this case, in a cell, and mend that first.",
            shows=result,
        )
    if not result.is_complete:
        raise WrongAnswerError(
            f"not judged to the end: {result.words}; make `{name}` faster, or look again on a "
            "machine that has less to do"
        )
    return result


def compared(result: Withstood) -> str:
    """Return all figures as a table in text, which no output cuts within a word."""
    head = ("", "yours", "reference", "bound")
    rows = [
        (each.what, *map(each.said, (each.yours, each.reference, each.optimum)))
        for each in result.figures
    ]
    wide = max(len(what) for what, *_ in (head, *rows))
    return "\n".join(
        f"{what:<{wide}} " + "".join(f"{value:>12}" for value in values)
        for what, *values in (head, *rows)
    )


def _attack_placement(mine: Placement, *, within_s: float) -> Counterexample | Withstood:
    """Return the only case of a placement: its own."""
    case = PlacementCase(nodes=mine.nodes, replicas=mine.replicas)
    own = partial(figures, compared=[(mine.nodes, mine.replicas)])
    stage = replace(PLACEMENT, figures=own, scope=f"{case}, as many nodes lost as replicas")
    return stage.attack(lambda: mine, [case], within_s=within_s)


def _stage_of(function: Callable[..., object]) -> str:
    """Return the stage that a function's parameters are of."""
    try:
        names = set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = set()
    for stage, parameter in STAGES.items():
        if parameter in names:
            return stage
    raise WrongAnswerError(
        "what is attacked has to take its stage's arguments by their names, so `nodes` and "
        "`replicas`, `profile` and more, `copies` and more, `held`, or `event` and more; or name "
        "its stage: attack(mine, stage='placement')"
    )
