"""The values that IPython shows as pictures, by the names of their types."""

from importlib.util import find_spec
from typing import Any

from gemini_lab_widgets.pictures import DRAWN, view


def register(shell: Any, *, library: str = "matplotlib") -> None:
    """Show the picture of a value in cells that end in it; nothing is imported before one does.

    Where the drawing library is missing there are no pictures, and values stay lines of text.
    """
    if find_spec(library) is None:
        return
    formatter = shell.display_formatter.mimebundle_formatter
    for name in DRAWN:
        module, _, kind = name.rpartition(".")
        formatter.for_type_by_name(module, kind, lambda value: view(value).bundle())
