"""`protect`: the one call that keeps a job's every iteration in CPU memory.

The parts are made elsewhere, and tied together here: the engine's state (`engine_state`, with one
view a `framework`), memory for it (`shard_memory`), what is put back after a failure (`restore`),
the traffic of versions (`transfer.traffic`), and the hook in the engine (`live`).
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
import torch
from torch import nn

from gemini_lab.engine import session as sessions
from gemini_lab.engine.arguments import as_engine, require_parts, with_schedule
from gemini_lab.engine.carried import epoch_in, guard_in, newest_in
from gemini_lab.engine.contract import Engine, Keepable, Protected, Source, Stateful, ZeroEngine
from gemini_lab.engine.engine_state import EngineState
from gemini_lab.engine.flaws import Flaws
from gemini_lab.engine.inputs import gradient_norm, watch_inputs
from gemini_lab.engine.iterations import IterationLog
from gemini_lab.engine.job_settings import read_settings
from gemini_lab.engine.live import LiveProtection
from gemini_lab.engine.monitor import with_monitor
from gemini_lab.engine.old_shards import OldSlabs
from gemini_lab.engine.ranks import rank_and_world_size
from gemini_lab.engine.restore import Place, Recast, Receipt, UnusableCopyError, restore
from gemini_lab.engine.rewinding import Rewinder, encode_order
from gemini_lab.engine.sent_differences import SentDifferences, recorder_of
from gemini_lab.engine.session import WorkerSession
from gemini_lab.engine.shard_memory import ShardMemory, open_shard_memory, require_fingerprint
from gemini_lab.engine.surroundings import gather
from gemini_lab.engine.torch_engine import TorchEngine, left_out
from gemini_lab.engine.unprotected import Unprotected
from gemini_lab.engine.update_recorder import UpdateRecorder
from gemini_lab.engine.verification import Verification, Verified, verified_in
from gemini_lab.engine.verifying import Verifier
from gemini_lab.errors import ConfigError
from gemini_lab.log import events
from gemini_lab.memory.slab import Slab
from gemini_lab.recovery.guard import Guard
from gemini_lab.recovery.messages import JobOrder, WorkerStart
from gemini_lab.recovery.planning import resumes_elsewhere
from gemini_lab.seats import Seats
from gemini_lab.settings import Settings, SettingValue
from gemini_lab.shard.layout import ShardLayout
from gemini_lab.shard.lineage import Lineage
from gemini_lab.storage import persistent_tier
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.link import LinkBucket
from gemini_lab.transfer.node_link import node_link
from gemini_lab.transfer.traffic import CheckpointTraffic, Emit, open_traffic
from gemini_lab.transfer.version import Peers

Value = TypeVar("Value")
NOT_IN_A_LAB: Final = (
    "this script was not started by `gemini-lab run`, so its checkpoints are not protected"
)
_LONG_REPLAY_S: Final = 1.0


def protect(
    engine: ZeroEngine | TorchEngine | None = None,
    *,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: Stateful | None = None,
    data: Source | Sequence[Source] | None = None,
    client_state: dict[str, Value] | None = None,
    also: Mapping[str, Keepable] | None = None,
    settings: Mapping[str, SettingValue] | None = None,
    step: int = 0,
) -> Protected:
    """Keep every iteration in CPU memory here and on other nodes; restore if needed.

    Call it once, on every rank, before the training loop: after `deepspeed.initialize`, with the
    engine; or, in plain PyTorch, with the model as it is called (alone, in DistributedDataParallel,
    or after `fully_shard`) and its optimizer. When the job is restarting after a failure, this call
    puts back model, optimizer, schedule, random number generators, data position and
    `client_state`, so that the numbers that follow are those of a run that never failed. Under
    plain `deepspeed` or `torchrun` it warns once and does nothing.

    Args:
        engine: What `deepspeed.initialize` returned first; ZeRO stage 1, 2 or 3. Its settings are
            the `"gemini"` block of the DeepSpeed configuration.
        model: Without an engine: what is trained.
        optimizer: Without an engine: any torch optimizer whose state is tensors.
        scheduler: A learning-rate schedule that the script steps itself. The only one of the
            optimizer is found without being named.
        data: What holds the position in the data: a DataLoader (its iterators made after this call
            are followed), anything with `state_dict` and `load_state_dict`, such as torchdata's
            StatefulDataLoader, or a list of such. By default the loader that DeepSpeed made of
            `training_data`, or the only DataLoader there is; `()` for none.
        client_state: The script's own small state; restored in place.
        also: By name, whatever else shall come back: torch's, numpy's and Python's generators,
            dicts, and objects with `state_dict` and `load_state_dict`, such as averaged weights or
            a GradScaler.
        settings: Without an engine: what would stand in the `"gemini"` block.
        step: Without an engine: updates that were done before, where the script loaded a checkpoint
            of its own.

    Returns:
        The handle: loop over `protected.steps(iterations)`.

    Raises:
        UnsupportedError: There is state that cannot be protected.
        ConfigError: A setting is impossible, an argument is of the wrong kind or has no state that
            could be kept, or the model is not the one that was saved.
        CapacityError: A node's memory cannot hold its shard and replicas.
    """
    trained = as_engine(engine, model=model, optimizer=optimizer, settings=settings, step=step)
    require_parts(client_state, also)
    if sessions.current is None:
        if trained.global_rank == 0:
            warnings.warn(
                f"gemini_lab.protect: {NOT_IN_A_LAB}",
                stacklevel=2,
            )
        return Unprotected(trained)
    if sessions.current.on_finish is not None:
        raise ConfigError(
            "gemini_lab.protect was called twice, and a job protects one engine; make both models "
            "parts of one module, or train the second as a plain module with a torch optimizer and "
            "name these two in `also`"
        )
    named = with_schedule(also, scheduler)
    return start_protection(
        sessions.current, trained, data=data, client_state=client_state, also=named
    )


def start_protection(
    session: WorkerSession,
    engine: Engine,
    *,
    data: Source | Sequence[Source] | None = None,
    client_state: dict[str, Value] | None = None,
    also: Mapping[str, Keepable] | None = None,
) -> LiveProtection:
    """Protect a worker's engine: lay out, restore what the plan says, and hook the step.

    Args:
        session: The worker's; it is told of everything.
        engine: DeepSpeed's, or a `TorchEngine`; as for what follows and for the errors, see
            `protect`.
        data: The position in the data.
        client_state: The script's own.
        also: The script's own, too.
    """
    start = session.start
    remark = remarks(session)
    _require_all_ranks(start.seats.world_size)
    session.meet()
    script = gather(engine, data=data, client_state=client_state, also=also, remark=remark)
    for text in left_out(engine) if isinstance(engine, TorchEngine) else ():
        remark(text)
    state = EngineState(engine, script=script)
    settings = read_settings(state.framework, start.order, remark)
    seats = start.seats.placed(settings)
    is_first = start.fingerprint is None  # of the run: nobody has called this before
    if start.rank == 0 and (is_first or start.plan.version is None):
        _claim_tier(settings.persistent_url, start.order)
    group = CheckpointGroup(session.store, rank=start.rank, world_size=seats.world_size)
    memory = _lay_out(session, state, seats, settings, group)
    if is_first and resumes_elsewhere(start.order, settings):
        session.wait_for_fence()
    lineage = Lineage(run=start.order.run, epoch=start.epoch)
    place = Place(
        rank=start.rank,
        seats=seats,
        slab=memory.slab,
        group=group,
        persistent_url=settings.persistent_url,
        lineage=lineage,
        layout=state.layout,
        recast=_recast(state, settings, remark, is_under_way=not is_first),
        old_slabs=lambda ranks: _old_slabs(session, ranks),
    )
    with session.pulse.within("restoring", start.plan.tier):
        small = _restore(session, state, place)
    emit = with_monitor(engine, session.emit)
    recorder = recorder_of(state, settings)
    traffic = _open_traffic(session, engine, place, memory, settings, recorder=recorder, emit=emit)
    if start.plan.tier == "memory":
        traffic.note_whole(state.version)
    guard = Guard.of(settings)
    if guard is not None and (known := guard_in(small)) is not None:
        guard.restore(known)
    verification = _verification(
        session, state, place, traffic, settings, newest=verified_in(small)
    )
    iterations = IterationLog(emit, newest=newest_in(small), measure=lambda: gradient_norm(engine))
    watch_inputs(engine, iterations)
    session.pulse.watch(calls=lambda: traffic.collectives, messages=lambda: group.messages)
    protection = LiveProtection(
        state,
        traffic,
        iterations,
        session.pulse,
        lineage=lineage,
        epoch=epoch_in(small),
        rewinder=None
        if settings.scheme == "none"
        else Rewinder(state, memory.slab, traffic, guard=guard, emit=session.emit),
        recorder=recorder,
        verification=verification,
        flaws=Flaws(state.framework, session.flaws).install,
        remark=remark,
        hold=session.hold,
    )
    state.framework.hook(protection)
    session.on_finish = protection.finish
    if start.plan.version is None and not traffic.is_sent(state.version):
        protection.send_version()
    session.pulse.enter("between steps")
    session.listen()
    if settings.import_ahead:
        session.tell_imports()
    return protection


def remarks(session: WorkerSession) -> Callable[[str], None]:
    """Tells the script's author something: in the log, and on the terminal; one rank does."""

    def say(text: str) -> None:
        if session.start.rank == 0:
            session.emit(events.Note(text=text))
            warnings.warn(f"gemini_lab: {text}", stacklevel=2)

    return say


def _require_all_ranks(workers: int) -> None:
    """Refuse workers that do not know of one another.

    Raises:
        ConfigError: They do not.
    """
    _, world_size = rank_and_world_size()
    if world_size != workers:
        raise ConfigError(
            f"this job has {workers} workers, but torch.distributed knows of {world_size}; call "
            "torch.distributed.init_process_group() before `protect`, or start one worker: "
            "gemini-lab run --nodes 1 --replicas 1"
        )


def _claim_tier(url: str | None, order: JobOrder) -> None:
    """Make the persistent tier this run's, before it has anything to lose there."""
    if url is not None:
        tier = persistent_tier(url)
        tier.check()
        tier.claim(order.run, is_resumed=order.is_resumed)


def _lay_out(
    session: WorkerSession,
    state: EngineState,
    seats: Seats,
    settings: Settings,
    group: CheckpointGroup,
) -> ShardMemory:
    """Memory for the engine's state, which is then said to be protected."""
    memory = open_shard_memory(
        state.layout,
        rank=session.start.rank,
        seats=seats,
        chunk_bytes=settings.chunk_bytes,
        buffers=settings.buffers,
        group=group,
        owner=session,
    )
    require_fingerprint(state.layout, session.start.fingerprint)
    session.emit(
        events.Protected(
            shard_bytes=state.layout.payload_bytes,
            fingerprint=state.layout.fingerprint,
            settings=settings,
            placement=seats.holders,
        )
    )
    return memory


def _open_traffic(
    session: WorkerSession,
    engine: Engine,
    place: Place,
    memory: ShardMemory,
    settings: Settings,
    *,
    recorder: UpdateRecorder | None,
    emit: Emit,
) -> CheckpointTraffic:
    """What sends this rank's versions to its peers, as the settings want it."""
    rank, seats = place.rank, place.seats
    peers = Peers(
        rank=rank,
        sends_to=seats.peers_that_keep(rank),
        receives_from=seats.replica_numbers(rank),
    )
    sent = None
    if recorder is not None:
        sent = SentDifferences.of(recorder, place.group, memory.slab, peers, settings)
    return open_traffic(
        settings,
        place.group,
        memory.slab,
        peers,
        shard_bytes=memory.shard_bytes if sent is None else sent.sizes_bytes,
        link=_open_link(settings, session.start, place.group),
        node_of=seats.node_of,
        device=torch.device(engine.device),
        emit=emit,
        wants_hold=lambda: session.wants_hold,
        order_back=lambda: encode_order(session.order_back),
        differences=None if sent is None else sent.over,
    )


def _verification(
    session: WorkerSession,
    state: EngineState,
    place: Place,
    traffic: CheckpointTraffic,
    settings: Settings,
    *,
    newest: Verified | None,
) -> Verification | None:
    """What has iterations computed again, if the settings ask for it.

    Args:
        session: The worker's.
        state: The engine's.
        place: The rank's.
        traffic: Of its versions.
        settings: The job's.
        newest: The newest verified version, if the one that was restored tells of it.
    """
    if settings.verify_every is None:
        return None
    return Verification(
        Verifier(
            state.framework,
            place.group,
            rank=place.rank,
            seats=place.seats,
            every=settings.verify_every,
            is_first=session.start.plan.version is None,
            apart=traffic.apart,
        ),
        place.slab,
        rank=place.rank,
        on_wrong=settings.on_wrong_sums,
        newest=newest or Verified(version=state.version, lineage=place.lineage),
        emit=session.emit,
        stand_still=session.stand_still,
    )


def _restore(session: WorkerSession, state: EngineState, place: Place) -> Mapping[str, object]:
    """Do what the recovery plan asks of this rank, and say it.

    Returns:
        What the version carried beside the engine's state; empty if there is none.
    """
    plan = session.start.plan
    try:
        restored = restore(plan, place, state.load)
    except UnusableCopyError as error:
        session.restore_failed(
            shard=error.shard, version=error.version, holder=error.holder, reason=error.reason
        )
        raise  # this worker ends: the root agent plans without that copy
    if restored is None or plan.version is None:
        return {}
    receipt, small = restored
    newest = newest_in(small)
    if newest is not None:
        session.emit(msgspec.structs.replace(newest, restored=True))
    session.emit(_restored_event(place.rank, plan.version, receipt))
    if receipt.ranks_then is not None:
        session.emit(
            events.ShardRecut(
                shard=place.rank,
                version=plan.version,
                ranks_then=receipt.ranks_then,
                ranks=place.seats.world_size,
                read_bytes=receipt.read_bytes,
                local_bytes=receipt.local_bytes,
                peer_bytes=receipt.peer_bytes,
            )
        )
    for watch in state.script.watches:
        if watch.replay_s > _LONG_REPLAY_S and place.rank == 0:
            text = (
                f"{watch.replayed} batches were loaded again in {watch.replay_s:.1f} s to find the "
                "position in an epoch; torchdata's StatefulDataLoader does it faster"
            )
            session.emit(events.Note(text=text))
    return small


def _old_slabs(session: WorkerSession, ranks: int) -> OldSlabs:
    """What this rank's node has in memory of the shards of so many ranks."""
    fds, layouts = session.request_old_slabs(ranks)
    try:
        return [Slab.attach(fd) for fd in fds], layouts
    finally:
        for fd in fds:
            os.close(fd)


def _recast(
    state: EngineState, settings: Settings, remark: Callable[[str], None], *, is_under_way: bool
) -> Recast:
    """Takes over the small state of another number of ranks, and says what it could not.

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


def _restored_event(rank: int, version: int, receipt: Receipt) -> events.ShardRestored:
    return events.ShardRestored(
        shard=rank,
        version=version,
        tier=receipt.tier,
        holder=receipt.holder,
        size_bytes=receipt.size_bytes,
        verified=True,
        retrieve_s=receipt.retrieve_s,
        verify_s=receipt.verify_s,
        load_s=receipt.load_s,
    )


def _open_link(settings: Settings, start: WorkerStart, group: CheckpointGroup) -> LinkBucket | None:
    """The emulated link of this worker's node, if the job has one; every rank calls it."""
    if settings.link_bytes_per_s is None:
        return None
    return node_link(
        job=start.rendezvous,
        node=start.seats.node_of(start.rank),
        bytes_per_s=settings.link_bytes_per_s,
        barrier=group.barrier,
    )
