"""A value as it is shown: a drawing as SVG for light and dark pages, and its numbers."""

import functools
import io
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, ParamSpec, TypeVar
from xml.etree.ElementTree import Element, SubElement, fromstring, tostring

from gemini_lab.display import NO_FORMULAS
from gemini_lab.errors import ConfigError, in_lines
from gemini_lab_widgets.pictures.palette import DARK, FONT, LIGHT, ON_DARK

try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
except ImportError as error:
    raise ConfigError(
        "pictures are drawn with matplotlib, which is not installed; "
        "pip install 'gemini-lab[figures]'"
    ) from error

P = ParamSpec("P")
T = TypeVar("T")
DPI: Final = 72
"""So that a point is a pixel of the SVG."""
SMALL: Final = 13
SETTINGS: Final[dict[str, Any]] = {
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "figure.facecolor": LIGHT.paper,
    "savefig.facecolor": LIGHT.paper,
    "axes.facecolor": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": SMALL,
    "text.color": LIGHT.ink,
    "text.parse_math": False,  # a name with dollar signs is no formula
    "axes.titlesize": SMALL,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": LIGHT.ink,
    "axes.labelsize": SMALL,
    "axes.labelcolor": LIGHT.dim,
    "axes.edgecolor": LIGHT.rule,
    "axes.linewidth": 1.0,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": False,
    "grid.color": LIGHT.grid,
    "grid.linewidth": 1.0,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.color": LIGHT.rule,
    "ytick.color": LIGHT.rule,
    "xtick.labelcolor": LIGHT.dim,
    "ytick.labelcolor": LIGHT.dim,
    "xtick.major.pad": 6,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "legend.labelcolor": LIGHT.dim,
    "lines.linewidth": 2.0,
    "hatch.linewidth": 1.2,
    "path.simplify": True,
    "svg.fonttype": "none",  # text stays text: it can be selected, searched and read aloud
    "svg.hashsalt": "gemini_lab",
}
_ONE_AT_A_TIME: Final = threading.RLock()
"""matplotlib's settings belong to the process: two threads would restore each other's."""


@contextmanager
def styled() -> Iterator[None]:
    """Apply our settings while something is drawn or written."""
    with _ONE_AT_A_TIME, mpl.rc_context(), warnings.catch_warnings():
        # the browser has the glyphs that matplotlib's own font lacks
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS)
        yield


def drawn(draw: Callable[P, T]) -> Callable[P, T]:
    """Return `draw` with our settings."""

    @functools.wraps(draw)
    def with_settings(*args: P.args, **kwargs: P.kwargs) -> T:
        with styled():
            return draw(*args, **kwargs)

    return with_settings


_THEMED: Final = ("ink", "dim", "rule", "grid", "pale", "paper")
_PAIRS: Final = {
    **{name: (getattr(LIGHT, name), getattr(DARK, name)) for name in _THEMED},
    **{f"c{number}": pair for number, pair in enumerate(ON_DARK.items())},
}
"""Our colours on a light and on a dark page, by the names of their variables in CSS."""
_NAMES: Final = {light: name for name, (light, _) in _PAIRS.items()}
"""matplotlib writes a colour as we gave it, so it is found again."""
_ON_LIGHT: Final = ";".join(f"--gl-{name}:{light}" for name, (light, _) in _PAIRS.items())
_ON_DARK: Final = ";".join(f"--gl-{name}:{dark}" for name, (_, dark) in _PAIRS.items())
LEAST: Final = 0.7
"""Of its own size a drawing keeps this much on a narrow page, which scrolls it then."""
STYLE: Final = (
    f".gl-drawing{{{_ON_LIGHT}}}"
    f"@media (prefers-color-scheme:dark){{.gl-drawing{{{_ON_DARK}}}}}"
    # JupyterLab, VS Code and sites have themes of their own, which need not be the system's
    f'[data-jp-theme-light="true"] .gl-drawing,.vscode-light .gl-drawing,'
    f'[data-theme="light"] .gl-drawing{{{_ON_LIGHT}}}'
    f'[data-jp-theme-light="false"] .gl-drawing,.vscode-dark .gl-drawing,'
    f'[data-theme="dark"] .gl-drawing{{{_ON_DARK}}}'
    f".gl-drawing text{{font-family:{FONT};fill:var(--gl-ink,{LIGHT.ink})}}"
    f".gl-drawing details,.gl-drawing ul{{color:var(--gl-dim);font-family:{FONT}}}"
    ".gl-drawing details{margin:.2em 0 .6em}"
)
_FORBIDDEN: Final = re.compile(
    "[^\n\x20-\x7e\xa0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)
_COLOUR: Final = re.compile(r"#[0-9a-f]{6}")
_DIGITS: Final = re.compile(r"(\.\d)\d+")


def clean(text: object) -> str:
    """Return `text` in one line that XML can hold and that is read from left to right."""
    return _FORBIDDEN.sub("\ufffd", re.sub("\\s+", " ", str(text)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text under a head, as HTML where no drawing can be."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A value as a notebook shows it.

    Attributes:
        title: What it is, for screen readers and as the page's hint.
        description: What it shows, in words.
        plain: One line, where there is nothing but text.
        summary: What stands over the folded numbers.
        notes: Remarks under the drawing that are no part of it.
        tips: What is shown where the pointer rests on an artist, by the artist's id.
    """

    figure: Figure
    title: str
    description: str
    plain: str
    tables: Sequence[Table] = ()
    summary: str = "numbers"
    notes: Sequence[str] = ()
    tips: Mapping[str, str] = field(default_factory=dict)

    def svg(self) -> str:
        """Return the drawing alone; the same bytes for the same value."""
        return self._svg

    @functools.cached_property
    def _svg(self) -> str:
        with styled(), io.StringIO() as file:
            self.figure.savefig(file, format="svg", metadata={"Date": None})
            return _themed(file.getvalue(), self)

    def png(self, *, dpi: int = 140) -> bytes:
        with styled(), io.BytesIO() as file:
            self.figure.savefig(file, format="png", dpi=dpi, metadata={"Title": self.title})
            return file.getvalue()

    def html(self, *, is_open: bool = False) -> str:
        """Return the drawing, remarks, and the numbers folded below, or not."""
        details = Element("details", {"open": ""} if is_open else {})
        SubElement(details, "summary").text = self.summary
        for table in self.tables:
            _write(details, table)
        remarks = Element("ul")
        for note in self.notes:
            _remark(SubElement(remarks, "li"), clean(note))
        below = "".join(
            tostring(part, encoding="unicode", short_empty_elements=False)
            for part in (remarks, details)
            if len(part)
        )
        # names with dollar signs are no formulas
        drawn = f'<div style="overflow-x:auto">{self.svg()}</div>'
        return f'<div class="gl-drawing {NO_FORMULAS}">{drawn}{below}</div>'

    def bundle(self) -> dict[str, str]:
        return {
            "text/html": self.html(),
            "image/svg+xml": self.svg(),
            "text/plain": in_lines(self.plain),
        }

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.bundle()


def _remark(item: Element, note: str) -> None:
    """Fill a remark; text between backticks becomes code."""
    item.text, *rest = re.split("`([^`]+)`", note)
    for code, after in zip(rest[::2], rest[1::2], strict=True):
        element = SubElement(item, "code")
        element.text, element.tail = code, after


def _write(parent: Element, table: Table) -> None:
    element = SubElement(parent, "table")
    if table.caption:
        SubElement(element, "caption").text = clean(table.caption)
    for tag, rows in (("th", [table.head]), ("td", table.rows)):
        for row in rows:
            line = SubElement(element, "tr")
            for cell in row:
                SubElement(line, tag).text = clean(cell)


def _themed(svg: str, picture: Picture) -> str:
    """Return matplotlib's SVG with words for screen readers and colours that follow the page.

    What it says of the page (`*{...}` in its style sheet, ids that several pictures share) must not
    leave the drawing, so only ids that are referred to stay, and are this picture's own.
    """
    drawn = fromstring(_FORBIDDEN.sub("\ufffd", svg))  # noqa: S314 - written by matplotlib just now
    _, _, width, height = drawn.get("viewBox", "").split()
    root = Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "role": "img",
            "class": "gl-drawing",
            "viewBox": f"0 0 {width} {height}",
            "width": width,
            "height": height,
            "style": f"max-width:100%;min-width:calc({LEAST}*{width}px);height:auto;"
            "stroke-linejoin:round",
        },
    )
    SubElement(root, "title").text = clean(picture.title)
    SubElement(root, "desc").text = clean(picture.description)
    SubElement(root, "style").text = STYLE
    used = dict.fromkeys(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    mine = sha256(svg.encode()).hexdigest()[:8]
    names = {name: f"gl-{mine}-{number}" for number, name in enumerate(used)}
    root.extend(part for child in drawn for part in _parts(child, names, picture.tips))
    return tostring(root, encoding="unicode", short_empty_elements=True)


def _parts(
    element: Element, names: Mapping[str, str], tips: Mapping[str, str]
) -> Iterator[Element]:
    """Give an element as we write it, or its children if it has no attributes."""
    tag = element.tag.rpartition("}")[2]
    if tag in {"metadata", "style"}:
        return
    copy = Element(tag)
    inside = [part for child in element for part in _parts(child, names, tips)]
    for key, value in element.attrib.items():
        name = key.rpartition("}")[2]
        if name == "fill":  # of a hatch's ground; an attribute knows no variables
            copy.set("style", _style(f"fill: {value}", names))
        elif kept := _attribute(name, value, names):
            copy.set(name, kept)
    if tip := tips.get(element.get("id", "")):
        SubElement(copy, "title").text = clean(tip)
    copy.extend(inside)
    if tag == "text":
        copy.text = element.text
    if tag == "g" and not copy.attrib and not tip:
        yield from inside
    elif tag != "defs" or inside:
        yield copy


def _attribute(name: str, value: str, names: Mapping[str, str]) -> str:
    """Return an attribute as we write it; nothing if it can be left out."""
    if name == "id":
        return names.get(value, "")
    if name == "href":
        return "#" + names[value.removeprefix("#")]
    if name == "clip-path":
        return f"url(#{names[value[5:-1]]})"
    if name == "style":
        return _style(value, names)
    if name == "transform" and value.startswith("rotate(-0 "):
        return ""
    if name in {"d", "x", "y", "width", "height", "transform"}:
        value = _DIGITS.sub(r"\1", value.replace("\n", ""))
    return value


def _style(value: str, names: Mapping[str, str]) -> str:
    rules = []
    for rule in value.split("; "):
        key, _, said = rule.partition(": ")
        if key == "font-family":
            continue
        if key == "font":
            # 'bold 14px "DejaVu Sans", ...': the family is the style sheet's
            weight, size = said.split("px")[0].rpartition(" ")[::2]
            rules.append(f"font-size:{size}px" + (f";font-weight:{weight}" if weight else ""))
            continue
        if said.startswith("url(#"):
            said = f"url(#{names[said[5:-1]]})"
        rules.append(f"{key}:{_COLOUR.sub(_variable, said)}")
    return ";".join(rules)


def _variable(colour: re.Match[str]) -> str:
    name = _NAMES.get(colour[0])
    return colour[0] if name is None else f"var(--gl-{name},{colour[0]})"
