"""The description of a lab, checked before anything starts."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict

from gemini_lab.errors import ConfigError, kind_of
from gemini_lab.launch.join import NO_TOKEN, WAIT_S, check_name, find_token
from gemini_lab.launch.mpi import Hosts
from gemini_lab.launch.provider import Provider, parse_provider
from gemini_lab.limits import require_text
from gemini_lab.log.file import RUNS_FOLDER
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.seats import Seats, node_name
from gemini_lab.units import check_number

LONGEST_NAME: Final = 100
"""Characters of a rack's name."""


@dataclass(frozen=True, kw_only=True)
class LabShape:
    """The part of a lab's description that is the same on every machine."""

    nodes: int = 4  # machines that train
    standbys: int = 1  # machines that wait to take a lost one's place
    workers_per_node: int = 1  # training processes on each
    hosts: Hosts = field(default_factory=Hosts)  # machines to start on; none: this one
    lease_s: float = 2.0  # A node that gives no sign of life for this long counts as lost
    warm: bool = True  # fork workers from a parent that has imported everything
    # The lab's name in the store, for agents that a user or a provider starts; `None`: `mpiexec`
    # starts them.
    join: str | None = None
    wait_s: float = WAIT_S  # how long the lab waits for agents that join


@dataclass(frozen=True, kw_only=True)
class LabConfig(LabShape):
    """The one description of a lab: its shape, and what the process that starts it knows.

    Raises:
        ConfigError: A number is impossible, or there are fewer hosts than nodes.
    """

    etcd: EtcdAddress | None = None  # A running etcd; `None`: the lab starts one
    folder: Path = RUNS_FOLDER  # where runs keep their logs
    # The rack of each node, standbys included; `None`: unknown.
    racks: tuple[str, ...] | None = None
    provider: Provider | None = None  # starts agents that join; `None`: a user does
    # The secret of agents that join; empty: `GEMINI_LAB_TOKEN` has it.
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        machines = self.seats.machines  # impossible seats are refused where they are made
        if self.racks is not None and len(self.racks) != machines:
            raise ConfigError(
                f"racks must name one rack for each of {self.nodes} nodes and {self.standbys} "
                f"standbys (got {len(self.racks)} names)"
            )
        if self.join is not None:
            self._check_join()
        elif self.provider is not None:
            raise ConfigError(
                "the provider's machines join a lab by its name, and it has none; give it one: "
                "join= or --join"
            )
        check_number("lease_s", self.lease_s, least=2)  # etcd's shortest
        check_number("wait_s", self.wait_s)
        if self.hosts.names and len(self.hosts.names) < machines:
            raise ConfigError(
                f"{machines} nodes and standbys were asked for, but there are only "
                f"{len(self.hosts.names)} hosts; name more, or ask for fewer (a host takes one "
                "node, whatever its slots; name it twice for two)"
            )
        if crowded := self.hosts.without_room(self.workers_per_node):
            raise ConfigError(
                f"{self.workers_per_node} workers a node do not fit the slots of "
                f"{', '.join(crowded)}; lower workers_per_node, or raise their slots"
            )

    def _check_join(self) -> None:
        check_name(self.join or "")
        if self.etcd is None:
            raise ConfigError(
                f"agents are to join {self.join!r}, but in which store? name the etcd that they "
                "reach, too: etcd= or --etcd"
            )
        if self.hosts.names:
            raise ConfigError("agents join by themselves, or hosts are named for them: not both")
        if not self.token:
            raise ConfigError(NO_TOKEN)

    @property
    def seats(self) -> Seats:
        """Nodes, standbys, workers and racks as one value, before a node has a position."""
        names = (node_name(number) for number in itertools.count())
        return Seats(
            nodes=self.nodes,
            standbys=self.standbys,
            workers_per_node=self.workers_per_node,
            rack_of=dict(zip(names, self.racks or (), strict=False)),
        )


class NodeOptions(TypedDict, total=False):
    """Options of a lab beside its numbers of nodes and standbys; `Lab` documents them."""

    workers_per_node: int
    hosts: Sequence[str] | str | Path | None
    etcd: str | None
    folder: str | Path
    lease_s: float
    warm: bool
    racks: Sequence[str] | None
    join: str | None
    provider: Provider | str | None
    token: str | None
    wait_s: float


class LabOptions(NodeOptions, total=False):
    """All options of a lab."""

    nodes: int
    standbys: int


def config_of(options: LabOptions) -> LabConfig:
    """Return the description of a lab that these options mean.

    Raises:
        ConfigError: A number is impossible, a name is none, or there are fewer hosts than nodes.
    """
    said: dict[str, Any] = {"folder": RUNS_FOLDER, **options}
    for name, option in _OPTIONS.items():
        if said.get(name) is not None and not isinstance(said[name], option.kinds or object):
            raise ConfigError(f"{name}= is {kind_of(said[name])}; give {option.words}")
        if option.kinds and isinstance(said.get(name), str | Path):
            require_text(name, str(said[name]))
    for name, option in _OPTIONS.items():
        if said.get(name) is not None:
            said[name] = option.read(said[name])
        else:
            said.pop(name, None)
    if "join" in said and "token" not in said:
        said["token"] = find_token(None)
    return LabConfig(**said)


def hosts_from(hosts: Sequence[str] | str | Path | None) -> Hosts:
    """Return the machines of `Lab(hosts=...)`: names, an MPI hostfile's path, or this one.

    Raises:
        ConfigError: The hostfile cannot be read, there is no name, or one is none.
    """
    if hosts is None:
        return Hosts()
    if isinstance(hosts, (str, Path)):
        return Hosts.from_file(hosts)
    if others := [host for host in hosts if not isinstance(host, str)]:
        raise ConfigError(f"hosts= names {others[0]!r}, which is {kind_of(others[0])}; give names")
    return Hosts.read(hosts)


def _folder(said: str | Path) -> Path:
    folder = Path(said).absolute()
    require_text("folder=", str(folder))
    return folder


def _rack(name: object) -> str:
    require_text("a rack's name", str(name), most=LONGEST_NAME)
    return str(name)


class _Option(NamedTuple):
    """An option that is no number, as a user gives it; `None` is as good as none."""

    kinds: tuple[type, ...] = ()  # what it may be; none: it is not looked at
    words: str = ""  # what an error tells the user to give
    read: Callable[[Any], object] = lambda said: said


_OPTIONS: Final[Mapping[str, _Option]] = {
    "hosts": _Option((str, Path, Sequence), "names of hosts, or a hostfile's path", hosts_from),
    "etcd": _Option((str,), "host:port[,host:port...] as text", EtcdAddress.parse),
    "folder": _Option((str, Path), "a path", _folder),
    "provider": _Option(read=lambda said: parse_provider(said) if isinstance(said, str) else said),
    "racks": _Option((Sequence,), "the rack of each node, in a list", lambda r: (*map(_rack, r),)),
    "join": _Option((str,), "a name"),
    "token": _Option((str,), "text", str),
}
