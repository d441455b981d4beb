"""Whether all ranks execute the same code: each tells the others at `protect`, and is told.

What one tells, the files' digests, lies in the job's rendezvous store, once for all ranks that
execute the same; so thousands of ranks cost hardly more than two.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
import xxhash

from gemini_lab.engine.executed_code import ExecutedCode, changed, name_of, process_code
from gemini_lab.engine.own_code import is_own_file
from gemini_lab.errors import CannotGoOnError, ConfigError
from gemini_lab.job import Job
from gemini_lab.log.events import AnyEvent, CodeSeen, Note
from gemini_lab.recovery.messages import WorkerStart
from gemini_lab.settings import Settings

_KEY: Final = "gemini_lab/code"
_LISTED: Final = 4
_MOST_ASKED: Final = 256
"""Of more ranks it is not told which of them differ."""
LOOKS, LOOK_S = 50, 0.1
WAY_OUT: Final = "give every node the same files, and start again"


class Told(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ranks that execute the same tell; the first of them to come tells it.

    Attributes:
        files: Digests, by name.
    """

    rank: int
    files: dict[str, str]


class SameCode:
    """The comparison of this rank's code with other ranks' and with the run's before.

    Args:
        emit: Says an event of this worker.
        executed: What this process executes.
    """

    def __init__(
        self, emit: Callable[[AnyEvent], None], executed: ExecutedCode = process_code
    ) -> None:
        self._emit, self._executed = emit, executed
        self._process = os.getpid()
        self._start: WorkerStart
        self._folders: tuple[str, ...] = ()
        self._store: Any = None
        self._known: dict[str, str] = {}  # of any rank
        self._own: dict[str, str] = {}  # what nobody tells before this rank
        self._stops = False

    def tell(self, start: WorkerStart, store: Any) -> None:
        """Leave for the other ranks what this one has executed by now; before all meet."""
        self._start, self._store = start, store
        self._folders = _folders(start.order.job)
        ours = self._executed.files(is_own_file, folders=self._folders)
        told = msgspec.json.encode(Told(rank=start.rank, files=ours))
        same = _sum(ours)
        store.set(f"{_KEY}/of/{start.rank}", same)
        if store.add(f"{_KEY}/same/{same}", 1) == 1:
            store.set(f"{_KEY}/told/{store.add(f'{_KEY}/count', 1)}", told)

    def compare(self) -> None:
        """Refuse ranks that execute other code than this one; all have told.

        Raises:
            ConfigError: There are such.
            CannotGoOnError: There are, and a start of all ranks may mend it: some were kept.
        """
        all_told = list(self._all_told())
        known: dict[str, str] = {}
        self._own = {}
        for told in all_told:
            if differing := changed(known, told.files):
                self._refuse(all_told, differing[0])
            if told.rank == self._start.rank:
                self._own = {name: told.files[name] for name in told.files.keys() - known.keys()}
            known |= told.files
        self._known = known
        self._executed.on_file = self._see_late

    @property
    def executed(self) -> Mapping[str, str]:
        """Digests of what the ranks have executed by now, by name."""
        return self._known

    def begin(self, settings: Settings) -> None:
        """Say what this run executes, or refuse it if it changed and a person wants that.

        Raises:
            ConfigError: It changed.
        """
        self._stops = settings.on_code_change == "stop"
        if names := changed(self._start.code, self._known):
            self._stop_at(names)
        self._say(self._own)

    def _stop_at(self, names: Sequence[str]) -> None:
        if self._stops:
            raise ConfigError(
                f"{', '.join(names[:_LISTED])} changed since this run started last, and "
                '"on_code_change" is "stop": put the files back as they were, or start another run '
                "with --resume, which goes on from the newest version with the new code"
            )

    def _all_told(self) -> Iterator[Told]:
        for number in range(1, self._store.add(f"{_KEY}/count", 0) + 1):
            yield msgspec.json.decode(self._store.get(f"{_KEY}/told/{number}"), type=Told)

    def _say(self, files: Mapping[str, str]) -> None:
        """Say which of these files this run has not executed so before."""
        before = self._start.code
        new = {n: digest for n, digest in sorted(files.items()) if before.get(n) != digest}
        if new:
            self._emit(CodeSeen(files=new, changed=changed(before, new)))

    def _refuse(self, all_told: Sequence[Told], name: str) -> None:
        digests = {_sum(told.files): told.files.get(name) for told in all_told}
        ranks: dict[str, list[int]] = {}
        for rank in self._start.seats.ranks[:_MOST_ASKED]:
            same = self._store.get(f"{_KEY}/of/{rank}").decode()
            if (digest := digests.get(same)) is not None:
                ranks.setdefault(digest, []).append(rank)
        before = self._start.code.get(name)
        parts = [
            f"{self._seated(there)} {'has' if len(there) == 1 else 'have'} "
            + ("what this run executed before" if digest == before else f"{digest[:8]}...")
            for digest, there in ranks.items()
        ]
        self._leave_together()
        self._raise(f"{name} is not the same file on all ranks: {', '.join(parts)}")

    def _leave_together(self) -> None:
        """Wait until all ranks know as much: with the first that ends, the store may end."""
        with suppress(RuntimeError):
            if self._store.add(f"{_KEY}/leaving", 1) == self._start.seats.world_size:
                self._store.set(f"{_KEY}/all_leave", "")
            for _ in range(LOOKS):
                if self._store.check([f"{_KEY}/all_leave"]):
                    return
                time.sleep(LOOK_S)

    def _seated(self, ranks: Sequence[int]) -> str:
        more = len(ranks) - _LISTED
        seats = self._start.seats
        shown = [f"{rank} on {seats.node_of(rank)}" for rank in ranks[:_LISTED]]
        listed = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
        return f"rank{'s' * (len(ranks) > 1)} {listed}"

    def _raise(self, text: str) -> NoReturn:
        kept = self._start.kept
        if not kept:
            raise ConfigError(f"{text}; ranks with different code never train together; {WAY_OUT}")
        if self._start.rank == min(kept):
            self._emit(Note(text=f"{text}: no process is kept, and all ranks start anew"))
        raise CannotGoOnError(text)

    def _see_late(self, path: str, digest: str) -> None:
        """Compare a file that is imported while this rank trains; called before it is executed."""
        if os.getpid() != self._process or not is_own_file(path):
            return
        name = name_of(path, self._folders)
        try:
            other = self._known.get(name) or self._first_to_import(name, digest)
            is_first = self._store.add(f"{_KEY}/imported/{name}/{digest}", 1) == 1
        except RuntimeError:  # the store went with a rank: this start is over
            return
        if other != digest:
            text = (
                f"rank {self._start.rank} imports {name}, which was edited since another rank, or "
                "this one, imported it"
            )
            self._emit(Note(text=f"{text}: all ranks start anew"))
            raise CannotGoOnError(text)
        self._known[name] = digest
        if names := changed(self._start.code, {name: digest}):
            self._stop_at(names)
        if is_first:
            self._say({name: digest})

    def _first_to_import(self, name: str, digest: str) -> str:
        """Return the digest of the rank that was the first to import a file."""
        found: bytes = self._store.compare_set(f"{_KEY}/late/{name}", "", digest)
        return found.decode()


def _sum(files: Mapping[str, str]) -> str:
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(sorted(files.items())))


def _folders(job: Job) -> tuple[str, ...]:
    """Return the script's folder, and the one in which it works."""
    cwd = os.path.realpath(job.cwd)
    if job.module:
        return (cwd,)
    return str((Path(cwd) / job.script).resolve().parent), cwd


def say_if_resumed_otherwise(
    meta: Mapping[str, Any], code: Mapping[str, str], remark: Callable[[str], None]
) -> None:
    """Tell once that a version of another run was made by other code, as a person may want.

    Args:
        meta: Of the version's manifest.
        code: What this run executes.
        remark: Tells the script's author.
    """
    before = meta.get("code")
    if isinstance(before, dict) and (names := changed(before, code)):
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        remark(
            f"--resume: the version was made by other code: {', '.join(names[:_LISTED])}{more} "
            "changed since"
        )
