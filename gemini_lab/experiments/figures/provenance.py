"""What a figure was made with: versions, commit, and the verdicts on its values."""

import platform
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

import gemini_lab
from gemini_lab.experiments.figures.figure import Comparison, Figure

PACKAGES: Final = ("numpy", "matplotlib")
_GIT_S: Final = 10.0


def made_with() -> dict[str, str]:
    """Versions of package, Python and libraries; the commit, where the package lies in git."""
    found = {"gemini-lab": _version("gemini-lab"), "python": platform.python_version()}
    if commit := _commit(Path(gemini_lab.__file__).parent):
        found["commit"] = commit
    return found | {name: _version(name) for name in PACKAGES}


def note(figure: Figure) -> str:
    """The same as one line below a figure, with its seeds."""
    versions = ", ".join(f"{name} {value}" for name, value in made_with().items())
    return f"Made with {versions}; seeds: {figure.seeds}."


def record(figures: Sequence[Figure]) -> dict[str, object]:
    """What was made with what, and every comparison with the paper, as plain JSON values."""
    return {
        "made_with": made_with(),
        "figures": {
            figure.name: {
                "tolerance": figure.tolerance,
                "errors_are": "differences" if figure.is_absolute else "shares",
                "seeds": figure.seeds,
                "values": [_judged(one) for one in figure.comparisons()],
            }
            for figure in figures
        },
    }


def summary(figures: Sequence[Figure]) -> str:
    """How many values lie where; which are known to differ and why; and which are outside."""
    every = [one for figure in figures for one in figure.comparisons()]
    counts = Counter(one.verdict for one in every)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    lines = [f"{len(every)} values beside the paper's: {told or 'none'}"]
    for figure in figures:
        lines += _known(figure)
        lines += [
            f"  OUTSIDE: {figure.name}, {one.ours.series} at {one.ours.x}: {one.ours.y:.4g} by "
            f"{one.ours.origin}, the paper {one.paper:.4g}"
            for one in figure.comparisons()
            if one.verdict == "OUTSIDE"
        ]
    return "\n".join(lines)


def _known(figure: Figure) -> Iterator[str]:
    """A line for each reason, with the errors that it has."""
    errors: dict[str, list[float]] = {}
    for one in figure.comparisons():
        if one.verdict == "known" and one.ours.known is not None:
            errors.setdefault(one.ours.known.why, []).append(one.error)
    for why, found in errors.items():
        ends = [figure.shown_error(error) for error in (min(found), max(found))]
        span = ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
        count = f"{len(found)} value{'s' if len(found) > 1 else ''}"
        yield f"  known: {figure.name}, {count}, {span}: {why}"


def _judged(one: Comparison) -> dict[str, object]:
    return {
        "series": one.ours.series,
        "x": one.ours.x,
        "origin": one.ours.origin,
        "ours": one.ours.y,
        "paper": one.paper,
        "error": one.error,
        "verdict": one.verdict,
        "known": one.ours.known.why if one.verdict == "known" and one.ours.known else "",
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit(folder: Path) -> str:
    """The commit that the package in `folder` belongs to; empty outside of its repository."""
    if not _git(folder, "ls-files", "__init__.py"):  # another repository's folder, or none
        return ""
    changed = " with changes" if _git(folder, "status", "--porcelain", "--", ".") else ""
    return _git(folder, "rev-parse", "--short=12", "HEAD") + changed


def _git(folder: Path, *arguments: str) -> str:
    """What git says, stripped; empty where there is no git or no repository."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""
