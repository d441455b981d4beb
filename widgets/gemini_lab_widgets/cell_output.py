"""Output below a cell that may be replaced later.

A saved notebook has no widgets any more, only what their cells say beside them: whatever is over
becomes text, which stays.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.display import DisplayHandle


class CellOutput:
    """The cells that show one thing."""

    def __init__(self) -> None:
        self._shown: list[DisplayHandle] = []

    def show(self, data: Mapping[str, Any]) -> None:
        """Show it below the cell that runs, too."""
        from IPython.display import DisplayHandle  # noqa: PLC0415 - only notebooks have it

        handle = DisplayHandle()
        handle.display(data, raw=True)
        self._shown.append(handle)

    def put(self, data: Mapping[str, Any]) -> None:
        """Put this wherever it was shown."""
        for handle in self._shown:
            handle.update(data, raw=True)
