"""A run that somebody else owns, followed from here: on any machine that reaches its owner."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self, Unpack

from gemini_lab.errors import GeminiError
from gemini_lab.injector.failures import Failure
from gemini_lab.injector.scenario import Scenario
from gemini_lab.job import Job
from gemini_lab.lab.control import OwnerAddress, OwnerAwayError, RunGoneError, ask_by, read_lines
from gemini_lab.lab.detached import start_detached
from gemini_lab.lab.followed import FollowedRun
from gemini_lab.lab.lab_config import LabOptions, config_of
from gemini_lab.lab.lab_runs import said
from gemini_lab.lab.run_locator import Finder
from gemini_lab.lab.submission import Submission
from gemini_lab.log.events import RunFailed
from gemini_lab.log.file import LATEST, LOG_FILE, RUNS_FOLDER, read_line
from gemini_lab.recovery.messages import (
    ControlHello,
    FollowLog,
    InjectFailure,
    LogSaid,
    OutputSaid,
    TakeStacks,
)
from gemini_lab.recovery.requests import AnyRequest
from gemini_lab.report.follower import LogFollower
from gemini_lab.settings import SettingValue
from gemini_lab.wire.tcp import Channel, connect

CONNECT_S: Final = 5.0
RETRY_S: Final = 0.5
SILENT_S: Final = 10
"""Of an owner whose machine answers nothing: who only listens would wait for ever."""
PATIENCE_S: Final = 120.0
"""For a new owner to come when one is lost; then this machine has lost the run."""
OWNER_S: Final = 30.0
"""The same for who asks something and waits for the answer."""


class AttachedRun(FollowedRun):
    """A run whose owner is elsewhere; following it leaves it alone.

    Its log is followed on a thread of its own, from `start`, or from the beginning of a `with`
    block, until `close` or the block's end.

    Args:
        name: The run's.
        find: The way to its owner at the moment, or an error that says why there is none.
        folder: The run's, if this machine sees it: what the owner could not tell at its end, the
            log tells.

    Attributes:
        is_caught_up: Whether all that the log had was taken in.
    """

    def __init__(
        self, name: str, find: Callable[[], OwnerAddress], folder: Path | None = None
    ) -> None:
        super().__init__(name)
        self.folder = folder
        self._find = find
        self._read_bytes = 0
        self._caught_up = threading.Event()
        self._is_leaving = False
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._follow_owners()),
            name="gemini-lab-attached",
            daemon=True,
        )

    def start(self) -> Self:
        """Follow it from now on."""
        if self._thread.ident is None:
            self._thread.start()
        return self

    def close(self) -> None:
        """Follow it no more; it goes on."""
        self._is_leaving = True
        self._thread.join(timeout=CONNECT_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def catch_up(self, timeout_s: float = 30.0) -> Self:
        """Wait until all that the log had was taken in.

        Raises:
            TimeoutError: It was not in time.
        """
        if not self._caught_up.wait(timeout_s):
            raise TimeoutError(f"the log of {self.name} did not come within {timeout_s:.0f} s")
        return self

    # -- orders ----------------------------------------------------------------------------------

    def ask(self, request: AnyRequest) -> str:
        """Send a request to the run's owner, and return the answer.

        Raises:
            ConfigError: The owner does not answer, or refuses.
        """
        return self._ask(request)

    def inject(self, failure: Failure) -> str:
        """Inject a failure now; as `Run.inject`."""
        return self._ask(InjectFailure(failure=failure.to_json()))

    def stacks(self, *ranks: int) -> str:
        """Log what the threads of some workers do now, or of all; as `Run.stacks`."""
        return self._ask(TakeStacks(ranks=[*ranks]))

    def _ask(self, request: AnyRequest | InjectFailure | TakeStacks) -> str:
        """Ask the owner; wait for one that is about to come."""
        give_up_s = time.monotonic() + OWNER_S
        while True:
            try:
                return ask_by(self._find(), request)
            except OwnerAwayError:
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(RETRY_S)

    # -- following -------------------------------------------------------------------------------

    async def _follow_owners(self) -> None:
        """Follow one owner after the other, until the run is over."""
        silent_s = time.monotonic()
        while not self.is_over and not self._is_leaving:
            try:
                way = await asyncio.to_thread(self._find)
                channel = await connect(way.address, way.token, ControlHello(), timeout_s=CONNECT_S)
                channel.break_after(SILENT_S)
            except RunGoneError as error:
                self._end_without_owner(str(error))
                return
            except (OSError, EOFError, TimeoutError, GeminiError) as error:
                if time.monotonic() - silent_s > PATIENCE_S:
                    self._end_without_owner(f"nobody tells of it any more: {error}")
                    return
                await asyncio.sleep(RETRY_S)
            else:
                await self._follow_owner(channel)
                silent_s = time.monotonic()

    async def _follow_owner(self, channel: Channel) -> None:
        channel.send(FollowLog(from_bytes=self._read_bytes))
        waiting = asyncio.ensure_future(channel.receive())
        try:
            while not self.is_over and not self._is_leaving:
                done, _ = await asyncio.wait([waiting], timeout=RETRY_S)
                if not done:
                    continue
                match waiting.result():
                    case LogSaid(lines=lines):
                        self._take(lines.encode())
                    case OutputSaid(rank=rank, lines=lines):
                        self.hear(rank, lines)
                    case _:
                        return
                waiting = asyncio.ensure_future(channel.receive())
        finally:
            waiting.cancel()
            channel.close()

    def _take(self, lines: bytes) -> None:
        self._read_bytes += len(lines)
        for line in lines.splitlines():
            if (entry := read_line(line)) is not None:
                self.follow(entry)
        if not lines:
            self._caught_up.set()

    def _end_without_owner(self, reason: str) -> None:
        """Take the end from the log, if it is seen here."""
        if self.folder is not None:
            try:
                while lines := read_lines(self.folder / LOG_FILE, self._read_bytes):
                    self._take(lines)
            except (OSError, GeminiError) as error:
                reason = f"{reason}; its log cannot be read here: {error}"
        if not self.is_over:
            self.follow(said(RunFailed(reason=reason)))
        self._caught_up.set()


@contextmanager
def watched(finder: Finder) -> Iterator[LogFollower]:
    """Follow a run: from its log if this machine sees it, else from its owner.

    Raises:
        TimeoutError: The owner does not answer.
    """
    if finder.folder is not None:
        yield LogFollower.of(finder.name, finder.folder / LOG_FILE)
        return
    run = AttachedRun(finder.name, finder.way)
    seen = LogFollower.of(finder.name)
    run.watch(seen.take)
    with run:
        run.catch_up()
        yield seen


# -- from Python -----------------------------------------------------------------------------------


def attach(
    run: str | Path = LATEST,
    *,
    folder: str | Path = RUNS_FOLDER,
    etcd: str | None = None,
    token_file: str | Path | None = None,
) -> AttachedRun:
    """Follow a run that somebody else owns, and tell it what to do; leaving it leaves it alone.

    Args:
        run: Its folder or name, or `"latest"`; with `etcd`, its lab's name there.
        folder: Where runs keep their folders.
        etcd: `host:port[,host:port...]` of the one that knows it, from machines that do not see its
            folder.
        token_file: Where its token stands; by default `GEMINI_LAB_TOKEN` has it.

    Raises:
        ConfigError: No such run is seen here, it is over, or there is no token.
    """
    secret = None if token_file is None else Path(token_file)
    finder = Finder.of(str(run), below=Path(folder), store=etcd, token_file=secret)
    finder.check()
    return AttachedRun(finder.name, finder.way, finder.folder).start()


def train_detached(
    job: Job,
    *,
    scenario: Scenario | None = None,
    name: str | None = None,
    resume: bool = False,
    settings: Mapping[str, SettingValue] | None = None,
    **lab: Unpack[LabOptions],
) -> AttachedRun:
    """Start nodes and a job that live on without this process, and attach to the run.

    The nodes end with their run. A kernel that ends, or this machine, leaves it alone, so there is
    no lab to hold on to.

    Args:
        job: What to run.
        scenario: Failures to inject on the way.
        name: The run's folder; by default the time and the job's name.
        resume: Go on from what another run left in the persistent tier.
        settings: They replace those in the script's `"gemini"` block.
        lab: As for `Lab`. On several hosts, `etcd` and a `folder` that all of them see.

    Raises:
        ConfigError: Something that was asked for is impossible, or could not outlive this process.
        LaunchError: etcd, MPI or an agent could not be started.
        CapacityError: Agents that were to join did not come in time.
    """
    config = config_of(lab)
    wanted = Submission.checked(
        config, job, scenario=scenario, name=name, resume=resume, settings=settings or {}
    )
    return attach(start_detached(config, wanted))
