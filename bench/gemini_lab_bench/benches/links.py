"""The `links` bench: is a paced link the link that the kernel would give?"""

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gemini_lab.lab.profile_script import profile_script
from gemini_lab.profiler.profile import Profile
from gemini_lab.units import MB, format_bytes
from gemini_lab_bench.rows import Row

LINK_BYTES_PER_S: Final = 5 * MB
JOB: Final = ("--size", "tiny", "--iterations", "1000")
NODES: Final = 2


def bench(repeats: int) -> list[Row]:
    """Profile the same job on a paced and on a kernel-shaped link of the same rate, in turn.

    Raises:
        LaunchError: Network namespaces cannot be made here.
    """
    found = find_spec("gemini_lab.training.gpt_job")
    assert found is not None
    assert found.origin is not None
    script = Path(found.origin)
    paced: list[Profile] = []
    shaped: list[Profile] = []
    measured = partial(profile_script, script, JOB, nproc=NODES, iterations=8, quiet=True)
    for _ in range(repeats):
        shaped.append(measured(kernel_link_bytes_per_s=LINK_BYTES_PER_S))
        paced.append(measured(link_bytes_per_s=LINK_BYTES_PER_S))
    return rows(paced, shaped, rate=f"{format_bytes(LINK_BYTES_PER_S)}/s")


def rows(paced: list[Profile], shaped: list[Profile], *, rate: str) -> list[Row]:
    """Iteration and traffic times of both, and their quotients run by run.

    Args:
        paced: Profiles of the job on paced links.
        shaped: Profiles of the same job on links that the kernel shapes.
        rate: The links' rate, for people.
    """
    settings = {"link": rate}
    result = []
    for what, of in (("iteration", _iteration_s), ("traffic", _traffic_s)):
        one, other = [of(p) for p in paced], [of(p) for p in shaped]
        result += [
            Row(name=f"{what}, paced", values=tuple(one), settings=settings),
            Row(name=f"{what}, shaped by the kernel", values=tuple(other), settings=settings),
            Row(
                name=f"{what}, paced / shaped",
                values=tuple(a / b for a, b in zip(one, other, strict=True)),
                unit="",
            ),
        ]
    return result


def _iteration_s(profile: Profile) -> float:
    return profile.iteration_s


def _traffic_s(profile: Profile) -> float:
    return profile.iteration_s - profile.idle_s
