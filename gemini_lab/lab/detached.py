"""The start of a detached run: nodes, a folder and keys in the store live on without it."""

import secrets
from contextlib import ExitStack, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from gemini_lab.errors import ConfigError
from gemini_lab.injector.scenario import Scenario
from gemini_lab.lab.announcement import clear_left, is_own, remove_keys
from gemini_lab.lab.control import write_secret
from gemini_lab.lab.lab_config import LabConfig, LabShape
from gemini_lab.lab.lab_runs import begun, fresh_folder, run_started, said
from gemini_lab.lab.run_locator import ACCESS_FILE, RUN_KEY, Access
from gemini_lab.lab.starting import embedded_etcd, own_operator, record_of
from gemini_lab.lab.submission import Submission
from gemini_lab.launch.etcd import Embedded
from gemini_lab.launch.etcd_members import COUNT, Members
from gemini_lab.launch.join import check_name, prefix_of, say
from gemini_lab.launch.provider import AutoScaling, Slurm
from gemini_lab.log.events import LabStarted
from gemini_lab.log.file import LOG_FILE, EventLog
from gemini_lab.node.control_store import StoreUnavailableError, patiently
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.sealed_store import SealedStore
from gemini_lab.node.start_config import LAB_FILE, LAB_KEY, Detached, LabRecord
from gemini_lab.recovery.messages import JobOrder
from gemini_lab.seats import in_order

OWNER_MODULE: Final = "gemini_lab.lab.owner"


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A detached run in the store, for its owner."""

    lab: LabShape  # the shape of its lab
    provider: Slurm | AutoScaling | None  # starts agents that join
    scenario: dict[str, object]  # failures to inject on the way, as `Scenario.to_json` gives them

    @classmethod
    def of(cls, config: LabConfig, scenario: Scenario) -> "RunRecord":
        assert isinstance(config.provider, Slurm | AutoScaling | None)
        shape = {one.name: getattr(config, one.name) for one in fields(LabShape)}
        return cls(lab=LabShape(**shape), provider=config.provider, scenario=scenario.to_json())

    def config(self, store: SealedStore, token: str, folder: Path) -> LabConfig:
        """Return the lab's description, as its owner on another machine has it."""
        shape = {one.name: getattr(self.lab, one.name) for one in fields(LabShape)}
        return LabConfig(
            **shape, provider=self.provider, etcd=store.address, token=token, folder=folder
        )


def start_detached(config: LabConfig, wanted: Submission) -> Path:
    """Start nodes and hand a run over to them: it lives on without this process.

    What was started is ended again if the rest does not start.

    Returns:
        The run's folder: what opens the run lies there.

    Raises:
        ConfigError: A lab of this name is under way, or the folder's disk is full.
        LaunchError: etcd, MPI or an agent could not be started, or one does not see the folder.
        CapacityError: Agents that were to join did not come in time.
    """
    check_detached(config, wanted)
    token = config.token or secrets.token_hex(16)
    folder = fresh_folder(config.folder / wanted.name)
    detached = Detached(owner=OWNER_MODULE, folder=str(folder), identity=secrets.token_hex(16))
    with begun(folder):
        (folder / LAB_FILE).write_text(detached.identity, encoding="utf-8")
    order = wanted.order(number=1, shared=folder)
    with ExitStack() as undo:
        name = config.join or folder.name
        if config.etcd is None:  # by its name alone an etcd knows whose it is
            name = f"{folder.name}-{secrets.token_hex(3)}"
        started = config.etcd or embedded_etcd(config.hosts, prefix_of(name), undo)
        etcd = started if isinstance(started, EtcdAddress) else started.address
        members = started if isinstance(started, Members) else None
        authority = None if members is None else members.authority
        access = Access(name=name, etcd=etcd, token=token, authority=authority)
        record = record_of(config, detached)
        store = access.store(record.identity)
        undo.callback(store.close)
        patiently(lambda: _claim(store, record), tell=say)
        undo.callback(_end_agents, store)
        operator = own_operator(config, store, record, token=token, members=members)
        undo.callback(operator.clear)
        agents = operator.bring(config.seats.machines)
        with begun(folder):
            _begin_log(config, order, folder, etcd, [agent.name for agent in agents])
            write_secret(folder / ACCESS_FILE, access)
        _submit(store, RunRecord.of(config, wanted.scenario), order)
        if isinstance(started, Embedded):
            started.stay()
        undo.pop_all()
        store.close()
    return folder


def check_detached(config: LabConfig, wanted: Submission) -> None:
    """Refuse what could not live on without this process, or that no store can name.

    Raises:
        ConfigError: It could not.
    """
    check_name(wanted.name)
    if not isinstance(config.provider, Slurm | AutoScaling | None):
        raise ConfigError(
            "a detached run cannot take a provider= of your own along; name one that comes with "
            "gemini_lab, or leave it out and start `gemini-lab node` on new machines yourself"
        )
    machines = set(config.hosts.names)
    if machines and len(machines) < COUNT and config.etcd is None:
        raise ConfigError(
            "a detached run needs an etcd that outlives this machine; name one that all hosts "
            f"reach, etcd= or --etcd, or {COUNT} hosts or more, which have one of their own then"
        )


def _claim(store: SealedStore, record: LabRecord) -> None:
    """Write the lab's key; what an earlier lab of this name left behind goes first."""
    text = msgspec.json.encode(record).decode()
    clear_left(store)
    # It is ours, too, if only the answer was lost.
    if not store.create(LAB_KEY, text) and not is_own(store, text):
        raise ConfigError(
            f"a lab is under way at {store.prefix} in the store; give this run another name, "
            "or end that one with `gemini-lab stop`"
        )


def _end_agents(store: SealedStore) -> None:
    with suppress(StoreUnavailableError):
        remove_keys(store)


def _begin_log(
    config: LabConfig, order: JobOrder, folder: Path, etcd: EtcdAddress, names: list[str]
) -> None:
    log = EventLog(folder / LOG_FILE)
    started = LabStarted(
        nodes=config.nodes,
        standbys=config.standbys,
        root=None,
        names=tuple(in_order(names)),
        etcd=etcd.endpoints,
    )
    log.append(said(started))
    log.append(run_started(order))
    log.settle()
    log.close()


def _submit(store: SealedStore, run: RunRecord, order: JobOrder) -> None:
    for key, value in ((RUN_KEY, run), ("job", order)):
        text = msgspec.json.encode(value).decode()
        patiently(partial(store.put, key, text))


def end_by_force(access: Access) -> None:
    """End a lab without an owner: without its keys, agents that live end.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    store = access.store()
    remove_keys(store)
    store.close()
