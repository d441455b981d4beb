"""`gemini-lab profile`: when is the network of a DeepSpeed script idle?"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gemini_lab.errors import ConfigError, RunFailedError
from gemini_lab.profiler.observe import ITERATIONS, SKIP
from gemini_lab.profiler.profile import Profile
from gemini_lab.profiler.show import report
from gemini_lab.units import parse_bandwidth


def command(arguments: list[str]) -> int:
    """Profile the script, print the time line, and write the profile.

    Raises:
        ConfigError: The script is not there.
        RunFailedError: The script failed, or ended too early.
    """
    options = _parser().parse_args(arguments)
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
    script: Path,
    args: list[str] | None = None,
    *,
    nproc: int = 2,
    iterations: int = ITERATIONS,
    skip: int = SKIP,
    link_bytes_per_s: float | None = None,
) -> Profile:
    """Run a DeepSpeed script under torchrun until its profile is made; the profile of rank 0.

    Args:
        script: Any script that calls `deepspeed.initialize` and `engine.step()`.
        args: Its arguments.
        nproc: Number of ranks, all on this machine.
        iterations: How many iterations make the profile.
        skip: How many pass before.
        link_bytes_per_s: Gives each rank an emulated link of this rate, as if on a node alone.

    Raises:
        ConfigError: The script is not there.
        RunFailedError: The script failed, or ended too early.
    """
    if not script.is_file():
        raise ConfigError(f"there is no script {str(script)!r}; name a DeepSpeed script")
    with tempfile.TemporaryDirectory(prefix="gemini-lab-profile-") as folder:
        made = Path(folder) / "profile.json"
        runner = ["-m", "gemini_lab.profiler.runner", f"--output={made}"]
        runner += [f"--iterations={iterations}", f"--skip={skip}"]
        if link_bytes_per_s is not None:
            runner.append(f"--link-bytes-per-s={link_bytes_per_s}")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        done = subprocess.run(
            [*torchrun, f"--nproc-per-node={nproc}", *runner, str(script), *(args or [])],
            env={"OMP_NUM_THREADS": "1", **os.environ},
            check=False,
        )
        if not made.exists():
            raise RunFailedError(
                f"{script} ended (exit code {done.returncode}) before its profile was made; "
                "what it printed says why"
            )
        return Profile.from_json(made.read_text(encoding="utf-8"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gemini-lab profile",
        description="When is the network of a DeepSpeed script idle? The script runs unchanged, "
        "under torchrun, until enough iterations have been seen.",
    )
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="to average over")
    parser.add_argument("--skip", type=int, default=SKIP, help="to let pass first")
    parser.add_argument("--nproc", type=int, default=2, help="ranks on this machine")
    parser.add_argument("--link", help='emulated link of each rank, such as "400 Mbit/s"')
    parser.add_argument("--output", default="profile.json", help="where the profile goes")
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the script's own arguments")
    return parser
