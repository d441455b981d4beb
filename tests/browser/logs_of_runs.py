"""Logs of simulated runs for the tests of pages: small, the same every time, with failures."""

from pathlib import Path

from gemini_lab.log.entry import encode_entry
from gemini_lab.simulator import Outage, paper_workload, simulate
from gemini_lab.simulator.policy import gemini

PASSWORD = "correct horse battery"


def lines_of_a_run(*, nodes: int = 4, failures: int = 2) -> list[str]:
    """A run's log, line by line, from its start to its end."""
    workload = paper_workload(nodes=nodes, standbys=failures)
    outages = [
        Outage(at_s=900.0 * (n + 1), positions=(n,), kind="hardware") for n in range(failures)
    ]
    outcome = simulate(workload, gemini(workload), outages, days=1 / 24, record=True)
    return [encode_entry(entry).decode() + "\n" for entry in outcome.events]


def write(path: Path, lines: list[str]) -> Path:
    """Put `lines` at the end of the log at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as log:
        log.writelines(lines)
    return path
