"""Fig. 14: what a recovery spends its time on."""

from gemini_lab.simulator import Outage, Workload, paper_workload, simulate
from gemini_lab.simulator.policy import gemini
from gemini_lab_bench.figures.figure import Figure, Known, Point

STEPS = {
    "detect": "detection",
    "serialise": "serialisation",
    "reserve": "reservation",
    "retrieve": "retrieval",
    "warm_up": "warm-up",
}
PAPER = {"detection": 15.0, "serialisation": 162.0, "retrieval": 3.0, "warm-up": 253.0}
RESERVATION_S = (240.0, 420.0)
LESS_THAN = Known("the paper says less than 3 s", -1.0, 0.0)
FAILURES = 200


def figure() -> Figure:
    """One node lost, with a standby and without one: the paper's timeline and a simulated one."""
    points = []
    for name, standbys in (("standby", 1), ("no standby", 0)):
        for label in STEPS.values():
            y = PAPER.get(label)
            if label == "reservation":
                y = None if standbys else sum(RESERVATION_S) / 2
            points.append(
                Point(
                    label,
                    f"{name}, paper",
                    y,
                    "paper",
                    "Fig. 14 and section 7.3; retrieval is less than 3 s, reservation 4 to 7 "
                    "min (their middle is drawn)",
                    text="" if y else "no wait",
                )
            )
        points += simulated(f"{name}, simulated", paper_workload(standbys=standbys))
    return Figure(
        name="fig14",
        title="Fig. 14: recovery of GPT-2 100B from one lost instance, 16 p4d",
        x_label="s since the failure",
        y_label="",
        points=tuple(points),
        notes=(
            (
                "Sum: 430 s with a standby (the paper: around 7 min), 11.2 to 14.2 min without "
                "(the paper: 12 min)."
            ),
            (
                "Inputs: detection, serialisation, reservation and warm-up are the paper's values, "
                "given to the simulator. Real recoveries of a run of your own stand next to the "
                "paper's by `gemini_lab_bench.figures.recoveries`. Retrieval "
                "follows from the shard and the rate fitted to Fig. 8."
            ),
            (
                f"Failing in iteration 4, training resumes from version {resumes_from()}: "
                "version 3 was on its way."
            ),
        ),
        kind="timeline",
        tolerance=0.1,
        seeds="0, of the time until a new machine is there",
    )


def simulated(x: str, workload: Workload) -> list[Point]:
    """Return the mean of each step over `FAILURES` simulated recoveries, two hours apart."""
    outages = [
        Outage(at_s=7200.0 * (number + 1), kind="hardware", positions=(3,))
        for number in range(FAILURES)
    ]
    outcome = simulate(workload, gemini(workload), outages, days=(FAILURES + 2) / 12)
    return [
        Point(
            label,
            x,
            outcome.down_s.get(step, 0.0) / len(outcome.recoveries),
            "simulation" if step == "retrieve" else "input",
            f"mean of {FAILURES} simulated recoveries"
            + ("" if step == "retrieve" else ", each given the paper's time"),
            against=x.replace("simulated", "paper"),
            known=LESS_THAN if step == "retrieve" else None,
        )
        for step, label in STEPS.items()
    ]


def resumes_from() -> int:
    """Return the version from which training goes on when a node fails in iteration 4."""
    workload = paper_workload(standbys=1)
    outage = Outage(at_s=3.5 * workload.iteration_s, kind="hardware", positions=(3,))
    return simulate(workload, gemini(workload), [outage], days=0.1).recoveries[0].version
