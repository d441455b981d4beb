"""A profile for the terminal: the time line, the collectives, the longest idle spans."""

from collections.abc import Iterator
from typing import Final

from gemini_lab.profiler.profile import Collective, Profile
from gemini_lab.units import format_bytes

BUSY: Final = "█"
PARTLY: Final = "▒"
IDLE: Final = "·"


def timeline(profile: Profile, *, width: int = 72) -> str:
    """One iteration as three lines: the network, the place of the update, a scale.

    A column is busy when training holds the network for all of it, partly so above a twentieth.
    """
    scale = width / profile.iteration_s if profile.iteration_s else 0.0
    idle = [0.0] * width
    for span in profile.idle_spans:
        for column in range(width):
            low, high = max(span.start_s * scale, column), min(span.end_s * scale, column + 1)
            idle[column] += max(0.0, high - low)
    marks = [BUSY if share < 0.05 else IDLE if share > 0.95 else PARTLY for share in idle]
    update = min(width - 1, int(profile.update_s * scale))
    return (
        f"network {''.join(marks)}\n"
        f"        {' ' * update}^ update\n"
        f"        0 ms{f'{profile.iteration_s * 1e3:.1f} ms':>{width - 4}}\n"
        f"        {BUSY} training traffic  {PARTLY} partly  {IDLE} idle"
    )


def report(profile: Profile, *, longest: int = 10) -> str:
    """Describe the profile, with at most `longest` idle spans."""
    parts = [repr(profile), "", timeline(profile), "", *_collectives(profile), ""]
    parts += [*_spans(profile, longest), "", f"verdict: {profile.verdict}"]
    parts += [f"made with {condition}" for condition in profile.conditions]
    return "\n".join(parts)


def _collectives(profile: Profile) -> Iterator[str]:
    """Yield the collectives, one line for each name and size."""
    yield f"{'collective':<26}{'calls':>6}{'each':>12}{'total time':>14}{'mean':>13}{'+-':>13}"
    kinds: dict[tuple[str, int], list[Collective]] = {}
    for collective in profile.collectives:
        kinds.setdefault((collective.name, collective.size_bytes), []).append(collective)
    for (name, size_bytes), ones in kinds.items():
        total_ms = sum(one.duration_s for one in ones) * 1e3
        deviation_ms = sum(one.end_std_s for one in ones) / len(ones) * 1e3
        yield (
            f"{name:<26}{len(ones):>6}{format_bytes(size_bytes):>12}{total_ms:>11.2f} ms"
            f"{total_ms / len(ones):>10.2f} ms{deviation_ms:>10.2f} ms"
        )


def _spans(profile: Profile, longest: int) -> Iterator[str]:
    yield f"{'idle span':<12}{'from':>12}{'length':>12}{'+-':>12}   {'share of idle':<15}"
    numbered = sorted(enumerate(profile.idle_spans), key=lambda pair: -pair[1].duration_s)
    for number, span in numbered[:longest]:
        place = "" if span.before_update else "after the update began"
        yield (
            f"{number:<12}{span.start_s * 1e3:>9.2f} ms{span.duration_s * 1e3:>9.2f} ms"
            f"{span.std_s * 1e3:>9.2f} ms   {span.duration_s / profile.idle_s:<9.0%}{place}"
        )
    rest = numbered[longest:]
    if rest:
        rest_ms = sum(span.duration_s for _, span in rest) * 1e3
        yield f"{f'{len(rest)} shorter':<12}{'':>12}{rest_ms:>9.2f} ms"
