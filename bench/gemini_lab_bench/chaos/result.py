"""What campaigns have found: fault by fault, kept as JSON, summed in one table."""

import json
import statistics
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec

from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.lab.made_with import machine
from gemini_lab_bench.chaos.faults import Fault, Schedule
from gemini_lab_bench.chaos.kinds import KINDS
from gemini_lab_bench.chaos.oracles import standstill_s
from gemini_lab_bench.chaos.suffer import Suffered

HEAD: Final = (
    f"{'kind':<14}{'struck':>7}{'held':>6}{'stood still: median':>22}{'worst':>9}  verdict"
)


def versions() -> dict[str, str]:
    """Return what a campaign tries."""
    return {name: metadata.version(name) for name in ("gemini-lab", "torch", "deepspeed")}


class StruckFault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, as it went."""

    run: str  # the folder of its run
    fault: Fault  # what was to break
    happened: bool  # whether it did
    hit: str  # what it hit, or why it did not happen
    at_s: float  # when
    # The longest time without a new iteration until training went on; `None` where the run was over
    # first.
    standstill_s: float | None
    is_fine: bool  # whether its run held


class FailedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that did not hold."""

    run: str  # its folder
    problems: list[str]  # what did not hold
    schedule: Schedule  # what it was to suffer


class CampaignResult(msgspec.Struct, kw_only=True):
    """What a campaign has found."""

    # Of this package and of what it trains with.
    versions: dict[str, str] = msgspec.field(default_factory=versions)
    # Where, and how busy it was at the start.
    machine: dict[str, object] = msgspec.field(default_factory=machine)
    plan: str = ""  # what was asked for, for people
    duration_s: float = 0.0  # how long all took
    looks: int = 0  # how often an observer of the runs' memory saw a whole version there
    # How many runs Ctrl-C or SIGTERM ended: how they would have ended is not known.
    cut_short: int = 0
    was_interrupted: bool = False  # whether one of these ended the campaign, be it between runs
    strikes: list[StruckFault] = msgspec.field(default_factory=list)  # every fault, in order
    failures: list[FailedRun] = msgspec.field(default_factory=list)  # the runs that did not hold

    def add(self, run: Suffered, found: list[str]) -> None:
        """Take in a run that is over, and what did not hold there."""
        self.looks += run.aftermath.looks
        self.cut_short += run.was_interrupted
        self.strikes += _strikes_of(run, is_fine=not found)
        if found:
            folder = str(run.folder)
            self.failures.append(FailedRun(run=folder, problems=found, schedule=run.schedule))

    def write(self, path: Path) -> None:
        """Write all that was found as JSON, in one step: whoever reads finds a whole file.

        Raises:
            GeminiError: It cannot be written.
        """
        text = json.dumps(msgspec.to_builtins(self), indent=1) + "\n"
        new = path.with_name(f"{path.name}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(text, encoding="utf-8")
            new.replace(path)
        except OSError as error:
            raise GeminiError(f"cannot write {path}: {error.strerror}") from error

    @classmethod
    def read(cls, path: Path) -> "CampaignResult":
        """Return what a campaign has written.

        Raises:
            ConfigError: It has not.
        """
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(
                f"cannot read a campaign from {path} ({error}); `gemini-lab chaos --json FILE` "
                "writes such files"
            ) from error

    def __str__(self) -> str:
        return "\n".join((*table(self.strikes), "", *_sums([self])))


def table(strikes: Sequence[StruckFault]) -> Iterator[str]:
    """Yield a line for each kind that was drawn: how long training stood still, whether it held."""
    yield HEAD
    for kind in KINDS:
        drawn = [one for one in strikes if one.fault.kind == kind]
        if drawn:
            yield _line(kind, [one for one in drawn if one.happened])


def summed(results: Sequence[CampaignResult]) -> str:
    """Return one table of several campaigns."""
    strikes = [one for result in results for one in result.strikes]
    lines = [*table(strikes), "", *_sums(results)]
    for failed in (one for result in results for one in result.failures):
        lines += [f"did not hold: {failed.run}", *(f"  {problem}" for problem in failed.problems)]
    return "\n".join(lines)


def _line(kind: str, struck: Sequence[StruckFault]) -> str:
    values = [one.standstill_s for one in struck if one.standstill_s is not None]
    held = sum(one.is_fine for one in struck)
    verdict = "holds" if held == len(struck) else f"{len(struck) - held} in runs that did not hold"
    times = f"{'':>31}"
    if values:
        times = f"{statistics.median(values):>20.1f} s{max(values):>7.1f} s"
    elif not struck:
        verdict = "it never happened"
    return f"{kind:<14}{len(struck):>7}{held:>6}{times}  {verdict}"


def _sums(results: Sequence[CampaignResult]) -> Iterator[str]:
    strikes = [one for result in results for one in result.strikes]
    struck = [one for one in strikes if one.happened]
    close = sum(one.fault.moment not in ("calm", "meanwhile") for one in struck)
    minutes = sum(result.duration_s for result in results) / 60
    yield (
        f"{len(struck)} faults struck, {close} of them close upon another, in a recovery or at "
        f"the end; {len(strikes) - len(struck)} never happened; of "
        f"{len({one.run for one in strikes})} run(s) "
        f"{sum(len(result.failures) for result in results)} did not hold, "
        f"{sum(result.cut_short for result in results)} were cut short"
    )
    yield (
        f"{sum(result.looks for result in results)} times an observer of the runs' memory saw a "
        "whole version there"
    )
    if minutes:
        yield f"{minutes:.0f} minutes, {len(struck) / minutes:.1f} faults a minute"


def _strikes_of(run: Suffered, *, is_fine: bool) -> Iterator[StruckFault]:
    for one in run.struck:
        stood_s = None
        if one.happened and one.until_s is not None:
            entries = run.aftermath.entries
            stood_s = standstill_s(entries, since_s=one.at_s, until_s=one.until_s)
        yield StruckFault(
            run=str(run.folder),
            fault=one.fault,
            happened=one.happened,
            hit=one.hit,
            at_s=one.at_s,
            standstill_s=stood_s,
            is_fine=is_fine,
        )
