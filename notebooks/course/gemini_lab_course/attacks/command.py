"""`gemini-lab attack`: the ladder of stages that a reader writes, in a terminal.

gemini-lab attack --new FOLDER       write a file for each stage, with what it is asked
gemini-lab attack 03 placement.py    attack one of them
gemini-lab attack all FOLDER         attack all of them, and print the points
gemini-lab attack board FOLDER       compare the ladders in a folder
"""

import argparse
import runpy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemini_lab.display import picture, readable, tell
from gemini_lab.errors import ConfigError
from gemini_lab.limits import whole
from gemini_lab.status_line import busy
from gemini_lab_course.attacks import attack, compared
from gemini_lab_course.attacks.outcome import Counterexample, Withstood, counted
from gemini_lab_course.cells import in_short
from gemini_lab_course.verdict import WrongAnswerError

RUNS: Final = whole("runs")
SECONDS: Final = whole("within")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the ladder.

    Attributes:
        name: The function that the reader writes.
        head: Its parameters.
        asks: What it returns, in a sentence.
        hours: How long it takes most readers.
    """

    lab: str
    stage: str
    file: str
    name: str
    head: str
    asks: str
    points: int
    hours: str


LADDER: Final = (
    Part(
        lab="03",
        stage="placement",
        file="placement.py",
        name="planner",
        head="nodes, replicas",
        asks="Return for each shard the nodes that keep it, its owner first.",
        points=10,
        hours="1",
    ),
    Part(
        lab="09",
        stage="division",
        file="division.py",
        name="divide",
        head="held",
        asks="Return for each rank the bytes that a version keeps of each of its pieces.",
        points=10,
        hours="1",
    ),
    Part(
        lab="04",
        stage="chunks",
        file="chunks.py",
        name="planner",
        head="*, profile, checkpoint_bytes, replicas, bandwidth_bytes_per_s, alpha_s, **buffer",
        asks="Return the `Chunk`s of gemini_lab.pipeliner.schedule, in the order of leaving.",
        points=20,
        hours="1 to 2",
    ),
    Part(
        lab="05",
        stage="recovery",
        file="plan.py",
        name="planner",
        head="*, placement, members, copies, living, standbys, persistent",
        asks="Return a `RecoveryPlan` of gemini_lab.recovery.plan.",
        points=30,
        hours="2",
    ),
    Part(
        lab="08",
        stage="root",
        file="root.py",
        name="decide",
        head="state, event, cluster",
        asks="Return the actions of gemini_lab_course.own_root.deciding.",
        points=40,
        hours="3 to 6",
    ),
)
"""From the easiest to the hardest; lab NN's notebook says what each is asked."""


def command(arguments: Sequence[str]) -> int:
    """Return 1 if something broke what was attacked."""
    options = _parser().parse_args(arguments)
    if options.new is not None:
        for each in LADDER:
            _write_new(options.new / each.file, each)
        return 0
    if options.lab is None or options.path is None:
        raise ConfigError("needs a lab and a file: gemini-lab attack 03 placement.py")
    if options.lab == "board":
        return _board(options.path, within_s=options.within)
    if options.lab == "all":
        return _attack_all(options.path, runs=options.runs, within_s=options.within)
    part = next((one for one in LADDER if one.lab == options.lab.zfill(2)), None)
    if part is None:
        known = ", ".join(one.lab for one in LADDER)
        raise ConfigError(f"lab {options.lab!r} has no stage to attack; choose {known}, or all")
    found = _attacked(part, options.path, runs=options.runs, within_s=options.within)
    _say(found)
    if isinstance(found, Counterexample) and options.svg is not None:
        with suppress(TypeError):
            options.svg.write_text(picture(found).svg(), encoding="utf-8")
            tell(f"drawn in {options.svg}")
    return 0 if found.holds and found.is_complete else 1


def _parser() -> argparse.ArgumentParser:
    parts = "; ".join(f"{one.lab}: {one.file}, {one.points} points" for one in LADDER)
    parser = argparse.ArgumentParser(
        prog="gemini-lab attack",
        description="Attack a stage that you wrote: search the smallest case that breaks it.",
        epilog=f"The parts: {parts}. Run `gemini-lab attack --new FOLDER` to begin.",
    )
    parser.add_argument("lab", nargs="?", metavar="LAB", help="03, 04, 05, 08, 09, all or board")
    parser.add_argument(
        "path",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="of all: the folder with the five files; of board: a folder of such folders",
    )
    parser.add_argument(
        "--runs", type=RUNS, default=1, metavar="N", help="number of attacks (default: 1)"
    )
    parser.add_argument(
        "--within", type=SECONDS, default=100, metavar="S", help="seconds for each (default: 100)"
    )
    parser.add_argument(
        "--svg", type=Path, metavar="FILE", help="write a drawing of what breaks it"
    )
    parser.add_argument("--new", type=Path, metavar="FOLDER", help="write the files to begin with")
    return parser


def _write_new(path: Path, part: Part) -> None:
    """Write the file to begin a part with, unless there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        tell(f"{path} is there already, and stays as it is")
        return
    told = f"{part.points} points, {part.hours} h. Lab {part.lab} says what it is asked."
    path.write_text(
        f'"""Part {part.stage}: {told}\n\n'
        f'Try it: gemini-lab attack {part.lab} {part.file}\n"""\n\n\n'
        f'def {part.name}({part.head}):\n    """{part.asks}"""\n',
        encoding="utf-8",
    )
    tell(f"{path}: {part.points} points, {part.hours} h")


def _attacked(part: Part, path: Path, *, runs: int, within_s: int) -> Counterexample | Withstood:
    """Return the attack's result; of several runs the first that breaks it."""
    try:
        names = runpy.run_path(str(path))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except Exception as error:
        raise ConfigError(f"{path} raised {in_short(error)}") from error
    if part.name not in names:
        raise ConfigError(f"{path} has no `{part.name}`; write def {part.name}({part.head})")
    withstood = 0
    for run in range(runs):
        try:
            with busy(f"attacking {part.file}"):
                found = attack(names[part.name], stage=part.stage, within_s=within_s, run=run)
        except WrongAnswerError as error:
            raise ConfigError(f"{path}: {error}") from error
        if not found.holds or not found.is_complete:
            break
        withstood += 1
    if runs > 1:
        more = "" if withstood == runs else "; then it broke"
        tell(f"withstood in {withstood} of {runs} runs{more}")
    return found


def _say(found: Counterexample | Withstood) -> None:
    if isinstance(found, Counterexample):
        tell(f"broken, after {counted(found.tried, 'smaller case')}:\n  {found.words}")
        tell("\n  ".join(["asked with:", *(f"{k}: {v}" for k, v in found.case.arguments.items())]))
    else:
        tell(f"{'withstood' if found.is_complete else 'not tried to the end'}: {found.words}")
        tell(compared(found))


def _attack_all(folder: Path, *, runs: int, within_s: int) -> int:
    """Attack each part's file, and print a line for each; files that are missing have no points."""
    points = 0
    for part in LADDER:
        try:
            found = _attacked(part, folder / part.file, runs=runs, within_s=within_s)
        except ConfigError as error:
            tell(f"{part.lab}  {part.stage:<10}  0 of {part.points:<3} {error}")
            continue
        is_right = found.holds and found.is_complete
        points += part.points * is_right
        scored = f"{part.points * is_right:>2} of {part.points:<3}"
        tell(f"{part.lab}  {part.stage:<10} {scored} {found.words}")
    whole_points = sum(part.points for part in LADDER)
    tell(f"{points} of {whole_points} points")
    return 0 if points == whole_points else 1


def _board(folder: Path, *, within_s: int) -> int:
    """Attack each ladder in a folder, and print them with their figures, the most points first.

    The functions run in this process: only a class that trusts each other shares such a folder.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; board compares the ladders in the folders there")
    scores: list[tuple[int, str, list[str]]] = []
    for mine in sorted(one for one in folder.iterdir() if one.is_dir()):
        points, lines = 0, []
        for part in LADDER:
            try:
                found = _attacked(part, mine / part.file, runs=1, within_s=within_s)
            except ConfigError:
                continue
            if isinstance(found, Withstood) and found.is_complete:
                points += part.points
                figures = "; ".join(f"{one.what}: {one.said(one.yours)}" for one in found.figures)
                lines.append(f"      {part.lab} {part.stage}: {figures}")
        scores.append((points, readable(mine.name), lines))
    for place, (points, name, lines) in enumerate(sorted(scores, key=lambda one: -one[0]), start=1):
        tell("\n".join([f"{place:>3}  {points:>3} points  {name}", *lines]))
    return 0
