"""`gemini-lab figures`: the paper's figures with ours beside them, as HTML, SVG, PNG and CSV."""

import argparse
import importlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab_bench.figures import measured, pages, provenance
from gemini_lab_bench.figures.figure import Figure

FIGURES: Final = (
    "tab1",
    "tab2",
    "eq1",
    "fig03",
    "fig05",
    "fig06",
    "fig07",
    "fig08",
    "fig09",
    "fig10",
    "fig11",
    "fig12",
    "fig13a",
    "fig13b",
    "fig14",
    "fig15a",
    "fig15b",
    "fig16",
)
"""Each is a module of this package with a function `figure()`."""


def require(name: str) -> None:
    """Refuse a figure that there is not.

    Raises:
        ConfigError: There is none of that name.
    """
    if name not in FIGURES:
        raise ConfigError(f"there is no figure {name!r}; choose from {', '.join(FIGURES)}")


def make(name: str) -> Figure:
    """Return the figure called `name`.

    Raises:
        ConfigError: There is none.
    """
    require(name)
    figure: Figure = importlib.import_module(f"gemini_lab_bench.figures.{name}").figure()
    return figure


def command(argv: list[str]) -> int:
    """Write figures into a folder; 1 where a value is outside its figure's tolerance."""
    parser = argparse.ArgumentParser(
        prog="gemini-lab figures",
        description="Draw the paper's figures next to ours, with each value's distance from the "
        "paper's. Exits with 1 if a value is outside its figure's tolerance without a known "
        "reason. A measured value is undecided if its 95 % interval reaches over an end of the "
        "tolerance. fig05 draws Figs. 4 and 5, eq1 Fig. 1. Fig. 2 is a drawing without numbers; "
        "docs/architecture.md describes the same of this system.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FIGURES))
    parser.add_argument("--all", action="store_true", help="draw every figure")
    parser.add_argument(
        "--measured",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="also draw results of `gemini-lab bench NAME --json FILE`; NAME is schemes "
        "(Figs. 7, 8, 13 and 16), losses (Fig. 9), baselines (Figs. 10 and 12), reduction (Fig. "
        "11), goodput (Fig. 15), wasted (Eq. (1)) or contention (where idle time no longer "
        "suffices)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("figures"),
        metavar="DIR",
        help="folder to write to (default: %(default)s)",
    )
    options = parser.parse_args(argv)
    names = FIGURES if options.all else tuple(options.names)
    if not names and not options.measured:
        parser.error("name some figures, or use --all, or --measured FILE")
    for name in names:
        require(name)
    made = [figure for path in options.measured for figure in measured.figures(path)]
    pages.make_folder(options.out)
    made = [*map(make, names), *made]
    figures = [replace(one, notes=(*one.notes, provenance.note(one))) for one in made]
    for figure in figures:
        pages.write(figure, options.out)
        print(f"{figure.title}\n{figure.table()}\n")  # noqa: T201
    summary = provenance.summary(figures)
    (options.out / "index.html").write_text(pages.index(figures, summary), encoding="utf-8")
    record = json.dumps(provenance.record(figures), indent=1)
    (options.out / "figures.json").write_text(record + "\n", encoding="utf-8")
    print(summary)  # noqa: T201
    print(f"written to {options.out / 'index.html'}")  # noqa: T201
    return status(figures)


def status(figures: Sequence[Figure]) -> int:
    """Return 1 if a value is outside its figure's tolerance without a known reason, else 0."""
    compared = [one for figure in figures for one in figure.comparisons()]
    return int(any(one.verdict == "OUTSIDE" for one in compared))
