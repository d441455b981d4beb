"""The paper's figures from what was measured here: bench results, with the paper's values beside.

A bench writes what it measured (`gemini-lab bench schemes --json FILE`); here that file becomes
figures.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab_bench.figures import eq1, killed, provenance, reduced, scaled_down
from gemini_lab_bench.figures.contention import contention
from gemini_lab_bench.figures.figure import Figure


def figures(path: Path) -> tuple[Figure, ...]:
    """Return the figures that the results in `path` are good for.

    Raises:
        ConfigError: The file holds no results, or those of a bench without a figure.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; {WAY_OUT}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON ({error}); {WAY_OUT}") from error
    bench = record.get("bench") if isinstance(record, dict) else None
    if not isinstance(bench, str) or "rows" not in record:
        raise ConfigError(f"{path} holds no bench's results; {WAY_OUT}")
    if bench not in MAKERS:
        raise ConfigError(
            f"{path} holds results of {bench!r}, of which nothing is drawn; {WAY_OUT}"
        )
    try:
        return tuple(
            replace(
                make(record),
                seeds=provenance.seeds_of(record),
                measured_with=provenance.measured_with(record),
            )
            for make in MAKERS[bench]
        )
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        StopIteration,
        TypeError,
        ValueError,
    ) as error:
        raise ConfigError(
            f"{path} lacks something of the results of {bench!r} ({error!r}); {WAY_OUT}"
        ) from error


MAKERS: Final = {
    "schemes": (
        scaled_down.seventh,
        scaled_down.eighth,
        scaled_down.thirteenth_a,
        scaled_down.thirteenth_b,
        scaled_down.sixteenth,
        scaled_down.sixteenth_in_order,
    ),
    "contention": (contention,),
    "losses": (killed.ninth,),
    "baselines": (killed.tenth, killed.twelfth),
    "goodput": (killed.fifteenth,),
    "reduction": (reduced.eleventh,),
    "wasted": (eq1.of_real_failures,),
}
"""What is drawn of which bench's results."""

WAY_OUT: Final = (
    f"make some by `gemini-lab bench NAME --json FILE`, where NAME is one of {', '.join(MAKERS)}"
)
