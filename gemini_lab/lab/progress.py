"""A run as it goes, on a terminal or below a cell: a bar, and a line for what goes wrong."""

import math
import sys
from queue import SimpleQueue

from tqdm.auto import tqdm

from gemini_lab.lab.run import Run
from gemini_lab.log.events import Event
from gemini_lab.units import format_seconds


def show_progress(
    run: Run, *, total: int | None, until: int | None, show_output: bool, glance_s: float = 0.1
) -> None:
    """Follow `run` from this thread; see `Run.progress`.

    A file that a terminal's output was sent to gets the lines without the bar.
    """
    goal = math.inf if until is None else until
    lines: SimpleQueue[str] = SimpleQueue()

    def see(event: Event) -> None:
        if told := describe(event):
            lines.put(told)

    def hear(rank: int, said: list[str]) -> None:
        for line in said if rank == 0 else ():
            lines.put(line)

    endings = [run.watch(see)]
    if show_output:
        endings.append(run.listen(hear))
    is_cell = type(sys.stderr).__module__.startswith("ipykernel")
    try:
        with tqdm(
            total=total, initial=run.iteration, unit="iteration", dynamic_ncols=True,
            disable=False if is_cell else None,
        ) as bar:  # fmt: skip
            is_last = False
            while not is_last:
                is_last = run.is_over_within(glance_s) or run.iteration >= goal
                while not lines.empty():
                    bar.write(lines.get())
                sys.stdout.flush()  # who follows a file sees a line when it is said
                bar.set_postfix_str(f"{run.phase}, nodes {' '.join(run.members)}")
                bar.update(run.iteration - bar.n)
    finally:
        for end in endings:
            end()


def describe(event: Event) -> str | None:
    """One line for people on an event that they want to hear of."""
    data = event.data
    match event.kind:
        case "injected":
            return f"    injected: {data['failure']['kind'].replace('_', ' ')} on {event.node}"
        case "recovery_started":
            lost = f" ({', '.join(data['lost'])})" if data["lost"] else ""
            return f"    failure {data['recovery']}: {data['cause'].replace('_', ' ')}{lost}"
        case "root_elected":
            return f"    root agent is on {data['name']}"
        case "recovery_waiting":
            return f"    waiting for a machine for position {data['missing']}"
        case "recovery_finished":
            took = format_seconds(data["duration_s"])
            return f"    training goes on after {took}, from version {data['version']}"
        case "persist_failed":
            return f"    persistent tier: {data['reason']}"
        case "unprotected" if data["rank"] == 0:
            return "    the script never called gemini_lab.protect: it ran unprotected"
        case "note":
            return f"    {data['text']}"
    return None
