"""`gemini-lab profile`: when is the network of a DeepSpeed script idle?"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gemini_lab.errors import RunFailedError
from gemini_lab.job import Job, python_command
from gemini_lab.lab.under_torchrun import end_keepers, start_with_keeper
from gemini_lab.limits import whole
from gemini_lab.profiler.observe import ITERATIONS, SKIP
from gemini_lab.profiler.profile import Profile, report
from gemini_lab.units import parse_bandwidth

_TORCHRUN: Final = (*python_command("torch.distributed.run"), "--standalone")


def command(arguments: list[str]) -> int:
    """Profile the script, print the time line, and write the profile.

    Raises:
        ConfigError: The script is not there.
        RunFailedError: The script failed, or ended too early.
    """
    options = _parser().parse_args(arguments)
    Job(script=options.script).check()
    print(  # noqa: T201
        f"{options.script} on {options.nproc} ranks of this machine, for {options.skip} iterations "
        f"and {options.iterations} that are looked at",
        file=sys.stderr,
        flush=True,
    )
    profile = profile_script(
        Path(options.script),
        options.args,
        nproc=options.nproc,
        iterations=options.iterations,
        skip=options.skip,
        link_bytes_per_s=parse_bandwidth(options.link) if options.link else None,
    )
    output = Path(options.output)
    output.write_text(profile.to_json(), encoding="utf-8")
    print(f"{report(profile)}\n\nwritten to {output}")  # noqa: T201
    return 0


def profile_script(
    script: Path,  # any script that calls `deepspeed.initialize` and `engine.step()`
    args: Sequence[str] = (),  # its arguments
    *,
    nproc: int = 2,  # number of ranks, all on this machine
    iterations: int = ITERATIONS,  # how many iterations make the profile
    skip: int = SKIP,  # how many pass before
    # Gives each rank a paced link of this rate, as if on a node alone; a collective takes what Gloo
    # sends for it.
    link_bytes_per_s: float | None = None,
    quiet: bool = False,  # whether to drop what the script prints, but for errors
) -> Profile:
    """Run a DeepSpeed script under torchrun until its profile is made; the profile of rank 0.

    Raises:
        ConfigError: The script is not there, or no Python.
        RunFailedError: The script failed, or ended too early.
    """
    Job(script=str(script)).check()
    with tempfile.TemporaryDirectory(prefix="gemini-lab-profile-") as folder:
        made = Path(folder) / "profile.json"
        runner = python_command("gemini_lab.lab.profile_runner", f"--output={made}")
        runner += [f"--iterations={iterations}", f"--skip={skip}"]
        if link_bytes_per_s is not None:
            runner.append(f"--link-bytes-per-s={link_bytes_per_s}")
        own = [f"--log-dir={folder}", f"--nproc-per-node={nproc}", "--no-python"]
        code = _run([*_TORCHRUN, *own, *runner, str(script), *args], quiet=quiet)
        if not made.exists() and (short := too_short(made)).exists():
            raise RunFailedError(
                f"{script} ended after {short.read_text(encoding='utf-8')} whole iterations; "
                f"{skip + iterations} that repeat are needed: let it run longer, or lower "
                "--iterations"
            )
        if not made.exists():
            raise RunFailedError(
                f"{script} ended (exit code {code}) before its profile was made; "
                "what it printed says why"
            )
        return Profile.from_json(made.read_text(encoding="utf-8"))


def too_short(output: Path) -> Path:
    """Return the file with the iterations of a script that ended before its profile."""
    return output.with_suffix(".short")


def _run(command: list[str], *, quiet: bool) -> int:
    """Run a command until it ends, or this process is interrupted; return its exit code."""
    output = subprocess.DEVNULL if quiet else None
    keeper = start_with_keeper(command, env={"OMP_NUM_THREADS": "1", **os.environ}, stdout=output)
    try:
        return keeper.wait()
    finally:
        end_keepers([keeper])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gemini-lab profile",
        description="Measure when a DeepSpeed script leaves the network idle. The script runs "
        "unchanged under torchrun, until enough iterations have passed.",
    )
    parser.add_argument(
        "--iterations",
        type=whole("profile_iterations"),
        default=ITERATIONS,
        metavar="N",
        help="iterations to average over (default: %(default)s)",
    )
    parser.add_argument(
        "--skip",
        type=whole("iterations"),
        default=SKIP,
        metavar="N",
        help="iterations to skip first (default: %(default)s)",
    )
    parser.add_argument(
        "--nproc",
        type=whole("workers_per_node"),
        default=2,
        metavar="N",
        help="ranks on this machine (default: %(default)s)",
    )
    parser.add_argument(
        "--link", metavar="RATE", help='pace each rank to a link of this rate, such as "400 Mbit/s"'
    )
    parser.add_argument(
        "--output",
        default="profile.json",
        metavar="FILE",
        help="file to write the profile to (default: %(default)s)",
    )
    parser.add_argument("script", help="the training script")
    its = parser.add_argument("args", nargs=argparse.REMAINDER, help="its own arguments")
    its.required = False  # by which an error would name it beside the script
    return parser
