"""Times on a command line."""

import argparse
import math


def seconds(text: str) -> float:
    """So many seconds, as an option's `type`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; give seconds, from 0 on")
    return value
