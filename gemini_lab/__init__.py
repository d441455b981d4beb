"""In-memory checkpoints for distributed training, after GEMINI (SOSP '23).

The public names are listed once, in `__init__.pyi`. Each loads when it is first used, so that
importing the package costs nothing.
"""

import sys

if sys.argv[0].rpartition("/")[2] == "gemini-lab":  # the command: a user may interrupt it now
    import os
    import signal

    def _quit(_number: int, _frame: object) -> None:
        """Exit at once: nothing was started yet, and a traceback of imports helps no user."""
        os.write(2, b"\ngemini-lab: interrupted\n")
        os._exit(130)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _quit)

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """Load a public name when it is first used.

    Raises:
        ModuleNotFoundError: It trains, and PyTorch or DeepSpeed is not installed.
    """
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if error.name not in {"torch", "deepspeed"}:
            raise
        text = f"gemini_lab.{name} needs {error.name}: pip install 'gemini-lab[train]'"
        raise ModuleNotFoundError(text, name=error.name) from error


def load_ipython_extension(shell: object) -> None:
    """Register the magics `%gemini` and `%%gemini`, for `%load_ext gemini_lab`."""
    from gemini_lab.lab import pages  # noqa: PLC0415 - only a notebook needs it

    pages.load_magics(shell)


if "IPython" in sys.modules:  # a cell that ends in a value shows its picture
    from gemini_lab.display import show_in_ipython

    show_in_ipython()
