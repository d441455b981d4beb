"""`protect`: the one call that keeps a DeepSpeed engine's every iteration in CPU memory.

The parts are made elsewhere, and tied together here: the engine's state (`engine_state`), memory
for it (`shard_memory`), what is put back after a failure (`restore`), the traffic of versions
(`transfer.traffic`) and the hook in the engine's step (`stepping`).
"""

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import msgspec
import torch

from gemini_lab.engine import session as sessions
from gemini_lab.engine.contract import Protected, Stateful, ZeroEngine
from gemini_lab.engine.engine_state import EngineState
from gemini_lab.engine.iterations import IterationLog, iteration_in
from gemini_lab.engine.pulse import Pulse
from gemini_lab.engine.restore import Place, Receipt, UnusableCopyError, restore
from gemini_lab.engine.session import WorkerSession
from gemini_lab.engine.shard_memory import ShardMemory, open_shard_memory, require_fingerprint
from gemini_lab.engine.stepping import hook_step
from gemini_lab.errors import ConfigError
from gemini_lab.log import events
from gemini_lab.recovery.messages import JobOrder, WorkerStart
from gemini_lab.seats import Seats
from gemini_lab.settings import Settings
from gemini_lab.shard.lineage import Lineage
from gemini_lab.storage import persistent_tier
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.link import LinkBucket
from gemini_lab.transfer.node_link import node_link
from gemini_lab.transfer.traffic import CheckpointTraffic, open_traffic
from gemini_lab.transfer.version import OutgoingVersion, Peers

Value = TypeVar("Value")


def protect(
    engine: ZeroEngine,
    *,
    data: Stateful | Sequence[Stateful] | None = None,
    client_state: dict[str, Value] | None = None,
) -> Protected:
    """Keep every iteration of `engine` in CPU memory here and on other nodes; restore if needed.

    Call it once, on every rank, after `deepspeed.initialize` and before the training loop. When
    the job is restarting after a failure, this call puts back model, optimizer, schedule, random
    number generators, data position and `client_state`, so that the numbers that follow are those
    of a run that never failed. Settings are the `"gemini"` block of the DeepSpeed configuration.
    Under plain `deepspeed` or `torchrun` it warns once and does nothing.

    Args:
        engine: What `deepspeed.initialize` returned first; ZeRO stage 1, 2 or 3.
        data: What holds the position in the data: anything with `state_dict` and
            `load_state_dict`, such as torchdata's StatefulDataLoader, or a list of such.
        client_state: The script's own small state; restored in place.

    Returns:
        The handle: loop over `range(protected.step, iterations)`.

    Raises:
        UnsupportedError: The engine has state that cannot be protected.
        ConfigError: A setting is impossible, or the model is not the one that was saved.
        CapacityError: A node's memory cannot hold its shard and replicas.
    """
    if sessions.current is None:
        if engine.global_rank == 0:
            warnings.warn(
                "gemini_lab.protect: this script was not started by `gemini-lab run`, so its "
                "checkpoints are not protected",
                stacklevel=2,
            )
        return Unprotected(step=int(engine.global_steps))
    return start_protection(sessions.current, engine, data=data, client_state=client_state)


class Unprotected:
    """The engine runs without a lab: everything is a no-op."""

    def __init__(self, *, step: int) -> None:
        self.step = step

    def log(self, **values: float) -> None:
        """Nobody listens."""

    def pause(self, reason: str) -> AbstractContextManager[None]:
        """Nobody watches."""
        del reason
        return nullcontext()


class LiveProtection:
    """Protection of one worker of a lab, made of its parts; it is the hook in the engine's step.

    Args:
        state: The engine's.
        traffic: Sends versions.
        iterations: Says what an iteration took.
        pulse: Says what training does.
        lineage: The history in which versions are made.

    Attributes:
        step: Iterations that were done when protection began.
    """

    def __init__(
        self,
        state: EngineState,
        traffic: CheckpointTraffic,
        iterations: IterationLog,
        pulse: Pulse,
        *,
        lineage: Lineage,
    ) -> None:
        self.step = state.version
        self._state = state
        self._traffic = traffic
        self._iterations = iterations
        self._pulse = pulse
        self._lineage = lineage

    def log(self, **values: float) -> None:
        """Attach values to the iteration that is computed, or was just done; see `Protected`."""
        self._iterations.add(values)

    def pause(self, reason: str) -> AbstractContextManager[None]:
        """Long work of the script's own; see `Protected`."""
        return self._pulse.pause(reason)

    def begin_forward(self) -> None:
        """An iteration computes; without gradients it is an evaluation between two of them."""
        if torch.is_grad_enabled():
            self._pulse.enter("step")
        self._iterations.begin_forward()

    def before_update(self) -> float:
        """Wait until the version on its way is whole: its tensors are about to change."""
        self._pulse.enter("step")
        return self._traffic.wait()

    def after_update(self, waited_s: float) -> None:
        """Say the iteration, and send the version that it made if it is to be sent."""
        self._iterations.end(self._state.version, waited_s=waited_s)
        if self._traffic.end_iteration(self._state.version):
            self.send_version()
        self._pulse.enter("between steps")

    def send_version(self) -> None:
        """Begin to send the engine's state as it is now."""
        small = bytearray(self._state.capture_small(self._iterations.to_small()))
        layout = self._state.layout
        pieces = [(layout.small_offset_bytes, torch.frombuffer(small, dtype=torch.uint8))]
        for spec, tensor in zip(layout.tensors, self._state.tensors(), strict=True):
            pieces.append((spec.offset_bytes, tensor))
        self._traffic.send(
            OutgoingVersion(
                version=self._state.version,
                lineage=self._lineage,
                pieces=pieces,
                payload_bytes=layout.payload_bytes,
            )
        )

    def finish(self) -> None:
        """Wait until the last version is whole everywhere."""
        self._traffic.wait()
        if not self._traffic.is_sent(self._state.version):
            self.send_version()
        self._traffic.close()


def start_protection(
    session: WorkerSession,
    engine: ZeroEngine,
    *,
    data: Stateful | Sequence[Stateful] | None,
    client_state: dict[str, Value] | None,
) -> LiveProtection:
    """Protect a worker's engine: lay out, restore what the plan says, and hook the step.

    Args:
        session: The worker's; it is told of everything.
        engine: See `protect`, as for what follows and for the errors.
        data: The position in the data.
        client_state: The script's own.
    """
    if session.on_finish is not None:
        raise ConfigError("gemini_lab.protect was called twice; call it once, for one engine")
    start = session.start
    settings = read_settings(engine, start.order)
    seats = start.seats.placed(settings)
    state = EngineState(engine, data=data, client_state=client_state)
    url = settings.persistent_url
    if url is not None and start.rank == 0 and start.plan.version is None:
        tier = persistent_tier(url)
        tier.check()
        tier.claim(start.order.run, is_resumed=start.order.is_resumed)
    group = CheckpointGroup(session.store, rank=start.rank, world_size=seats.world_size)
    memory = _lay_out(session, state, seats, settings, group)
    lineage = Lineage(run=start.order.run, epoch=start.epoch)
    place = Place(
        rank=start.rank,
        seats=seats,
        slab=memory.slab,
        group=group,
        persistent_url=url,
        lineage=lineage,
        layout=state.layout,
    )
    with session.pulse.within("restoring", start.plan.tier):
        newest = _restore(session, state, place)
    traffic = open_traffic(
        settings,
        group,
        memory.slab,
        Peers(
            rank=start.rank,
            sends_to=seats.peers_that_keep(start.rank),
            receives_from=seats.replica_numbers(start.rank),
        ),
        shard_bytes=memory.shard_bytes,
        link=_open_link(settings, start, group),
        node_of=seats.node_of,
        on_device=torch.device(engine.device).type == "cuda",
        emit=session.emit,
    )
    if start.plan.tier == "memory":
        traffic.note_whole(state.version)
    iterations = IterationLog(session.emit, newest=newest)
    session.pulse.watch(calls=lambda: traffic.collectives, messages=lambda: group.messages)
    protection = LiveProtection(state, traffic, iterations, session.pulse, lineage=lineage)
    hook_step(engine, protection)
    session.on_finish = protection.finish
    if start.plan.version is None and not traffic.is_sent(0):
        protection.send_version()
    session.pulse.enter("between steps")
    return protection


def read_settings(engine: ZeroEngine, order: JobOrder) -> Settings:
    """The job's settings: the lab's defaults, the `"gemini"` block, what the launcher was told.

    What comes later replaces what comes before.
    """
    config = getattr(engine, "_config", None)
    block = getattr(config, "_param_dict", {}).get("gemini", {})
    return Settings.parse(order.defaults).updated(block).updated(order.settings)


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


def _restore(session: WorkerSession, state: EngineState, place: Place) -> events.Iteration | None:
    """Do what the recovery plan asks of this rank, and say it; gives the version's iteration."""
    plan = session.start.plan
    try:
        restored = restore(plan, place, state.load)
    except UnusableCopyError as error:
        session.restore_failed(
            shard=error.shard, version=error.version, holder=error.holder, reason=error.reason
        )
        raise  # this worker ends: the root agent plans without that copy
    if restored is None or plan.version is None:
        return None
    receipt, small = restored
    newest = iteration_in(small)
    if newest is not None:
        session.emit(msgspec.structs.replace(newest, restored=True))
    session.emit(_restored_event(place.rank, plan.version, receipt))
    return newest


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
