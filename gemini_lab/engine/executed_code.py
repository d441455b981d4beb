"""The script's own code that this process has executed, file by file, as digests.

A file may be edited while a run trains, and whoever starts afterwards reads other code. So each
file's digest is taken as the file is read to be executed, not later. The warm parent follows its
imports, too: what it has imported, the workers that are forked from it execute.

Installed packages and what Python brings do not count, nor do files that are no source.
"""

import os
import site
import sys
import sysconfig
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

import xxhash

MOST_FILES: Final = 1000
"""More are not told of: what tells goes to each worker with the order to start."""
LONGEST_NAME: Final = 200
_OURS: Final = f"{Path(__file__).parents[1]}/"
_PACKAGES: Final = ("/site-packages/", "/dist-packages/")
_PYTHONS: Final = tuple(f"{sysconfig.get_paths()[name]}/" for name in ("stdlib", "platstdlib"))


class ExecutedCode:
    """The code that this process has executed.

    Attributes:
        on_file: Called with a path and its digest before a file is executed; it may raise.
    """

    def __init__(self) -> None:
        self.on_file: Callable[[str, str], None] = lambda *_: None
        self._digests: dict[str, str] = {}

    def note(self, path: str) -> None:
        """Take the digest of a file that is about to be executed, if it may be the script's own."""
        if path.startswith(("<", _OURS, *_PYTHONS)) or any(part in path for part in _PACKAGES):
            return
        try:
            digest = xxhash.xxh3_64_hexdigest(Path(path).read_bytes())
        except OSError:  # its loader says so
            return
        self._digests[path] = digest
        self.on_file(path, digest)

    def files(self, is_own: Callable[[str], bool], *, folders: tuple[str, ...]) -> dict[str, str]:
        """Return the digests of the script's own files, by name.

        Args:
            is_own: Whether a path is one of them.
            folders: The script's, and its working folder: names are told from there.
        """
        own = [path for path in sorted(self._digests) if is_own(path)][:MOST_FILES]
        return {name_of(path, folders): self._digests[path] for path in own}

    def follow_imports(self) -> None:
        """Note each source file that is imported from now on."""
        read = SourceFileLoader.get_code

        def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
            self.note(loader.path)
            return read(loader, name)

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
    """The folders of installed packages, also those of another Python's that are on the path.

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
    """Modules that were imported since, and that are neither installed nor Python's own."""
    known = (*places, f"{Path(sysconfig.get_paths()['stdlib']).resolve()}/")
    return [
        name
        for name, module in modules.items()
        if name not in before and (origin := _origin(name, module)) and not origin.startswith(known)
    ]


def _origin(name: str, module: ModuleType | None) -> str:
    """The file that a module was imported from under this name; empty if there is none."""
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None) or ""
    is_file = getattr(spec, "has_location", False) and getattr(spec, "name", None) == name
    return str(Path(origin).resolve()) if is_file else ""
