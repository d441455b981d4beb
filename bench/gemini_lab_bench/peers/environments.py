"""Which Python runs which peer: this one, one that the user names, or one made for the peer."""

import importlib.util
import platform
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable, Mapping
from pathlib import Path

from gemini_lab.errors import ConfigError, LaunchError
from gemini_lab_bench.peers.catalog import CATALOG


def parse_environments(given: Iterable[str]) -> dict[str, Path]:
    """Return the Pythons in texts like `nvrx=/opt/nvrx/bin/python`, by peer.

    Raises:
        ConfigError: A text names no peer or no file.
    """
    found = {}
    for text in given:
        name, _, path = text.partition("=")
        if name not in CATALOG or not Path(path).is_file():
            raise ConfigError(
                f"cannot use {text!r}: it must be PEER=PYTHON, with one of {', '.join(CATALOG)} "
                "and the path of a Python interpreter that has the peer and torch"
            )
        found[name] = Path(path).absolute()  # not resolved: a link is what makes an environment
    return found


def install(name: str, folder: Path) -> Path:
    """Return the Python of a peer's environment in `folder`, made unless it is there.

    It stands on this Python's packages, so that all peers run on the same torch, and has before
    them what the peer needs in other versions.

    Raises:
        LaunchError: The packages cannot be installed.
    """
    python = folder.absolute() / name / "bin" / "python"
    done = folder / name / "installed"
    if done.exists():
        return python
    venv.create(folder / name, with_pip=False, clear=True)
    paths = {"base": str(folder / name), "platbase": str(folder / name)}
    site = Path(sysconfig.get_path("purelib", vars=paths))
    below = sysconfig.get_path("purelib")
    (site / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    if tag := CATALOG[name].platform:
        wheels = [
            "--platform",
            f"{tag}_{platform.machine()}",
            "--only-binary",
            ":all:",
            "--no-deps",
        ]
        command += [*wheels, "--target", str(site)]
    result = subprocess.run(
        [*command, *CATALOG[name].requirements], capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise LaunchError(
            f"{name} cannot be installed into {folder / name}: {result.stderr[-1000:]}; install it "
            f"by hand and name its Python with --env {name}=PYTHON"
        )
    done.touch()
    return python


def find_python(name: str, named: Mapping[str, Path], folder: Path | None) -> Path:
    """Return the Python for a peer: the one that was named, else one in `folder`, else this one."""
    if name in named:
        return named[name]
    if folder is not None and CATALOG[name].requirements:
        return install(name, folder)
    return Path(sys.executable)


def source_folder() -> Path:
    """Return the package's own folder: what an environment that lacks gemini_lab is given of it."""
    found = importlib.util.find_spec("gemini_lab")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent
