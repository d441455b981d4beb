"""What a figure was made with: versions, commit, and the verdicts on its values."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gemini_lab.lab.made_with import PACKAGE, made_with
from gemini_lab_bench.figures.figure import Figure, PaperComparison

PACKAGES: Final = ("numpy", "matplotlib")


def note(figure: Figure) -> str:
    """Return the same as a line below a figure, with its seeds and, before it, what measured it."""
    measured = f"Measured {figure.measured_with}. Drawn" if figure.measured_with else "Made"
    return f"{measured} with {_listed(made_with(PACKAGES, file=PACKAGE))}; seeds: {figure.seeds}."


def measured_with(record: Mapping[str, Any]) -> str:
    """Return when and with what the results of a bench were measured, for people."""
    if "made_with" not in record:
        return "at a time and with versions that the file does not tell"
    return f"{record['at']} with {_listed(record['made_with'])}"


def seeds_of(record: Mapping[str, Any]) -> str:
    """Return what a bench drew at random, and by which seed; an old file does not tell."""
    if "seed" not in record:
        return "not told by the file"
    seed = record["seed"]
    return "none, the bench draws nothing" if seed is None else f"{seed}, of all the bench drew"


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in versions.items())


def record(figures: Sequence[Figure]) -> dict[str, object]:
    """Return what was made with what, and every comparison with the paper, as plain JSON values."""
    return {
        "made_with": made_with(PACKAGES, file=PACKAGE),
        "figures": {
            figure.name: {
                "tolerance": figure.tolerance,
                "errors_are": "differences" if figure.is_absolute else "shares",
                "seeds": figure.seeds,
                "measured_with": figure.measured_with,
                "notes": figure.notes,
                "values": [_judged(one) for one in figure.comparisons()],
            }
            for figure in figures
        },
    }


def summary(figures: Sequence[Figure]) -> str:
    """Count where values lie; tell which are known to differ and why, and which are outside."""
    every = [one for figure in figures for one in figure.comparisons()]
    counts = Counter(one.verdict for one in every)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    lines = [f"{len(every)} values compared with the paper's or a model's: {told or 'none'}"]
    for figure in figures:
        lines += _known(figure)
        lines += [
            f"  OUTSIDE: {figure.name}, {one.ours.series} at {one.ours.x}: {one.ours.y:.4g} by "
            f"{one.ours.origin}, the {one.beside.origin} {one.beside.y:.4g}"
            for one in figure.comparisons()
            if one.verdict == "OUTSIDE"
        ]
        undecided = [one for one in figure.comparisons() if one.verdict == "undecided"]
        if undecided:
            lines.append(
                f"  undecided: {figure.name}, {_counted(undecided)}: too few measurements, or they "
                "spread too far; measure with more --repeats"
            )
    by_run: dict[str, list[str]] = {}
    for figure in figures:
        if figure.measured_with:
            by_run.setdefault(figure.measured_with, []).append(figure.name)
    lines += [f"measured {told}: {', '.join(names)}" for told, names in by_run.items()]
    return "\n".join([*lines, f"made with {_listed(made_with(PACKAGES, file=PACKAGE))}"])


def _known(figure: Figure) -> Iterator[str]:
    """Yield a line for each reason, with the errors that it has."""
    errors: dict[str, list[float]] = {}
    for one in figure.comparisons():
        if one.verdict == "known" and one.ours.known is not None:
            errors.setdefault(one.ours.known.why, []).append(one.error)
    for why, found in errors.items():
        ends = [figure.shown_error(error) for error in (min(found), max(found))]
        span = ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
        yield f"  known: {figure.name}, {_counted(found)}, {span}: {why}"


def _counted(values: Sequence[object]) -> str:
    return f"{len(values)} value{'s' if len(values) > 1 else ''}"


def _judged(one: PaperComparison) -> dict[str, object]:
    return {
        "series": one.ours.series,
        "x": one.ours.x,
        "origin": one.ours.origin,
        "ours": one.ours.y,
        "beside": one.beside.y,
        "beside_is": one.beside.origin,
        "error": one.error,
        "verdict": one.verdict,
        "known": one.ours.known.why if one.verdict == "known" and one.ours.known else "",
    }
