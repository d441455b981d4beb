"""The way to a detached run from any machine that reaches its store.

In the run's folder lies a file that its user alone can read: where the store is, and the token.
Without the folder, the store is named and the token comes from a file or the environment. The store
tells where the owner listens at the moment.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from gemini_lab.display import readable
from gemini_lab.errors import GeminiError
from gemini_lab.lab.control import OwnerAddress, OwnerAwayError, RunGoneError, way_in
from gemini_lab.launch.etcd import Authority
from gemini_lab.launch.join import check_name, find_token, prefix_of
from gemini_lab.limits import read_bytes
from gemini_lab.log.file import find_run
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.etcd_client import EtcdStore
from gemini_lab.node.membership import NODES
from gemini_lab.node.sealed_store import SealedStore, unproved
from gemini_lab.node.start_config import LAB_KEY, LabRecord
from gemini_lab.recovery.root_state import RootState
from gemini_lab.seats import in_order

ACCESS_FILE: Final = "access.json"
OWNER_KEY: Final = "owner"
"""In the store: where the owner of a detached lab listens."""
RUN_KEY: Final = "run"
"""In the store: what an owner has to know of its run."""


class Access(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The key to a detached run."""

    name: str  # the lab's name in the store
    etcd: EtcdAddress  # the store
    token: str  # the lab's secret
    # Signs the certificates of the etcd that the run has on its machines.
    authority: Authority | None = None

    def store(self, identity: str = "") -> SealedStore:
        """Return the lab's part of the store; without its identity only the lab's key is read."""
        prefix = prefix_of(self.name)
        return SealedStore(self.etcd, prefix, token=self.token, identity=identity)

    def way(self) -> OwnerAddress:
        """Return the owner's address now.

        Raises:
            RunGoneError: The run is over.
            OwnerAwayError: The run has no owner at this moment.
            StoreUnavailableError: The store does not answer, or has another lab of this name.
        """
        store = self.store()
        try:
            items = store.get([LAB_KEY])
            if LAB_KEY in items:
                store.identity = msgspec.json.decode(items[LAB_KEY], type=LabRecord).identity
                items |= store.get([OWNER_KEY])
        finally:
            store.close()
        if LAB_KEY not in items:
            raise RunGoneError(
                f"no lab {self.name!r} is in the store at {', '.join(self.etcd.endpoints)}; "
                "`gemini-lab list` names those that are"
            )
        if OWNER_KEY not in items:
            raise OwnerAwayError(
                f"the lab {self.name!r} has no owner yet; try again in some seconds"
            )
        return OwnerAddress(address=items[OWNER_KEY], token=self.token)


def access_in(folder: Path) -> Access | None:
    """Return the key to the detached run under way in `folder`; `None` if there is none."""
    try:
        return msgspec.json.decode(read_bytes(folder / ACCESS_FILE), type=Access)
    except OSError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finder:
    """Finds the owner of a run, again and again: it may move."""

    name: str  # the run's, or its lab's where the store is named
    folder: Path | None = None  # the run's, if this machine sees it
    access: Access | None = None  # what opens it, where the store is named

    @classmethod
    def of(cls, run: str, *, below: Path, store: str | None, token_file: Path | None) -> "Finder":
        """Return the finder of a run.

        Args:
            run: Its name, its folder, or `"latest"`.
            below: Where runs keep their folders.
            store: The etcd that knows it; `None`: its folder is seen here, and tells.
            token_file: Where its token stands; `None`: the environment tells.

        Raises:
            ConfigError: No such run is seen here, or there is no token.
        """
        if store is None:
            folder = find_run(run, below=below)
            return cls(name=readable(folder.absolute().name), folder=folder)
        check_name(run)
        etcd = EtcdAddress.parse(store)
        return cls(name=run, access=Access(name=run, etcd=etcd, token=find_token(token_file)))

    @property
    def opens(self) -> Access | None:
        return self.access or (None if self.folder is None else access_in(self.folder))

    def way(self) -> OwnerAddress:
        """Return the owner's address now.

        Raises:
            RunGoneError: The run is over.
            ConfigError: The run has no owner at this moment.
            StoreUnavailableError: The store does not answer.
        """
        if (access := self.opens) is not None:
            return access.way()
        assert self.folder is not None
        return way_in(self.folder)

    def check(self) -> None:
        """Say at once that a run is over; an owner that is away for a moment comes back.

        Raises:
            RunGoneError: The run is over.
        """
        try:
            self.way()
        except RunGoneError:
            raise
        except GeminiError:
            pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedLab:
    """A lab in a store."""

    name: str  # its name
    phase: str  # what its root agent does
    recoveries: int  # so far
    nodes: tuple[str, ...]  # those whose agents live
    wanted: int  # nodes and standbys that it has when nothing is missing
    folder: str  # the run's; empty where the lab is not detached


def labs_in(address: EtcdAddress) -> list[ListedLab]:
    """Return the labs in a store, by name, as they are written there: no token proves them.

    Raises:
        StoreUnavailableError: It does not answer.
    """
    store = EtcdStore(address, "gemini_lab")
    try:
        items = store.items()
    finally:
        store.close()
    labs: dict[str, dict[str, str]] = {}
    for key, value in items.items():
        name, _, rest = key.partition("/")
        labs.setdefault(name, {})[rest] = unproved(value)
    found = []
    for name in sorted(name for name, lab in labs.items() if LAB_KEY in lab):
        with suppress(msgspec.MsgspecError, ValueError):  # somebody else's: it is no lab
            found.append(_listed(name, labs[name]))
    return found


def _listed(name: str, items: dict[str, str]) -> ListedLab:
    lab = msgspec.json.decode(items[LAB_KEY], type=LabRecord)
    state = RootState.from_text(items["state"]) if "state" in items else RootState()
    nodes = [key.removeprefix(NODES) for key in items if key.startswith(NODES)]
    return ListedLab(
        name=name,
        phase=state.phase,
        recoveries=state.story.recoveries,
        nodes=tuple(in_order(nodes)),
        wanted=lab.machines,
        folder="" if lab.detached is None else lab.detached.folder,
    )
