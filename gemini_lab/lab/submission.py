"""A job that a user wants to run, checked before anything is made or started for it."""

import contextlib
import os
import random
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from gemini_lab.errors import ConfigError, GeminiError, kind_of
from gemini_lab.injector.scenario import Scenario
from gemini_lab.job import Job, hash_seed_in, job_of
from gemini_lab.lab.lab_config import LabConfig
from gemini_lab.lab.pages import Decide, pack_root
from gemini_lab.limits import require_text
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import RunStarted
from gemini_lab.log.file import LATEST, LOG_FILE, LogFeed, find_log, hidden_arguments, read_line
from gemini_lab.placement import Placement, Risk
from gemini_lab.placement.own import placed_by
from gemini_lab.recovery.messages import JobOrder
from gemini_lab.recovery.replicas import RISK_EVENTS, learn_risk
from gemini_lab.seats import Seats, node_name
from gemini_lab.settings import AUTO, Settings, SettingValue
from gemini_lab.storage import absolute_url, persistent_tier

MOST_BYTES: Final = 1 << 20
"""Of an order: etcd refuses a value of more than 1.5 MiB, and the root agent's state has one."""
LONGEST_NAME: Final = 200
"""Bytes of the name that a person gives a run: a folder takes 255, and a number may follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job with all that belongs to it."""

    job: Job  # what to run
    scenario: Scenario  # failures to inject on the way
    seats: Seats  # how many nodes, standbys and workers; with a placement, if a person made one
    name: str  # what the run's folder is to be called
    settings: Mapping[str, SettingValue]  # they replace those of the script
    is_resumed: bool  # whether it may go on from another run's versions in the persistent tier
    identity: int  # the run's own, 32 random bits
    # The user's own function that decides recoveries, as text; empty for the lab's own.
    root: str = ""
    # The tier of an earlier run of this job from which it goes on, unless the launcher or the
    # script names another one.
    earlier: Path | None = None

    @classmethod
    def checked(
        cls,
        config: LabConfig,  # the lab
        job: Job | str | Path,  # see the attributes, as for what follows; a script's path will do
        *,
        scenario: Scenario | None,  # by default no failures
        name: str | None,  # by default the time and the job's name
        resume: bool,  # whether it may go on from another run's versions
        # One, or a function that plans it; by default what the settings ask for.
        placement: object = None,
        root: Decide | None = None,  # decides recoveries; by default the lab's own root agent does
        settings: Mapping[str, SettingValue],  # what the launcher was told
        # Whether to make the persistent tier that it names its own; else it is only looked at.
        writes: bool = True,
    ) -> "Submission":
        """Return a submission that can run on such a lab.

        Raises:
            ConfigError: The script is missing, the name, a setting, the placement or the root agent
                is impossible, or the tier is another run's.
        """
        job = job_of(job)
        job.check()
        _check_name(name)
        if isinstance(url := settings.get("persistent_url"), str):
            settings = {**settings, "persistent_url": absolute_url(url, cwd=str(Path.cwd()))}
        if not isinstance(scenario, Scenario | None):
            raise ConfigError(
                f"scenario= is {kind_of(scenario)}; give a Scenario, such as Scenario.load(path)"
            )
        scenario = scenario or Scenario()
        identity = secrets.randbits(32)
        seats = config.seats
        if placement is not None:
            _check_unplaced(settings)
            placement = _placed(placement, seats.nodes, settings)
            seats = replace(seats, placement=placement)
            settings = {"replicas": placement.replicas, **settings}
        parsed = Settings.parse(settings)
        if parsed.risk_from is not None:
            seats = replace(seats, risk=learn_from(split_runs(parsed.risk_from)))
        _check(seats, parsed, scenario)
        if parsed.persistent_url is not None:
            tier = persistent_tier(parsed.persistent_url)
            if writes:
                tier.check()
                tier.claim(identity, is_resumed=resume)
            else:
                tier.look(is_resumed=resume)
        return cls(
            job=job,
            scenario=scenario,
            seats=seats,
            name=name or default_name(job),
            settings=settings,
            is_resumed=resume,
            identity=identity,
            root="" if root is None else pack_root(root),
            earlier=earlier_tier(config.folder, job) if resume else None,
        )

    def order(self, *, number: int, shared: Path | None) -> JobOrder:
        """Return the order to the root agent.

        `shared` is the run's folder if all nodes see it: a persistent tier can be there.
        """
        order = JobOrder(
            number=number,
            run=self.identity,
            is_resumed=self.is_resumed,
            job=self.job,
            seats=self.seats,
            settings=dict(self.settings),
            root=self.root,
            hash_seed=hash_seed_in({**os.environ, **self.job.env}) or 0,
            defaults={}
            if shared is None
            else {"persistent_url": str(self.earlier or shared / TIER)},
        )
        if (size_bytes := len(msgspec.json.encode(order))) > MOST_BYTES:
            raise ConfigError(
                f"the job with its arguments, variables, settings and placement takes "
                f"{size_bytes:,} bytes, and a store takes {MOST_BYTES:,} of a job; have the script "
                "read what is long from a file"
            )
        return order


def default_name(job: Job) -> str:
    """Return the name of a run to which its user gives none."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{job.word}".rstrip("-")


def _check_name(name: str | None) -> None:
    """Refuse a run's name that no folder can have, or that means another place or another run."""
    if name is None:
        return
    require_text("a run's name", name)
    if name and (Path(name).name != name or name == ".."):
        raise ConfigError(
            f"{name!r} cannot be a run's name, as it is a path; the folder in which runs lie is "
            "named by folder= or --folder"
        )
    if name == LATEST:
        raise ConfigError(
            f"{name!r} cannot be a run's name, as all commands mean the newest run by it; give "
            "another one"
        )
    if name and (size := len(os.fsencode(name))) > LONGEST_NAME:
        raise ConfigError(
            f"a name of {size} bytes is too long for a run's folder ({name[:20]}...); give one of "
            f"{LONGEST_NAME} at most"
        )


def _placed(placement: object, nodes: int, settings: Mapping[str, SettingValue]) -> Placement:
    """Return the placement that is meant, be it one or a function that plans it."""
    if isinstance(placement, Placement):
        return placement
    if not callable(placement):
        raise ConfigError(
            "placement= has to be a Placement, or a function of `nodes` and `replicas` that plans "
            f"one, and this is {kind_of(placement)}; plan_placement makes one"
        )
    replicas = Settings.parse(settings).replicas
    asked = f"placement= was asked for {nodes} nodes and {replicas} replicas, and"
    try:
        with limit(ONE_S):
            return placed_by(placement, nodes=nodes, replicas=replicas)
    except ConfigError as error:
        raise ConfigError(f"{asked} {error}") from error
    except TooLong:
        raise ConfigError(f"{asked} there is no answer after {ONE_S:g} s") from None
    except Exception as error:
        raise ConfigError(f"{asked} raised {type(error).__name__}: {error}") from error


def _check_unplaced(settings: Mapping[str, SettingValue]) -> None:
    """Refuse settings that ask for a placement beside one that is given."""
    if settings.get("replicas") == AUTO or settings.get("adapt_replicas"):
        raise ConfigError(
            'placement= says who keeps what, and "replicas": "auto" chooses it; leave one of them '
            "out"
        )
    if "strategy" in settings:
        raise ConfigError(
            f"placement= says who keeps what, and strategy={settings['strategy']!r} too; leave one "
            "of them out"
        )


def _check(seats: Seats, settings: Settings, scenario: Scenario) -> None:
    seats.seated([node_name(number) for number in range(seats.nodes)]).placed(settings)
    nodes = seats.nodes + seats.standbys
    scenario.check(nodes=nodes, ranks=seats.world_size, racks=list(seats.nodes_by_rack))


# -- an earlier run --------------------------------------------------------------------------------

TIER: Final = "persistent"
"""The folder in a run's own that is its persistent tier, where it was given no other."""
HEAD: Final = 32  # entries of a log, among which its job is told


def earlier_tier(folder: Path, job: Job) -> Path | None:
    """Return the persistent tier of the newest run of `job` below `folder` with a version in it.

    One that has none any more that counts is taken, too: the run that goes on asks what to do.
    """
    wanted = job.script, job.module, tuple(hidden_arguments(job.args))
    runs = [log.parent for log in folder.glob(f"*/{LOG_FILE}") if (log.parent / TIER).is_dir()]
    for run in sorted(runs, key=lambda run: (run / LOG_FILE).stat().st_mtime, reverse=True):
        is_of_job = any((told.script, told.module, told.args) == wanted for told in _told(run))
        if is_of_job and _has_begun(str(run / TIER)):
            return run / TIER
    return None


def _has_begun(url: str) -> bool:
    """Return whether a persistent tier has a version, or had one that training went back behind.

    One that cannot be read has: an earlier run's must not be taken for the newest.
    """
    try:
        there = persistent_tier(url).survey()
    except GeminiError:
        return True
    return bool(there.stored or there.unclear or there.disowned)


def _told(run: Path) -> Iterator[RunStarted]:
    """Yield the log's entry on the run's job; nothing if it cannot be read."""
    try:
        head = LogFeed(run).poll(limit=HEAD)
    except (GeminiError, OSError):
        return
    yield from (entry.event for entry in head if isinstance(entry.event, RunStarted))


# -- failures in earlier runs ----------------------------------------------------------------------


def split_runs(text: str) -> list[str]:
    """Return the runs that the setting `risk_from` names, with commas between."""
    return [name for part in text.split(",") if (name := part.strip())]


def learn_from(runs: Sequence[str]) -> Risk:
    """Return the risk that the logs of these runs show together.

    Args:
        runs: Their folders, or as `find_log` takes them.

    Raises:
        ConfigError: One of them is no run.
        EventError: A line of a log is no event.
    """
    known = Risk()
    for run in runs:
        known = learn_risk(_lines_of_machines(find_log(run))).after(known)
    return known


def _lines_of_machines(path: Path) -> Iterator[Entry]:
    """Yield the entries that tell of machines, and the last one, which tells how long it was."""
    kinds = tuple(f'"kind":"{kind.__struct_config__.tag}"'.encode() for kind in RISK_EVENTS)
    last = b""
    with path.open("rb") as lines:
        for number, line in enumerate(lines):
            if not line.endswith(b"\n"):
                break
            last = line
            if number == 0 or any(kind in line for kind in kinds):
                entry = read_line(line)
                if entry is not None:
                    yield entry
                last = b""
    if last and (entry := read_line(last)) is not None:
        yield entry


# -- a time limit ----------------------------------------------------------------------------------

ONE_S: Final = 2.0
"""How long one answer of a user's function may take."""
_AT_ONCE_S: Final = 1e-6, 1e-4
_SOON_S: Final = 1e-3


class TooLong(BaseException):
    """An answer took too long; no error, which the user's function might catch."""


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise `TooLong` in the block after so many seconds.

    A signal interrupts the block, so this needs the main thread, in which cells and agents run; in
    another thread there is no limit. A loop that catches everything meets the next signal while it
    does so, and one that is not caught at last.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_late = is_over = False
    user = sys._getframe(2)  # noqa: SLF001 - the caller that limits the block

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as handlers are called
        nonlocal is_late
        if is_over:
            return
        if is_late and _is_leaving(frame, user):
            signal.setitimer(signal.ITIMER_REAL, _SOON_S)
            return
        is_late = True
        signal.setitimer(signal.ITIMER_REAL, random.uniform(*_AT_ONCE_S))
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
        if is_late:
            raise TooLong
    finally:
        is_over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _is_leaving(frame: FrameType | None, user: FrameType) -> bool:
    """Return whether the block may be on its way out already, to who limits it."""
    while frame is not None and frame.f_code.co_filename in {contextlib.__file__, __file__}:
        if frame is user:
            return True
        frame = frame.f_back
    return frame is None or frame is user
