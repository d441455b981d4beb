"""What a command says that Ctrl-C has ended: what was ended, what is kept, how to go on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gemini_lab.display import complain


@contextmanager
def interrupt_says(told: Callable[[], str], *, now: str = "") -> Iterator[None]:
    """Have a `KeyboardInterrupt` that leaves the block say something, if it does not yet.

    Args:
        told: Gives what whoever catches it is to say.
        now: Said at once, where it takes a while until then.
    """
    try:
        yield
    except KeyboardInterrupt as already:
        if now:
            complain(now)
        raise KeyboardInterrupt(str(already) or told()) from None
