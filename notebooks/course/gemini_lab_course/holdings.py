"""What each rank of a job holds, by kinds of state: lab 09's runs, their pictures, and their logs.

A job under each kind of parallelism (`state_job.py`) logs a checksum and the size of all that its
ranks hold. Ranks with the same checksum hold the same.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from gemini_lab import Job
from gemini_lab.errors import ConfigError
from gemini_lab.lab.run import Run

KINDS: Final = ("weights", "moments", "generator", "data")
WAYS: Final = ("DP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "TP", "PP", "EP")
MARKS: Final = ("same", "own", "mixed")
"""All ranks hold the same; each holds what no other does; or something between."""
Held = Mapping[str, Mapping[str, int]]
"""Of one rank: for each kind of state the bytes of its pieces, by their checksums."""


def job_of(way: str, *, steps: int) -> Job:
    """Return the job under one kind of parallelism: `WAYS`, or `"TP+FSDP"`."""
    script = Path(__file__).with_name("state_job.py")
    name = way.lower().replace("+", "-")
    return Job(script=str(script), args=["--way", way, "--steps", str(steps)], name=name)


def held_in(run: Run) -> list[Held]:
    """Return what each rank of a run told that it holds, in the order of the ranks.

    Raises:
        ConfigError: The log has nothing of that kind.
    """
    told: dict[int, dict[str, float]] = {}
    for entry in run.events("iteration"):
        event: Any = entry.event
        of_rank = told.setdefault(event.rank, {})
        of_rank |= {name: event.value(name) for name in event.values if name.split()[0] in KINDS}
    if not any(told.values()):
        raise ConfigError(
            f"{run} told nothing of what its ranks hold; train job_of(way, steps=...)"
        )
    return [_by_kind(told[rank]) for rank in sorted(told)]


def _by_kind(told: Mapping[str, float]) -> Held:
    held: dict[str, dict[str, int]] = {kind: {} for kind in KINDS}
    for name, size_bytes in told.items():
        kind, number, what = name.split()
        if what == "bytes":
            held[kind][f"{int(told[f'{kind} {number} sum']):013x}"] = int(size_bytes)
    return held


def mark_of(ranks: Sequence[Held], kind: str) -> Literal["same", "own", "mixed"]:
    """Return how the ranks' parts of one kind of state compare."""
    parts = [frozenset(held[kind]) for held in ranks]
    if len(set(parts)) == 1:
        return "same"
    is_apart = all(parts) and sum(map(len, parts)) == len(frozenset().union(*parts))
    return "own" if is_apart else "mixed"


def letters_of(ranks: Sequence[Held], kind: str) -> str:
    """Return a letter for each rank; ranks with the same letter hold the same."""
    return in_letters([frozenset(held[kind]) for held in ranks])


def in_letters(parts: Sequence[object]) -> str:
    """Return the letters A, B and so on for values, in the order in which they come first."""
    known: dict[object, str] = {}
    return "".join(known.setdefault(part, chr(ord("A") + len(known))) for part in parts)


def as_drawn(by_way: Mapping[str, Sequence[Held]]) -> str:
    """Return a line of marks for each way, as a `Drawing` has them."""
    lines = ((way, (mark_of(ranks, kind) for kind in KINDS)) for way, ranks in by_way.items())
    return "\n".join(f"{way}: {' '.join(marks)}" for way, marks in lines)


def pieces_of(ranks: Sequence[Held], *kinds: str) -> list[dict[str, int]]:
    """Return for each rank the bytes of its pieces: of these kinds of state together."""
    return [{piece: size for kind in kinds for piece, size in held[kind].items()} for held in ranks]


def left_shares(ranks: Sequence[Held], *, lost: int) -> dict[str, float]:
    """Return by kind which share of the lost rank's bytes some other rank's process holds, too."""
    shares = {}
    for kind in KINDS:
        pieces = pieces_of(ranks, kind)
        gone = pieces.pop(lost)
        left = gone.keys() & frozenset().union(*pieces)
        shares[kind] = sum(gone[piece] for piece in left) / max(1, sum(gone.values()))
    return shares


def show_held(by_way: Mapping[str, Sequence[Held]]) -> None:
    """Draw for each way and kind a bar for each rank: green is on all ranks, blue on this alone."""
    from gemini_lab_widgets.pictures import palette  # noqa: PLC0415 - only figures need it
    from matplotlib import pyplot as plt  # noqa: PLC0415 - as above

    colours = {"on all": palette.GREEN, "on some": palette.GREY, "on this alone": palette.BLUE}
    size = (9, 0.75 * len(by_way) + 0.6)
    figure, grid = plt.subplots(
        len(by_way), len(KINDS), figsize=size, squeeze=False, layout="constrained"
    )
    for row, (way, ranks) in zip(grid, by_way.items(), strict=True):
        for axes, kind in zip(row, KINDS, strict=True):
            pieces = pieces_of(ranks, kind)
            below = [0.0] * len(ranks)
            for what, colour in colours.items():
                heights = [_bytes_that_are(what, pieces, rank) for rank in range(len(ranks))]
                axes.bar(range(len(ranks)), heights, 0.8, below, color=colour, label=what)
                below = [sum(pair) for pair in zip(below, heights, strict=True)]
            axes.set(xticks=[], yticks=[], ylim=(0, 1.15 * max(*below, 1)))
            axes.spines[["left", "right", "top"]].set_visible(False)
            axes.set_title(kind if axes in grid[0] else "", fontsize=11)
        row[0].set_ylabel(way, rotation=0, ha="right", va="center", labelpad=8)
    handles, names = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, names, frameon=False, ncols=3, loc="outside lower center")
    plt.show()


def _bytes_that_are(what: str, pieces: Sequence[Mapping[str, int]], rank: int) -> int:
    """Return the bytes of a rank's pieces that are on all ranks, on some, or on it alone."""
    total = 0
    for piece, size in pieces[rank].items():
        holders = sum(piece in each for each in pieces)
        where = "on all" if holders == len(pieces) else "on some"
        total += size * (what == ("on this alone" if holders == 1 else where))
    return total
