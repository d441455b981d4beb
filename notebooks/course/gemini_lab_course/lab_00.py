"""Lab 00: two nodes die in the same moment, and training goes on from memory."""

from collections.abc import Callable

from gemini_lab import RunReport, Scenario
from gemini_lab_course.verdict import given, need, struck


def exercise_1(
    answer: object, *, train: Callable[[Scenario], RunReport], undisturbed: RunReport
) -> str:
    """Judge a scenario by the log of a run with it.

    Args:
        answer: The student's.
        train: Trains with a scenario, and gives the report.
        undisturbed: The same job's without failures.

    Raises:
        WrongAnswerError: It is none, or the log does not show what was asked.
    """
    scenario = given(answer, Scenario, name="answer", words="a Scenario")
    need(scenario.planned, "no failure is in `answer` yet: `add` one")
    report = train(scenario)
    lost = [
        {each.node for each in recovery.injections if each.kind == "node_loss"}
        for recovery in struck(report)
    ]
    at_once = max(map(len, lost), default=0)
    need(at_once == 2, f"two nodes have to die at once, and the log has {at_once}")
    for recovery in struck(report):
        need(
            recovery.tier == "memory",
            f"memory was not enough; the log says: {recovery.reason}",
            hint="Which two nodes keep each other's shards? The placement's picture shows them.",
        )
    match = report.losses_match(undisturbed)
    need(match, str(match))
    return f"right: all from memory after {' and '.join(map(str, report.injections))}"
