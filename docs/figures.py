"""The paper's figures with ours beside them, drawn anew with each build of the site.

```{papers} fig09
```

draws one figure, `{measured} losses fig09-measured` one of those that a bench's results in
`measured/losses.json` come to, and `{verdicts}` says how far all values lie from the paper's.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from html import escape
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive

from gemini_lab import plan_placement
from gemini_lab.display import picture
from gemini_lab.report import load_report
from gemini_lab_bench.figures import measured, provenance
from gemini_lab_bench.figures.command import FIGURES, make
from gemini_lab_bench.figures.figure import Figure
from gemini_lab_course.play import ring_html

LOG = Path(__file__).parents[1] / "tests" / "log" / "run.jsonl"
"""A short run of two nodes that lost a worker and then a node."""
MEASURED = Path(__file__).parent / "measured"
"""What `gemini-lab bench NAME --json FILE` wrote, as NAME.json."""


class Papers(Directive):
    """`{papers} NAME`: a figure of the paper, with a model or a simulation beside it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Its drawing and, folded, its numbers; Sphinx calls it."""
        return [_drawn(paper(self.arguments[0]))]


class Measured(Directive):
    """`{measured} BENCH FIGURE`: one of the figures that a bench's results come to."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        """Its drawing and, folded, its numbers; Sphinx calls it."""
        bench, name = self.arguments
        found = {one.name: one for one in results(bench)}
        if name not in found:
            raise self.error(f"the results of {bench} come to {', '.join(found)}, not to {name}")
        return [_drawn(found[name])]


class Verdicts(Directive):
    """`{verdicts}`: how many values lie where, and why some lie far away."""

    def run(self) -> list[nodes.Node]:
        """The same as text; Sphinx calls it."""
        found = [result for name in benches() for result in results(name)]
        told = provenance.summary([*map(paper, FIGURES), *found])
        return [nodes.raw("", f'<pre class="verdicts">{escape(told)}</pre>', format="html")]


class Shown(Directive):
    """`{shown} NAME`: a picture as a notebook's cell shows it, or a widget that needs no kernel."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the drawing and, folded, its numbers; Sphinx calls it."""
        drawn: dict[str, Callable[[], str]] = {
            "placement": lambda: picture(plan_placement(nodes=4, replicas=2)).html(),
            "run": lambda: picture(replace(load_report(LOG), name="of two nodes")).html(),
            "ring": ring_html,
        }
        return [nodes.raw("", drawn[self.arguments[0]](), format="html")]


def benches() -> list[str]:
    """The benches whose results are here."""
    return sorted(file.stem for file in MEASURED.glob("*.json"))


@cache
def paper(name: str) -> Figure:
    """A figure of the paper, by its name in `gemini-lab figures`."""
    return make(name)


@cache
def results(bench: str) -> tuple[Figure, ...]:
    """What was measured, as figures."""
    made = measured.figures(MEASURED / f"{bench}.json")
    return tuple(replace(one, notes=(*one.notes, provenance.note(one))) for one in made)


def _drawn(figure: Figure) -> nodes.Node:
    return nodes.raw("", picture(figure).html(), format="html")
