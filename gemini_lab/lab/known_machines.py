"""What the logs of earlier runs tell of the machines: the launcher reads them once."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from gemini_lab.log.entry import Entry
from gemini_lab.log.file import find_log, read_line
from gemini_lab.placement import Risk
from gemini_lab.recovery.learning import READ, learn_risk


def split_runs(text: str) -> list[str]:
    """The runs that the setting `risk_from` names, with commas between."""
    return [name for part in text.split(",") if (name := part.strip())]


def learn_from(runs: Sequence[str]) -> Risk:
    """What the logs of these runs tell together.

    Args:
        runs: Their folders, or as `find_log` takes them.

    Raises:
        ConfigError: One of them is no run.
        EventError: A line of a log is no event.
    """
    known = Risk()
    for run in runs:
        known = learn_risk(_lines_of_machines(find_log(run))).after(known)
    return known


def _lines_of_machines(path: Path) -> Iterator[Entry]:
    """The entries that tell of machines, and the last one, which tells how long it was."""
    kinds = tuple(f'"kind":"{kind.__struct_config__.tag}"'.encode() for kind in READ)
    last = b""
    with path.open("rb") as lines:
        for number, line in enumerate(lines):
            if not line.endswith(b"\n"):
                break
            last = line
            if number == 0 or any(kind in line for kind in kinds):
                entry = read_line(line)
                if entry is not None:
                    yield entry
                last = b""
    if last and (entry := read_line(last)) is not None:
        yield entry
