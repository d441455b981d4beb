"""The way to the pages about a run; what draws them is loaded when one is wanted."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gemini_lab.errors import ConfigError


def serve_log(newest: Callable[[], Path | None], **settings: Any) -> Any:
    """A dashboard of the log that `newest` gives, for a notebook on this machine.

    Raises:
        ConfigError: Panel is not installed.
    """
    serve = _load("gemini_lab_widgets.serve")
    settings.setdefault("frame_ancestors", serve.NOTEBOOKS)
    return serve.Dashboard(newest, **settings)


def save_log(log: Path, path: str | Path) -> Path:
    """Write a page about the run in `log` to `path`.

    Raises:
        ConfigError: Panel is not installed, there is no log, or the file cannot be written.
    """
    saved: Path = _load("gemini_lab_widgets.save").save(log, Path(path))
    return saved


def command(arguments: Sequence[str]) -> int:
    """Run `gemini-lab serve`.

    Raises:
        ConfigError: Panel is not installed, or a setting is impossible.
        LaunchError: The port is taken.
    """
    return int(_load("gemini_lab_widgets.serve").command(arguments))


def _load(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("gemini_lab"):
            raise
        raise ConfigError(
            f"pages need {error.name}, which is not installed here; run "
            "pip install 'gemini-lab[dashboard]'"
        ) from error
