"""One run of a campaign: a job under `gemini-lab run`, struck from outside, until it is over."""

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gemini_lab.errors import GeminiError
from gemini_lab_bench.chaos.aftermath import Aftermath, Losses
from gemini_lab_bench.chaos.faults import Schedule
from gemini_lab_bench.chaos.observer import Observer, TierObserver
from gemini_lab_bench.chaos.oracles import losses_of
from gemini_lab_bench.chaos.owner import end, started, write_processes
from gemini_lab_bench.chaos.scene import scene_of
from gemini_lab_bench.chaos.strikes import Strikes
from gemini_lab_bench.chaos.told import Told
from gemini_lab_bench.chaos.turn import StoodStillError, Struck, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Suffered:
    """A run that is over.

    Attributes:
        schedule: What it was to suffer.
        struck: What it did suffer, in order.
        aftermath: For the oracles.
        folder: Its own.
        was_interrupted: Whether somebody ended the campaign meanwhile.
    """

    schedule: Schedule
    struck: tuple[Struck, ...]
    aftermath: Aftermath
    folder: Path
    was_interrupted: bool = False


def suffer(
    schedule: Schedule,
    *,
    folder: Path,
    undisturbed: Losses,
    limit_s: float,
    stop_s: float | None = None,
    say: Callable[[Struck], None] = lambda _: None,
) -> Suffered:
    """Run the job, strike, and gather what the oracles need.

    Args:
        schedule: What to suffer.
        folder: Where the run is to have its folder; it is made.
        undisturbed: The job's losses.
        limit_s: Training that stands still for longer than this hangs.
        stop_s: From then on, by this process's clock, it is struck no more and told to end.
        say: Called with each fault once it is over, or did not happen.
    """
    own = folder / f"run-{schedule.seed}-{schedule.number}-{secrets.token_hex(3)}"
    mark = secrets.token_hex(8)
    scratch = own / "scratch"
    scratch.mkdir(parents=True)
    hang, was_interrupted = "", False
    with (
        scene_of(schedule, own) as scene,
        started(schedule, own, scene, mark) as owner,
        Observer(mark, schedule.nodes - schedule.resizes) as observer,
        TierObserver(scene.tier.data) as tier,
    ):
        told = Told(own / "run", iterations=schedule.iterations)
        strikes = Strikes(
            mark=mark,
            folder=own / "run",
            owner=owner,
            told=told,
            scene=scene,
            rack_of=schedule.rack_of,
            nodes=schedule.nodes,
        )
        turn = Turn(
            strikes,
            told,
            owner,
            own / "run",
            limit_s=limit_s,
            stop_s=stop_s,
            say=say,
            tier=lambda: (tier.newest(scene.tier.spoilt), max(scene.tier.spoilt, default=0)),
        )
        try:
            turn.go_through(schedule.faults)
        except StoodStillError as error:
            hang = str(error)
            write_processes(mark, own / "processes.txt")
        except KeyboardInterrupt:
            was_interrupted = turn.is_cut_short = True
            owner.kill()
        exit_status, left = end(owner, mark, scratch, is_hung=bool(hang))
        strikes.rest()
        told.poll()
        readable = tier.readable()
    aftermath = Aftermath(
        entries=told.entries,
        undisturbed=undisturbed,
        iterations=schedule.iterations,
        is_cut_short=turn.is_cut_short,
        was_told_to_end=turn.has_told_to_end,
        let_go_s=turn.let_go_s,
        hang=hang,
        exit_status=exit_status,
        bad_lines=told.bad_lines,
        gaps_s=observer.seen.gaps_s,
        looks=observer.seen.looks,
        memory=() if schedule.resizes else observer.seen.newest,
        tier=tier.seen,
        readable=readable,
        spoilt=frozenset(scene.tier.spoilt),
        said=strikes.said,
        edits=[(since_s, until_s) for since_s, until_s in strikes.edits],
        left=() if hang else left,
    )
    return Suffered(
        schedule=schedule,
        struck=tuple(turn.struck),
        aftermath=aftermath,
        folder=own / "run",
        was_interrupted=was_interrupted,
    )


def undisturbed(form: Schedule, folder: Path, *, limit_s: float) -> Losses:
    """Return the losses of the same job without any fault.

    Those of an earlier call with the same `folder` are used again.

    Raises:
        GeminiError: Even without faults it does not finish.
    """
    form = msgspec.structs.replace(form, faults=(), verifies=False, keeps=False)  # no loss changes
    kind = "-resizable" if form.resizes else ""
    kept = folder / f"undisturbed-{form.nodes}-{form.iterations}{kind}.json"
    if not kept.exists():
        quiet = suffer(form, folder=folder, undisturbed={}, limit_s=limit_s)
        if quiet.was_interrupted:
            raise KeyboardInterrupt
        losses = losses_of(quiet.aftermath.entries)
        if len(losses) != form.nodes * form.iterations or not quiet.aftermath.has_finished:
            raise GeminiError(
                f"the job did not finish without any fault ({quiet.aftermath.hang or 'it ended'}); "
                f"see {quiet.folder.parent / 'owner.log'}"
            )
        told = [[*place, loss.hex()] for place, loss in losses.items()]
        kept.write_text(json.dumps(told) + "\n", encoding="utf-8")
    told = json.loads(kept.read_text(encoding="utf-8"))
    return {(iteration, rank): float.fromhex(loss) for iteration, rank, loss in told}
