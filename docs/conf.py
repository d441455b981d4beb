"""How the site is built; `make docs` calls Sphinx with this."""

import re
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent), str(FOLDER.parent / "widgets")]

import field_texts  # noqa: E402
import figures  # noqa: E402 - found by the line above
import house  # noqa: E402
import reference  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402
from sphinx.domains.python import PyObject  # noqa: E402

project = "gemini_lab"
author = "The gemini_lab maintainers"
project_copyright = f"{author}; Apache License 2.0"
version = release = reference.version()

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]
nitpicky = False  # annotations name classes of other packages, whose sites are not asked

napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "gemini_lab"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(FOLDER / "_static" / "scorer.js")
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#00598c", "color-brand-content": "#00598c"},
    "dark_css_variables": {"color-brand-primary": "#56b4e9", "color-brand-content": "#56b4e9"},
}


CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)(?=(\w?))")


def read_markdown(*event: Any) -> None:
    """Docstrings are written in Markdown's way, where `name` is code, also before an s."""
    lines: list[str] = event[-1]
    text = CODE.sub(lambda found: f"``{found[1]}``{chr(92) if found[2] else ''}", "\n".join(lines))
    lines[:] = text.split("\n")


def read_comments(_app: Sphinx, what: str, _name: str, value: Any, *rest: Any) -> None:
    """Add what comments beside a class's fields say to the docstring that is shown."""
    lines: list[str] = rest[-1]
    if what == "class":
        texts = field_texts.of(value).items()
        said = [f":ivar {field}: {text}" for field, text in texts]
        lines += ["", *(one for one in said if one.partition(": ")[0] not in "\n".join(lines)), ""]


def setup(app: Sphinx) -> None:
    """Write the pages that are made from the code, and know what draws on others."""
    reference.write(FOLDER / "reference" / "made")
    app.add_directive("house", house.House)
    app.add_directive("papers", figures.Papers)
    app.add_directive("measured", figures.Measured)
    app.add_directive("verdicts", figures.Verdicts)
    app.add_directive("shown", figures.Shown)
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
    app.connect("autodoc-process-docstring", read_comments)
    app.connect("autodoc-process-docstring", read_markdown)
