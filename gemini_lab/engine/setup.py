"""The set-up of an engine's protection: memory for its versions, and the state to train from.

All ranks come here together. A worker that starts again after a failure leaves with the state that
the recovery plan says, and with what its version carried beside that.
"""

import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Final, TypeVar

import msgspec
import torch

from gemini_lab.engine.contract import Engine, Keepable, Source
from gemini_lab.engine.discovery import gather
from gemini_lab.engine.frameworks.framework import Framework
from gemini_lab.engine.frameworks.torch_engine import TorchEngine, left_out
from gemini_lab.engine.iteration_log import iteration_in
from gemini_lab.engine.own_code import say_if_resumed_otherwise
from gemini_lab.engine.rank_agreement import (
    JointOutcome,
    jointly,
    rank_and_world_size,
    word_of,
)
from gemini_lab.engine.reshard_sources import OldSlabs, UnusableCopyError
from gemini_lab.engine.restore import (
    Recast,
    RestoreContext,
    RestoreReceipt,
    restore,
)
from gemini_lab.engine.rewinding import Rewinder, guard_in
from gemini_lab.engine.session import WorkerSession
from gemini_lab.engine.state.data_rehearsal import rehearse_data
from gemini_lab.engine.state.engine_state import EngineState
from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.log import events
from gemini_lab.memory.slab import Slab
from gemini_lab.placement import Risk
from gemini_lab.recovery.guard import Guard
from gemini_lab.recovery.messages import JobOrder, SlabRequest, SlotWanted
from gemini_lab.seats import Seats, listed
from gemini_lab.settings import LOGGED_RANKS, SCHEDULED, Settings
from gemini_lab.shard.layout import ShardLayout, fingerprint_of
from gemini_lab.shard.lineage import Lineage
from gemini_lab.storage import absolute_url, persistent_tier
from gemini_lab.transfer.device_queues import pin_on
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.replicator import Replicator

_RISK_KEY: Final = "gemini_lab/risk"
"""In the job's store: what rank 0 was told of the machines."""


def read_settings(framework: Framework, order: JobOrder, remark: Callable[[str], None]) -> Settings:
    """Return the job's settings: the lab's defaults, the script's own, what the launcher was told.

    What comes later replaces what comes before. Where nobody sees training's collectives, versions
    leave at once, and the settings say so. Whether the log has them is settled by the job's size
    where nobody has said it.

    Raises:
        ConfigError: A setting is unknown or impossible, or emulates a link where nobody can.
    """
    settings = Settings.layered(order.defaults, framework.settings(), order.settings)
    if (url := settings.persistent_url) is not None:  # the script may be in another folder by now
        settings = replace(settings, persistent_url=absolute_url(url, cwd=order.job.cwd))
    for name in ("risk_from", "preload"):
        if name in framework.settings() and name not in order.settings:
            remark(
                f"{name} is read by the launcher, which does not see the script's configuration, "
                f"so it does nothing there. Give it to the launcher: --set {name}=..."
            )
    if settings.keep_gradients and framework.settings().get("keep_gradients") is not True:
        raise ConfigError(
            "keep_gradients changes what a version is made of, which is settled before launchers "
            'are heard; set it in the "gemini" block of the script\'s DeepSpeed configuration'
        )
    if settings.log_collectives is None:
        settings = replace(settings, log_collectives=order.seats.world_size <= LOGGED_RANKS)
    _require_uniform(framework, settings)
    if framework.uneven and settings.scheme in SCHEDULED:
        remark(
            f"the scheme {settings.scheme!r} needs one sequence of collectives on all ranks, and "
            f'{framework.uneven}; versions leave at once: the scheme is "background"'
        )
        settings = replace(settings, scheme="background")
    if isinstance(framework.engine, TorchEngine):
        if settings.link_bytes_per_s is not None:
            raise ConfigError(
                "link_bytes_per_s paces training's collectives, and those of plain PyTorch are not "
                "seen; leave it out, or train with DeepSpeed"
            )
        if settings.scheme in SCHEDULED:
            remark(
                f"the scheme {settings.scheme!r} needs to see training's collectives, which it "
                'does under DeepSpeed alone; versions leave at once: the scheme is "background"'
            )
            settings = replace(settings, scheme="background")
        settings = replace(settings, log_collectives=False)
    return settings


def agreed_settings(
    framework: Framework, order: JobOrder, remark: Callable[[str], None]
) -> Settings:
    """Return what `read_settings` gives, the same on all ranks, which call it together.

    Raises:
        ConfigError: It cannot work, or scripts say other things on other ranks.
    """
    names, verdict = [field.name for field in fields(Settings)], JointOutcome()
    words = [0] * len(names)
    with verdict.withheld():
        settings = read_settings(framework, order, remark)
        words = [word_of(getattr(settings, name)) for name in names]
    told = verdict.agree(*words)
    for rank, theirs in enumerate(told):
        differing = [
            n for n, one, other in zip(names, told[0], theirs, strict=True) if one != other
        ]
        if differing:
            raise ConfigError(
                f"the settings of rank {rank} are not rank 0's: {listed(differing)}; have the "
                "script give the same ones on each rank"
            )
    return settings


def _require_uniform(framework: Framework, settings: Settings) -> None:
    """Refuse, on all ranks, settings by which ranks compute for one another if none could."""
    asked = {
        "verify_every": settings.verify_every is not None,
        '"replicate": "gradients"': settings.replicate == "gradients",
    }
    reason = framework.uneven or framework.unrepeatable
    for name, is_on in asked.items():
        if is_on and reason:
            raise ConfigError(
                f"{name} has one rank compute again what another one computed, and in this job "
                f"none could: {reason}; leave it out"
            )


Value = TypeVar("Value")
_LONG_REPLAY_S: Final = 1.0
_WORD: Final = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyEngine:
    """An engine with all that its protection needs."""

    engine: Engine
    state: EngineState  # what a version has of it
    settings: Settings
    shard_bytes: Sequence[int]  # payload bytes of every rank's shard
    place: RestoreContext  # this rank's memory, and where that is in the job
    # What the version carried beside the engine's state; empty if there was none.
    small: Mapping[str, object]

    def rehearse(self) -> None:
        """Try what a recovery does, in the room of the next version; all ranks together."""
        if self.settings.scheme != "none":
            place, version = self.place, self.state.version
            self.state.rehearse(place.slab.begin(place.rank, version, place.lineage).data.data)


def ready_engine(
    session: WorkerSession,
    engine: Engine,
    *,
    data: Source | Sequence[Source] | None,
    client_state: dict[str, Value] | None,
    also: Mapping[str, Keepable] | None,
    remark: Callable[[str], None],
) -> ReadyEngine:
    """Lay out memory for a worker's engine, and load what the plan says."""
    start = session.start
    _require_all_ranks(start.seats.world_size)
    session.meet()
    with jointly():
        script = gather(engine, data=data, client_state=client_state, also=also, remark=remark)
        if isinstance(engine, TorchEngine):
            for text in left_out(engine, (also or {}).values()):
                remark(text)
    state = EngineState(engine, script=script)
    settings = agreed_settings(state.framework, start.order, remark)
    if start.joins:
        start = session.stand_by()
        session.meet()
    session.code.begin(settings)
    with jointly():
        if settings.reads_ahead:
            script.read_ahead()
    is_first = start.fingerprint is None  # of the run: nobody has called this before
    with jointly():  # at each start: a rank that starts later plays the others' collectives
        has_nothing = is_first or start.plan.version is None
        if has_nothing and start.rank == 0 and settings.persistent_url is not None:
            # The tier becomes this run's before the run has anything to lose there.
            tier = persistent_tier(settings.persistent_url)
            tier.check()
            tier.claim(start.order.run, is_resumed=start.order.is_resumed)
    if start.rank == 0 and is_first and start.order.is_resumed:
        _say_if_nothing_is_resumed(settings.persistent_url, remark)
    # After `meet`: a rank that is missing would hold the others in Gloo's own rendezvous.
    group = CheckpointGroup(session.store, rank=start.rank, world_size=start.seats.world_size)
    seats = _placed(session, state, settings, group)
    slab, shard_bytes = _lay_out(session, state, seats, settings, group)
    pin_on(state.framework.device, slab.memory)  # before a version is read from it
    if is_first and start.order.resumes_elsewhere(settings):
        session.wait_for_fence()
    place = RestoreContext(
        rank=start.rank,
        seats=seats,
        slab=slab,
        group=group,
        persistent_url=settings.persistent_url,
        lineage=Lineage(run=start.order.run, epoch=start.epoch),
        layout=state.layout,
        recast=_recast(state, settings, remark, is_under_way=not is_first),
        old_slabs=lambda ranks: _old_slabs(session, ranks),
        say=lambda text: session.emit(events.Note(text=text)),
    )
    with session.restoring():
        small = restore_planned(session, state.load, state, place)
        ready = ReadyEngine(
            engine=engine,
            state=state,
            settings=settings,
            shard_bytes=shard_bytes,
            place=place,
            small=small,
        )
        if start.plan.version is None:
            ready.rehearse()
            with jointly():
                for text in rehearse_data(script):
                    remark(text)
    if start.rank == 0 and start.order.is_resumed:
        _say_if_made_otherwise(session, settings.persistent_url, remark)
    return ready


def _require_all_ranks(workers: int) -> None:
    """Refuse workers that do not know of one another."""
    _, world_size = rank_and_world_size()
    if world_size != workers:
        raise ConfigError(
            f"this job has {workers} workers, but torch.distributed knows of {world_size}; call "
            "torch.distributed.init_process_group() before `protect`, or start one worker: "
            "gemini-lab run --nodes 1 --replicas 1"
        )


def _placed(
    session: WorkerSession, state: EngineState, settings: Settings, group: CheckpointGroup
) -> Seats:
    """Return the seats with a placement, which counts the bytes of each node's shards."""
    seats = session.start.seats
    if seats.placement is not None:
        return seats.placed(settings)
    sizes = [size for (size,) in group.all_gather([state.layout.payload_bytes])]
    per_node = seats.workers_per_node
    node_bytes = [sum(sizes[n : n + per_node]) for n in range(0, len(sizes), per_node)]
    if settings.adapt_replicas:
        # All ranks plan with the machines' risk that the root agent has told to rank 0.
        if session.start.rank == 0:
            session.store.set(_RISK_KEY, msgspec.json.encode(seats.risk).decode())
        risk = msgspec.json.decode(session.store.get(_RISK_KEY), type=Risk)
        seats = replace(seats, risk=risk)
    return seats.placed(settings, shard_bytes=max(sizes), node_bytes=node_bytes)


def _say_if_nothing_is_resumed(url: str | None, remark: Callable[[str], None]) -> None:
    """Say that training begins at its start although it was to go on: the place may be a wrong one.

    It is no error: a job that goes on from what there is may be given `--resume` the first time.
    """
    if url is not None and persistent_tier(url).versions():
        return
    there = "there is no persistent tier" if url is None else f"{url} has no version"
    remark(
        f"--resume: {there} to go on from, so training begins at its start; if an earlier run "
        "saved one elsewhere, end this run and name that place as the persistent tier"
    )


def _say_if_made_otherwise(
    session: WorkerSession, url: str | None, remark: Callable[[str], None]
) -> None:
    """Say that another run's version, with which this one begins, was made by other code."""
    plan, order = session.start.plan, session.start.order
    if url is None or plan.version is None or plan.tier != "persistent":
        return
    if plan.lineage.run == order.run:
        return
    with suppress(GeminiError):  # it was read just now
        meta = persistent_tier(url).manifest(plan.version)["meta"]
        say_if_resumed_otherwise(meta, session.code.executed, remark)


def _lay_out(
    session: WorkerSession,
    state: EngineState,
    seats: Seats,
    settings: Settings,
    group: CheckpointGroup,
) -> tuple[Slab, Sequence[int]]:
    """Return memory for the engine's state, which is then said to be protected, and all sizes."""
    layout, rank = state.layout, session.start.rank
    met = exchange_layouts(layout, rank=rank, seats=seats, group=group)
    fd = session.request_slab(
        SlabRequest(
            slots=[SlotWanted(one, met.shard_bytes[one]) for one in seats.kept_shards(rank)],
            chunk_bytes=settings.chunk_bytes,
            buffers=settings.buffers,
            layout=layout,
            replicas=met.replicas,
        )
    )
    require_fingerprint(met.fingerprint, session.start.fingerprint)
    say_protected(session, state, met.fingerprint, seats, settings)
    return Slab.attach(fd), met.shard_bytes


def say_protected(
    session: WorkerSession,
    state: EngineState,
    fingerprint: str,
    seats: Seats,
    settings: Settings,
) -> None:
    """Emit what of this rank is protected, and how."""
    session.emit(
        events.Protected(
            shard_bytes=state.layout.payload_bytes,
            place=state.framework.place[: events.LONGEST_PLACE],
            fingerprint=fingerprint,
            settings=settings,
            placement=seats.holders,
            model_parallel_size=state.layout.model_parallel_size,
        )
    )


def restore_planned(
    session: WorkerSession,
    load: Callable[[memoryview], Mapping[str, object]],
    state: EngineState,
    place: RestoreContext,
) -> Mapping[str, object]:
    """Do what the recovery plan asks of this rank; return what the version carried beside."""
    plan = session.start.plan
    try:
        restored = restore(plan, place, load)
    except UnusableCopyError as error:
        session.restore_failed(error)
        raise  # this worker ends: the root agent plans without that copy
    if restored is None or plan.version is None:
        return {}
    receipt, small = restored
    newest = iteration_in(small)
    if newest is not None:
        session.emit(msgspec.structs.replace(newest, restored=True))
    for event in _told(receipt, place, plan.version):
        session.emit(event)
    for watch in state.script.watches:
        if watch.replay_s > _LONG_REPLAY_S and place.rank == 0:
            text = (
                f"{watch.replayed} batches were loaded again in {watch.replay_s:.1f} s to find the "
                "position in an epoch; torchdata's StatefulDataLoader does it faster"
            )
            session.emit(events.Note(text=text))
    return small


def _old_slabs(session: WorkerSession, ranks: int) -> OldSlabs:
    fds, layouts = session.request_old_slabs(ranks)
    try:
        return [Slab.attach(fd) for fd in fds], layouts
    finally:
        for fd in fds:
            # `attach` maps the memory, which the descriptor is not needed for any more.
            os.close(fd)


def _recast(
    state: EngineState, settings: Settings, remark: Callable[[str], None], *, is_under_way: bool
) -> Recast:
    """Return what takes over the small state of another number of ranks.

    In a run that is under way the global batch has to stay what it was; whoever starts one with
    another number sees to that.
    """
    keep_batch = is_under_way and settings.batch_on_resize == "keep"

    def recast(layouts: Sequence[ShardLayout], smalls: Sequence[bytes]) -> bytes:
        may_restart = settings.data_on_resize == "restart"
        small, told = state.recast(layouts, smalls, may_restart=may_restart, keep_batch=keep_batch)
        for text in told:
            remark(text)
        return small

    return recast


def _told(
    receipt: RestoreReceipt, place: RestoreContext, version: int
) -> Iterator[events.AnyEvent]:
    yield events.ShardRestored(
        shard=place.rank,
        version=version,
        tier=receipt.tier,
        holder=receipt.holder,
        size_bytes=receipt.size_bytes,
        verified=True,
        retrieve_s=receipt.retrieve_s,
        verify_s=receipt.verify_s,
        load_s=receipt.load_s,
    )
    if receipt.ranks_then is not None:
        yield events.ShardRecut(
            shard=place.rank,
            version=version,
            ranks_then=receipt.ranks_then,
            ranks=place.seats.world_size,
            read_bytes=receipt.read_bytes,
            local_bytes=receipt.local_bytes,
            peer_bytes=receipt.peer_bytes,
        )


def follow(session: WorkerSession, ready: ReadyEngine, replicator: Replicator) -> None:
    """Show this replicator to the heartbeat; it need not send the restored version."""
    if session.start.plan.tier == "memory":
        replicator.note_whole(ready.state.version)
    session.pulse.watch(
        calls=lambda: replicator.collectives, messages=lambda: ready.place.group.messages
    )


def rewinder_of(
    session: WorkerSession, ready: ReadyEngine, replicator: Replicator
) -> Rewinder | None:
    """Return what takes iterations back, and judges them if the settings ask for it."""
    settings = ready.settings
    if settings.scheme == "none":
        return None
    guard = Guard.of(settings)
    if guard is not None and (known := guard_in(ready.small)) is not None:
        guard.restore(known)
    return Rewinder(ready.state, ready.place.slab, replicator, guard=guard, emit=session.emit)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLayout:
    """The shards of all ranks, as far as one rank has to know them."""

    shard_bytes: tuple[int, ...]  # payload bytes of each
    fingerprint: str  # of the job: ranks may hold different tensors
    replicas: list[ShardLayout]  # layouts of the shards that this rank keeps for others


def exchange_layouts(
    layout: ShardLayout, *, rank: int, seats: Seats, group: CheckpointGroup
) -> JobLayout:
    """Return what this rank has to know of all shards.

    All ranks call it together, also those that have their memory already.
    """
    # A layout repeats the names of all tensors, so that it becomes much smaller.
    told = zlib.compress(json.dumps(layout.to_json()).encode())
    high, low = divmod(layout.fingerprint, _WORD)
    # Ranks gather signed words.
    words = [word - _WORD if word >= _WORD // 2 else word for word in (high, low)]
    known = group.all_gather([layout.payload_bytes, len(told), *words])
    told_bytes = [size for _, size, *_ in known]
    prints = [(high % _WORD) * _WORD + low % _WORD for *_, high, low in known]
    return JobLayout(
        shard_bytes=tuple(payload_bytes for payload_bytes, *_ in known),
        fingerprint=fingerprint_of(prints),
        replicas=[*_exchange(told, told_bytes, rank=rank, seats=seats, group=group)],
    )


def _exchange(
    told: bytes, sizes_bytes: Sequence[int], *, rank: int, seats: Seats, group: CheckpointGroup
) -> Iterator[ShardLayout]:
    """Yield the layouts of the other shards that are kept here; send the own one to its peers."""
    own = torch.frombuffer(bytearray(told), dtype=torch.uint8)
    sends = [group.isend(own, peer) for peer in seats.peers_that_keep(rank)]
    for shard in seats.kept_shards(rank)[1:]:
        received = torch.empty(sizes_bytes[shard], dtype=torch.uint8)
        group.recv(received, shard)
        values = json.loads(zlib.decompress(received.numpy().tobytes()))
        yield ShardLayout.from_json(values)
    for send in sends:
        send.wait()


def require_fingerprint(found: str, saved: str | None) -> None:
    """Refuse a job that is not that of the saved version, if its fingerprint is known."""
    if saved and saved != found:
        raise ConfigError(
            "the model, its optimizer or the number of ranks is not that of the saved version, on "
            f"this rank or another one (fingerprint {found[:12]}, saved {saved[:12]}); restart "
            "with the script as it was, or start a new run"
        )
