"""How a value shows itself when a cell of a notebook ends in it."""

from typing import Any


class Shown:
    """A value with a picture; its `repr` stays a line of text.

    The picture is drawn when a front end asks for it, and nothing is imported before.
    """

    __slots__ = ()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from gemini_lab_widgets.drawings import view  # noqa: PLC0415 - see above

        return view(self).bundle()

    def _repr_html_(self) -> str:
        """For front ends that know no bundles."""
        return self._repr_mimebundle_()["text/html"]
