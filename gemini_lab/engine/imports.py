"""What a script imports, as warm parents can do it before the next start.

Only modules from the places where packages are installed count: the script's own files may change
from start to start. They are imported ahead with the environment that the script had by then.
"""

import site
import sys
import sysconfig
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

from gemini_lab.limits import MOST_CHARACTERS
from gemini_lab.log.hiding import names_a_secret

WORTH_IT: Final = 400
"""Fewer modules take less time than another warm parent takes to start, and less memory."""
_PACKAGES: Final = frozenset({"site-packages", "dist-packages"})
"""How a folder of installed packages is called."""
_OF_A_RANK: Final = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
    "TORCHELASTIC_",
)


def installed_places() -> tuple[str, ...]:
    """The folders of installed packages, also those of another Python's that are on the path.

    Environment modules of clusters set `PYTHONPATH` to such, and a `.pth` file may name them.
    """
    paths = sysconfig.get_paths()
    places = (paths["purelib"], paths["platlib"], *site.getsitepackages())
    named = (one for one in sys.path if Path(one).name in _PACKAGES)
    resolved = (Path(one).resolve() for one in (*places, site.getusersitepackages(), *named))
    return tuple(dict.fromkeys(f"{one}/" for one in resolved))


def learned_modules(
    before: Collection[str], modules: Mapping[str, ModuleType | None], places: Sequence[str]
) -> list[str]:
    """Installed modules that were imported since, in their order; none if they are few.

    Args:
        before: Names of those that were there.
        modules: As `sys.modules`.
        places: Folders of installed packages.
    """
    found = [
        name
        for name, module in [*modules.items()]  # other threads import, too
        if name not in before and _origin(name, module).startswith(tuple(places))
    ]
    return found if len(found) >= WORTH_IT else []


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


def changed_environment(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Variables that were set since, but for a rank's own, for secrets, and for very long ones."""
    return {
        name: value
        for name, value in now.items()
        if before.get(name) != value
        and len(value) <= MOST_CHARACTERS
        and not name.startswith(_OF_A_RANK)
        and not names_a_secret(name)
    }


def _origin(name: str, module: ModuleType | None) -> str:
    """The file that a module was imported from under this name; empty if there is none."""
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None) or ""
    is_file = getattr(spec, "has_location", False) and getattr(spec, "name", None) == name
    return str(Path(origin).resolve()) if is_file else ""


class Imports:
    """What there was when a worker began, to tell what its script imports.

    Args:
        environment: The variables, as they are.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._modules = frozenset(sys.modules)
        self._environment = dict(environment)

    def learned(self, environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
        """Modules to import ahead, and the variables to do so with."""
        modules = learned_modules(self._modules, sys.modules, installed_places())
        return modules, changed_environment(self._environment, environment) if modules else {}
