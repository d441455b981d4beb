"""The script's own code: which files that is, their digests when executed, and whether ranks agree.

A file may be edited while a run trains, and whoever starts afterwards reads other code. So each
file's digest is taken as the file is read to be executed, not later. The warm parent follows its
imports, too: the workers that are forked from it execute what it has imported.

At `protect` each rank tells the others what it executes. The digests lie in the job's rendezvous
store, once for all ranks that execute the same; so thousands of ranks cost hardly more than two.

Installed packages and Python's own files do not count, nor do files that are no source, nor what
torch.compile makes of a model: it writes that into a folder, and imports it from there.
"""

import os
import site
import sys
import sysconfig
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec
import xxhash

from gemini_lab.errors import CannotGoOnError, ConfigError
from gemini_lab.job import Job
from gemini_lab.log.events import AnyEvent, CodeSeen, Note
from gemini_lab.recovery.messages import WorkerStart
from gemini_lab.settings import Settings

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    # A warm parent imports this module, and must serve its agent even if torch cannot be imported.
    from gemini_lab.engine.contract import StateView

MOST_FILES: Final = 1000
"""More are not told of: what tells goes to each worker with the order to start."""
LONGEST_NAME: Final = 200
_OURS: Final = f"{Path(__file__).parents[1]}/"
_PACKAGES: Final = ("/site-packages/", "/dist-packages/")
_PYTHONS: Final = tuple(f"{sysconfig.get_paths()[name]}/" for name in ("stdlib", "platstdlib"))


class ExecutedCode:
    """The code that this process has executed."""

    def __init__(self) -> None:
        # Called with a path and its digest before a file is executed; it may raise.
        self.on_file: Callable[[str, str], None] = lambda *_: None
        self._digests: dict[str, str] = {}

    def note(self, path: str) -> None:
        """Take the digest of a file that is about to be executed, if it may be the script's own."""
        if path.startswith(("<", _OURS, *_PYTHONS)) or any(part in path for part in _PACKAGES):
            return
        try:
            # Right before it is executed: a later reading may be of an edited file.
            digest = xxhash.xxh3_64_hexdigest(Path(path).read_bytes())
        except OSError:  # its loader says so
            return
        self._digests[path] = digest
        self.on_file(path, digest)

    def files(self, is_own: Callable[[str], bool], *, folders: tuple[str, ...]) -> dict[str, str]:
        """Return the digests of the script's own files, by name as seen from `folders`."""
        own = [path for path in sorted(self._digests) if is_own(path)][:MOST_FILES]
        return {name_of(path, folders): self._digests[path] for path in own}

    def follow_imports(self) -> None:
        """Note each source file that is imported from now on."""
        read = SourceFileLoader.get_code

        def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
            self.note(loader.path)
            return read(loader, name)

        # A hook in `sys.meta_path` would not see what other finders load.
        SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def name_of(path: str, folders: tuple[str, ...]) -> str:
    """Return how a file is called on every node: from the script's folder, if it lies there."""
    file = os.path.realpath(path)
    for folder in folders:
        if file.startswith(f"{folder}/"):
            file = file[len(folder) + 1 :]
            break
    return file[-LONGEST_NAME:]


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of files that are known of both, and are not the same; in order."""
    both = before.keys() & now.keys()
    return tuple(sorted(name for name in both if before[name] != now[name]))


process_code: Final = ExecutedCode()
"""That of this process, or of the one that it was forked from."""


_PACKAGE_FOLDERS: Final = frozenset({"site-packages", "dist-packages"})
"""How a folder of installed packages is called."""


def installed_places() -> tuple[str, ...]:
    """Return the folders of installed packages, also another Python's that are on the path.

    Environment modules of clusters set `PYTHONPATH` to such, and a `.pth` file may name them.
    """
    paths = sysconfig.get_paths()
    places = (paths["purelib"], paths["platlib"], *site.getsitepackages())
    named = (one for one in sys.path if Path(one).name in _PACKAGE_FOLDERS)
    resolved = (Path(one).resolve() for one in (*places, site.getusersitepackages(), *named))
    return tuple(dict.fromkeys(f"{one}/" for one in resolved))


def foreign_modules(
    before: Collection[str], modules: Mapping[str, ModuleType | None], places: Sequence[str]
) -> list[str]:
    """Return modules that were imported since, and that are neither installed nor Python's own."""
    known = (*places, f"{Path(sysconfig.get_paths()['stdlib']).resolve()}/")
    return [
        name
        for name, module in modules.items()
        if name not in before and (origin := _origin(name, module)) and not origin.startswith(known)
    ]


def _origin(name: str, module: ModuleType | None) -> str:
    """Return the file that a module was imported from under this name; empty if there is none."""
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None) or ""
    is_file = getattr(spec, "has_location", False) and getattr(spec, "name", None) == name
    return str(Path(origin).resolve()) if is_file else ""


_COMPILED: Final = "TORCHINDUCTOR_CACHE_DIR"


@cache
def is_own_file(name: str) -> bool:
    """Return whether the code of a file is the script's own."""
    if name.startswith(("<", _OURS)):
        return False
    file = str(Path(name).resolve())
    return not file.startswith(_places()) and not _is_compiled(file)


def _is_compiled(file: str) -> bool:
    """Return whether torch.compile wrote it; the variable names its folder once that has begun."""
    folder = os.environ.get(_COMPILED)
    return folder is not None and file.startswith(f"{Path(folder).resolve()}/")


def is_own_type(kind: type) -> bool:
    """Return whether a class is the script's own; no other part keeps what its objects hold."""
    return _is_own_module(kind.__module__) and not issubclass(kind, _kept_otherwise())


def variables_around(function: FunctionType) -> dict[str, object]:
    """Variables of the functions around one, and of its module, of which its code speaks."""
    code = function.__code__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    outer = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    own = (name for name in code.co_names if name in function.__globals__)
    return outer | {name: function.__globals__[name] for name in own if name not in outer}


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - nothing else tells
    except ValueError:
        return False
    return True


@cache
def _kept_otherwise() -> tuple[type, ...]:
    # Agents and new interpreters need this module before they import anything heavy.
    import torch  # noqa: PLC0415

    return (type, Enum, BaseException, torch.optim.Optimizer, torch.Tensor)


@cache
def _is_own_module(name: object) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None) if isinstance(name, str) else None
    return isinstance(file, str) and is_own_file(file)


@cache
def _places() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    python = {f"{Path(paths[name]).resolve()}/" for name in ("stdlib", "platstdlib")}
    return (*installed_places(), *python)


_KEY: Final = "gemini_lab/code"
_LISTED: Final = 4
_MOST_ASKED: Final = 256
"""Of more ranks it is not told which of them differ."""
LOOKS, LOOK_S = 50, 0.1
WAY_OUT: Final = "give every node the same files, and start again"


class CodeReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A report of ranks that execute the same; the first of them makes it."""

    rank: int
    files: dict[str, str]


class SameCode:
    """The comparison of this rank's code with other ranks' and with the run's before."""

    def __init__(
        self, emit: Callable[[AnyEvent], None], executed: ExecutedCode = process_code
    ) -> None:
        self._emit, self._executed = emit, executed
        self._process = os.getpid()
        self._start: WorkerStart
        self._folders: tuple[str, ...] = ()
        self._store: Store
        self._known: dict[str, str] = {}  # of any rank
        self._own: dict[str, str] = {}  # what nobody tells before this rank
        self._stops = False

    def tell(self, start: WorkerStart, store: "Store") -> None:
        """Leave for the other ranks what this one has executed by now; before all meet."""
        self._start, self._store = start, store
        self._folders = _folders(start.order.job)
        ours = self._executed.files(is_own_file, folders=self._folders)
        told = msgspec.json.encode(CodeReport(rank=start.rank, files=ours)).decode()
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
        count = self._store.add(f"{_KEY}/count", 0)
        told_there = (self._store.get(f"{_KEY}/told/{n}") for n in range(1, count + 1))
        all_told = [msgspec.json.decode(data, type=CodeReport) for data in told_there]
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
        """Return digests of what the ranks have executed until now, by name."""
        return self._known

    def begin(self, settings: Settings) -> None:
        """Emit what this run executes, or refuse it if it changed and the user wants that."""
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

    def _say(self, files: Mapping[str, str]) -> None:
        """Say which of these files this run has not executed so before."""
        before = self._start.code
        new = {n: digest for n, digest in sorted(files.items()) if before.get(n) != digest}
        if new:
            self._emit(CodeSeen(files=new, changed=changed(before, new)))

    def _refuse(self, all_told: Sequence[CodeReport], name: str) -> None:
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
        leave_together(self._store, self._start.seats.world_size)
        self._raise(f"{name} is not the same file on all ranks: {', '.join(parts)}")

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
            self._emit(Note(text=f"{text}: no process is kept, and all ranks restart"))
        raise CannotGoOnError(text)

    def _see_late(self, path: str, digest: str) -> None:
        """Compare a file that is imported while this rank trains; called before it is executed."""
        if os.getpid() != self._process or not is_own_file(path):
            return
        name = name_of(path, self._folders)
        try:
            other = self._known.get(name)
            if other is None:  # then that of the first rank which imports it
                other = self._store.compare_set(f"{_KEY}/late/{name}", "", digest).decode()
            is_first = self._store.add(f"{_KEY}/imported/{name}/{digest}", 1) == 1
        except RuntimeError:  # the store went with a rank: this start is over
            return
        if other != digest:
            text = (
                f"rank {self._start.rank} imports {name}, which was edited since another rank, or "
                "this one, imported it"
            )
            self._emit(Note(text=f"{text}: all ranks restart"))
            raise CannotGoOnError(text)
        self._known[name] = digest
        if names := changed(self._start.code, {name: digest}):
            self._stop_at(names)
        if is_first:
            self._say({name: digest})


def leave_together(store: "Store", ranks: int) -> None:
    """Wait until so many ranks know why all end, or for a few seconds.

    The rank that serves the store must not be the first to end: others would fail differently.
    """
    with suppress(RuntimeError):
        if store.add(f"{_KEY}/leaving", 1) == ranks:
            store.set(f"{_KEY}/all_leave", "")
        for _ in range(LOOKS):
            if store.check([f"{_KEY}/all_leave"]):
                return
            time.sleep(LOOK_S)


def _sum(files: Mapping[str, str]) -> str:
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(sorted(files.items())))


def _folders(job: Job) -> tuple[str, ...]:
    cwd = os.path.realpath(job.cwd)
    if job.module:
        return (cwd,)
    return str((Path(cwd) / job.script).resolve().parent), cwd


def say_if_resumed_otherwise(
    meta: "StateView", code: Mapping[str, str], remark: Callable[[str], None]
) -> None:
    """Tell once that a version of another run was made by other code, as a person may want."""
    before = meta.get("code")
    if isinstance(before, dict) and (names := changed(before, code)):
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        remark(
            f"--resume: the version was made by other code: {', '.join(names[:_LISTED])}{more} "
            "changed since"
        )
