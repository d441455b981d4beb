"""Tells modules of installed packages from all others, which may change from start to start."""

import site
import sys
import sysconfig
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

_PACKAGES: Final = frozenset({"site-packages", "dist-packages"})
"""How a folder of installed packages is called."""


def installed_places() -> tuple[str, ...]:
    """The folders of installed packages, also those of another Python's that are on the path.

    Environment modules of clusters set `PYTHONPATH` to such, and a `.pth` file may name them.
    """
    paths = sysconfig.get_paths()
    places = (paths["purelib"], paths["platlib"], *site.getsitepackages())
    named = (one for one in sys.path if Path(one).name in _PACKAGES)
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
