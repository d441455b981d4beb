"""What a run can be asked for by its owner beside a failure: a drain, a rewind, another size."""

from collections.abc import Callable, Sequence
from typing import Final

import ipywidgets

from gemini_lab.errors import ConfigError
from gemini_lab.lab.run import Run

DRAIN: Final = "drain a node"
REWIND: Final = "rewind, iterations"
RESIZE: Final = "resize, to nodes"
WIDTH: Final = "150px"


class Asking:
    """A row of the controls: what to ask for, of which node or how many, and a button.

    What is asked for comes between two iterations, or comes to nothing; the run says which.

    Args:
        run: Gives the run that is asked, if there is one.
        attempt: Does what a button does, and says what goes wrong.
    """

    def __init__(
        self, run: Callable[[], Run | None], attempt: Callable[[Callable[[], None]], None]
    ) -> None:
        self._run = run
        self.what = ipywidgets.Dropdown(description="Ask for", options=[DRAIN, REWIND, RESIZE])
        self.node = ipywidgets.Dropdown(description="of", options=[])
        self.count = ipywidgets.BoundedIntText(
            value=1, min=1, max=1_000_000, layout=ipywidgets.Layout(width=WIDTH, display="none")
        )
        self.button = ipywidgets.Button(description="Ask now", icon="share")
        self.button.on_click(lambda _: attempt(self.ask))
        self.what.observe(lambda _: self._want(), "value")
        self.row = ipywidgets.HBox([self.what, self.node, self.count, self.button])

    def ask(self) -> None:
        """Ask the run for what is chosen.

        Raises:
            ConfigError: No workers run, or the run cannot do that.
        """
        run = self._run()
        if run is None or not run.members:
            raise ConfigError("nothing can be asked for now: no workers run")
        if self.what.value == DRAIN:
            run.drain(self.node.value or "")
        elif self.what.value == REWIND:
            run.rewind(self.count.value)
        else:
            run.resize(self.count.value)

    def offer(self, members: Sequence[str], *, is_open: bool) -> None:
        """Offer the nodes that there are; a chosen one stays chosen while it is there."""
        self.button.disabled = not is_open
        nodes = tuple(dict.fromkeys(members))
        if self.node.options != nodes:
            kept = self.node.value
            self.node.options = nodes
            self.node.value = kept if kept in nodes else next(iter(nodes), None)

    def _want(self) -> None:
        """Show the node or the number, whichever is wanted; a size begins with the present one."""
        is_drain = self.what.value == DRAIN
        self.node.layout.display = None if is_drain else "none"
        self.count.layout.display = "none" if is_drain else None
        self.count.value = max(1, len(self.node.options)) if self.what.value == RESIZE else 1
