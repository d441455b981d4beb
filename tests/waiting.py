"""How tests wait: until something holds, and never without end."""

import time
from collections.abc import Callable


def until(holds: Callable[[], object], within_s: float = 120.0) -> None:
    """Wait until something holds; fail if it does not in time."""
    give_up_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < give_up_s, "it never came to that"
        time.sleep(0.02)
