"""One rank of `gemini-lab profile`: runs a DeepSpeed script as it is, and profiles it.

An iteration ends when DeepSpeed's engine has made an optimizer step. The script does not tell when
that is, so the engine class's `step` is wrapped here, in this process only.
"""

import argparse
import os
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.engine import DeepSpeedEngine

from gemini_lab.engine.frameworks.stepping import next_step_updates
from gemini_lab.engine.private_names import avoid_shared_memory_collectives
from gemini_lab.engine.process_exit import leave
from gemini_lab.lab.profile_script import too_short
from gemini_lab.profiler.observe import Profiler
from gemini_lab.profiler.profile import Profile
from gemini_lab.transfer.collective_calls import DeviceClock, WallClock
from gemini_lab.transfer.comm_hook import CommHook, Pace
from gemini_lab.transfer.link import LinkBucket, LinkPacer
from gemini_lab.units import format_bytes


class ProfileMade(SystemExit):
    """The profile is complete, and with it the run."""

    def __init__(self) -> None:
        super().__init__(0)


class ProfiledSteps:
    """Stands for `DeepSpeedEngine.step`: marks the iterations, and ends the run in time."""

    def __init__(
        self,
        step: Any,  # the method that it stands for
        *,
        iterations: int,  # how many iterations make the profile
        skip: int,  # how many pass before
        link: LinkBucket | None,  # the emulated link of this rank, if it has one
    ) -> None:
        self._step = step
        self._iterations = iterations
        self._skip = skip
        self._link = link
        self._hook: CommHook | None = None
        self._profiler: Profiler | None = None
        self.seen = 0

    def __call__(self, engine: Any, *args: Any, **kwargs: Any) -> Any:
        """Count one call of `engine.step`; only those that update the states end an iteration."""
        if self._hook is None:
            self._attach()
        assert self._hook is not None
        is_update = next_step_updates(engine)
        if is_update:
            self._hook.begin_update()
        result = self._step(engine, *args, **kwargs)
        if is_update:
            self._end_iteration(self._hook)
        return result

    def _attach(self) -> None:
        on_device = torch.cuda.is_available() and "nccl" in dist.get_backend()
        pace: Pace | None = LinkPacer(self._link) if self._link else None
        clock = DeviceClock() if on_device else WallClock()
        self._hook = CommHook(clock=clock, pace=pace).attach()
        conditions = []
        if self._link is not None:
            rate = format_bytes(self._link.bytes_per_s)
            conditions.append(f"each rank on a link paced to {rate}/s")
        self._profiler = Profiler(
            iterations=self._iterations,
            skip=self._skip,
            world_size=dist.get_world_size(),
            conditions=conditions,
        )

    def _end_iteration(self, hook: CommHook) -> None:
        record = hook.begin_iteration()
        if record is None or self._profiler is None:
            return
        self.seen += 1
        if isinstance(self._profiler.observe(record), Profile):
            hook.detach()
            raise ProfileMade

    @property
    def profile(self) -> Profile | None:
        return self._profiler.profile if self._profiler else None


def main(arguments: list[str]) -> int:
    """Run the script under the profiler; rank 0 writes the profile, or it is `too_short`."""
    options = _parser().parse_args(arguments)
    warnings.filterwarnings("ignore", "`torch.distributed.* is deprecated", FutureWarning)
    avoid_shared_memory_collectives()
    link = None
    if options.link_bytes_per_s:
        path = Path(options.output).with_suffix(f".link{os.environ['RANK']}")
        link = LinkBucket(path, bytes_per_s=options.link_bytes_per_s)
        path.unlink()
    steps = ProfiledSteps(
        DeepSpeedEngine.step,
        iterations=options.iterations,
        skip=options.skip,
        link=link,
    )

    def step(engine: Any, *args: Any, **kwargs: Any) -> Any:
        return steps(engine, *args, **kwargs)

    DeepSpeedEngine.step = step
    sys.argv = [options.script, *options.args]
    sys.path.insert(0, str(Path(options.script).resolve().parent))
    try:
        runpy.run_path(options.script, run_name="__main__")
    except ProfileMade:
        assert steps.profile is not None
        if dist.get_rank() == 0:
            Path(options.output).write_text(steps.profile.to_json(), encoding="utf-8")
        dist.barrier()  # rank 0 keeps the store that the others still use
        dist.destroy_process_group()
        return 0
    # An exit code would have torchrun print where each rank stood, as after an error.
    too_short(Path(options.output)).write_text(f"{steps.seen}", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gemini_lab.lab.profile_runner")
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--skip", type=int, required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--link-bytes-per-s", type=float, default=0.0)
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    return parser


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
