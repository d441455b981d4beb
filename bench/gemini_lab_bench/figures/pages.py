"""Figures as files: a page of HTML, SVG and PNG, and CSV."""

import csv
import html
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gemini_lab.display import Drawable, picture
from gemini_lab.errors import ConfigError
from gemini_lab_bench.figures.figure import Figure, PaperComparison, Point

STYLE: Final = (
    ":root{color-scheme:light dark}"
    "body{font:15px/1.45 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;"
    "background:light-dark(#fff,#141414);color:light-dark(#1b1b1b,#f2f2f2)}"
    "a{color:inherit}pre{white-space:pre-wrap}img{max-width:100%}"
    "table{border-collapse:collapse;margin:1rem 0}"
    "caption{text-align:left;font-weight:600;padding:.5rem 0}"
    "td,th{border:1px solid light-dark(#bbb,#555);padding:.25rem .6rem;text-align:left;"
    "vertical-align:top}th{background:light-dark(#eee,#2a2f35)}"
)


def make_folder(folder: Path) -> None:
    """Make the folder that `write` writes into.

    Raises:
        ConfigError: It cannot be made, or nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"figures cannot be written to {folder} ({error.strerror}); name another folder by "
            "--out DIR"
        ) from error


def write(figure: Figure, folder: Path) -> tuple[Path, ...]:
    """Write a figure as HTML, SVG, PNG and CSV into `folder`, which is there; gives their paths.

    Raises:
        ConfigError: Nothing is installed that draws it.
    """
    paths = tuple(folder / f"{figure.name}.{kind}" for kind in ("html", "svg", "png", "csv"))
    drawn = picture(figure)
    paths[0].write_text(page(figure, drawn), encoding="utf-8")
    paths[1].write_text(drawn.svg(), encoding="utf-8")
    paths[2].write_bytes(drawn.png())
    with paths[3].open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            (
                "series",
                "x",
                "y",
                "low",
                "high",
                "text",
                "origin",
                "how",
                "beside",
                "error",
                "verdict",
            )
        )
        compared = {id(one.ours): one for one in figure.comparisons()}
        writer.writerows(_cells(point, compared.get(id(point))) for point in figure.points)
    return paths


def page(figure: Figure, drawn: Drawable) -> str:
    """Return a page of HTML that needs no other file."""
    return document(f"{figure.name}: {figure.title}", drawn.html(is_open=True))


def index(figures: Sequence[Figure], summary: str = "") -> str:
    """Return a page of HTML that shows and links all of them, with their notes and `summary`."""
    items = "".join(
        f'<p><a href="{f.name}.html"><img alt="{html.escape(f.title)}" src="{f.name}.svg"></a></p>'
        f"<details><summary>Notes</summary>{''.join(f'<p>{html.escape(n)}</p>' for n in f.notes)}"
        "</details>"
        for f in figures
    )
    said = (
        "<p>Every value says whether it is the paper's, put in, fitted, a formula's, simulated or "
        "measured, and how far it is from the paper's.</p>"
        f"<pre>{html.escape(summary)}</pre>"
    )
    return document("The paper's figures", f"<h1>The paper's figures</h1>{said}{items}")


def document(title: str, body: str) -> str:
    """Return a page."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>"
        f"<body>{body}</body></html>"
    )


def _cells(point: Point, beside: PaperComparison | None) -> tuple[object, ...]:
    p = point
    judged = ("", "", "") if beside is None else (beside.beside.y, beside.error, beside.verdict)
    return p.series, p.x, p.y, p.low, p.high, p.text, p.origin, p.how, *judged
