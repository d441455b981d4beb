"""The one way to packages beside the core: widgets, benches and the course.

They say in the installation's metadata what they offer (entry points of the groups below), so that
the core imports none of them, and a machine without them trains all the same.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, Protocol, TypedDict, Unpack

from gemini_lab.display import tell
from gemini_lab.errors import ConfigError
from gemini_lab.status_line import busy

GROUP: Final = "gemini_lab.pages"
COMMANDS: Final = "gemini_lab.commands"
"""The group of `gemini-lab`'s commands that are outside of the core."""
COURSE: Final = "gemini_lab.course"
"""The group of functions that the labs of the course bring."""
EXTRAS: Final = {
    "serve_log": "dashboard",
    "save_log": "dashboard",
    "serve_command": "dashboard",
    "controls": "notebook",
    "magics": "notebook",
}
"""The extra of this package that installs all that an offer needs, if it needs one."""


class DashboardHandle(Protocol):
    """A page about runs that is served until it is closed; a cell that ends in it shows it."""

    @property
    def url(self) -> str:
        """The page's address, for a browser with a cookie, or to type the password."""

    @property
    def link(self) -> str:
        """The page's address, with the password."""

    @property
    def password(self) -> str:
        """The visitors' password."""

    def close(self) -> None:
        """End the server."""

    def _ipython_display_(self) -> None: ...


class ControlsHandle(Protocol):
    """Buttons below a cell."""

    def close(self) -> None:
        """Take the panel away; the run goes on."""

    def _ipython_display_(self) -> None: ...


class PageSettings(TypedDict, total=False):
    """How a dashboard is served.

    Attributes:
        port: Where to listen; 0 takes a free port.
        address: On which of this machine's addresses; other than loopback only if `public`.
        password: What visitors have to know; `None` makes one.
        visitors: How many may look at once.
        origins: Further `host[:port]`s under which browsers reach the page, such as a proxy's.
        frame_ancestors: Pages that may show this one in a frame, as in the header of that name.
        public: Listen beyond loopback although the page speaks plain HTTP.
        link: Where browsers reach the page, with `{host}`, `{port}` and variables of the
            environment in braces; by default what `$GEMINI_LAB_DASHBOARD_LINK` says, the proxy of
            a JupyterHub, or else the server itself.
    """

    port: int
    address: str
    password: str | None
    visitors: int
    origins: Sequence[str]
    frame_ancestors: str
    public: bool
    link: str | None


def serve_log(
    newest: Callable[[], Path | None], **settings: Unpack[PageSettings]
) -> DashboardHandle:
    """Return a dashboard of the log that `newest` gives, for a notebook on this machine.

    Where it takes seconds to load what draws it, that is said.

    Raises:
        ConfigError: Panel is not installed, or a setting is impossible.
        LaunchError: The port is taken.
    """
    if "panel" not in sys.modules:
        tell("loading what draws the dashboard: some seconds, once")
    dashboard: DashboardHandle = _offered("serve_log")(newest, **settings)
    return dashboard


def save_log(
    log: Path,
    path: str | Path,
    *,
    window: tuple[float, float] | None = None,
    beside: Sequence[Path] = (),
) -> Path:
    """Write a page about the run in `log` to `path`.

    Args:
        log: The run's.
        path: The file to write.
        window: From when to when, in seconds since the run's start, each bar of the timeline is in
            the page; by default the newest ones.
        beside: Logs of the runs to compare with; by default the newest earlier run of the same job.

    Raises:
        ConfigError: Panel is not installed, there is no log, the file cannot be written, or the
            window has too many bars.
    """
    saved: Path = _offered("save_log")(log, Path(path), window=window, beside=beside)
    return saved


def controls_of(target: object, *arguments: object, **settings: object) -> ControlsHandle:
    """Return buttons for `target`, a lab or a run.

    Raises:
        ConfigError: ipywidgets is not installed.
    """
    controls: ControlsHandle = _offered("controls")(target, *arguments, **settings)
    return controls


def load_magics(shell: object) -> None:
    """Give an IPython shell `%gemini` and `%%gemini`.

    Raises:
        ConfigError: What they need is not installed.
    """
    _offered("magics")(shell)


def command(arguments: Sequence[str]) -> int:
    """Run `gemini-lab serve`.

    Raises:
        ConfigError: Panel is not installed, or a setting is impossible.
        LaunchError: The port is taken.
    """
    with busy("loading what draws the page"):
        serve = _offered("serve_command")
    return int(serve(arguments))


def offered_command(name: str) -> Callable[[list[str]], int]:
    """Return the function of a command that is outside of the core.

    Raises:
        ConfigError: The installation does not have it.
    """
    return offered(name, entry_points(group=COMMANDS))


def attack(mine: object, *, stage: str | None = None, within_s: float = 100.0) -> Any:
    """Search for the smallest case that breaks `mine`: a placement, a planner or a root agent.

    See `gemini_lab_course.attacks.attack` for what a function is called with.

    Args:
        mine: The placement or function.
        stage: `"placement"`, `"chunks"`, `"recovery"` or `"root"`, if a function's parameters do
            not say.
        within_s: Stop the search after so many seconds of work.

    Raises:
        ConfigError: The installation does not have the course.
        WrongAnswerError: There is nothing that can be attacked.
    """
    return offered("attack", entry_points(group=COURSE))(mine, stage=stage, within_s=within_s)


Decide = Callable[[dict[str, object], Any, Any], object]
"""A root agent of the user's own; `gemini_lab_course.own_root.deciding` has what it is asked."""


def pack_root(decide: Decide) -> str:
    """Return a root agent of the user's own as text, which a node makes a root agent of.

    Raises:
        ConfigError: It is no function, uses what cannot be sent, or the course is not installed.
    """
    packed: str = offered("pack_root", entry_points(group=COURSE))(decide)
    return packed


def _offered(name: str) -> Callable[..., Any]:
    return offered(name, entry_points(group=GROUP))


def offered(name: str, among: Iterable[EntryPoint]) -> Callable[..., Any]:
    """Return the object called `name` among installed entry points.

    Raises:
        ConfigError: It is not among them, or something that it needs is not installed.
    """
    extra = f"[{EXTRAS[name]}]" if name in EXTRAS else ""
    way_out = f"pip install 'gemini-lab{extra}'"
    found = next((point for point in among if point.name == name), None)
    if found is None:
        raise ConfigError(
            f"no installed package offers {name!r} for gemini_lab; run {way_out}, in a checkout "
            ".ci/set-up, so that the installation says what it has"
        )
    try:
        loaded: Callable[..., Any] = found.load()
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("gemini_lab"):
            raise
        raise ConfigError(
            f"this needs {error.name}, which is not installed here; run {way_out}"
        ) from error
    return loaded
