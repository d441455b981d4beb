"""`protect`: the one call that keeps a job's every iteration in CPU memory.

The parts are made elsewhere, and tied together here: the engine with its memory, and with what is
put back after a failure (`ready_engine`), the way of versions (`transfer.assembly`), and the
hook in the engine (`live`).
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final, TypeVar

import torch
from torch import nn

from gemini_lab.engine import session as sessions
from gemini_lab.engine.arguments import (
    as_engine,
    numbers_of,
    require_parts,
    require_rewind,
    with_schedule,
)
from gemini_lab.engine.contract import Engine, Keepable, Protected, Source, Stateful, ZeroEngine
from gemini_lab.engine.discovery import begin_repeating
from gemini_lab.engine.frameworks.stepping import UpdateWatch
from gemini_lab.engine.frameworks.torch_engine import TorchEngine, trained_by
from gemini_lab.engine.gradients.sent_differences import recorder_of, sent_differences
from gemini_lab.engine.gradients.update_recorder import UpdateRecorder
from gemini_lab.engine.iteration_log import (
    IterationLog,
    both,
    gradient_norm,
    iteration_in,
    thread_work,
    watch_inputs,
    with_monitor,
)
from gemini_lab.engine.live import LiveProtection
from gemini_lab.engine.rank_agreement import jointly
from gemini_lab.engine.rejoining import Rejoining
from gemini_lab.engine.rewinding import encode_order
from gemini_lab.engine.script_loops import Ends, place_in
from gemini_lab.engine.session import WorkerSession
from gemini_lab.engine.setup import ReadyEngine, follow, ready_engine, rewinder_of
from gemini_lab.engine.verify.flaws import Flaws
from gemini_lab.engine.verify.verification import (
    Verification,
    VerifiedVersion,
    Verifier,
    verified_in,
)
from gemini_lab.engine.witness import Witness, WitnessedLoops, WitnessedSteps, beside_unprotected
from gemini_lab.errors import ConfigError, UnsupportedError
from gemini_lab.limits import require_text
from gemini_lab.log import events
from gemini_lab.log.witnessed import WitnessOrder
from gemini_lab.recovery.messages import WorkerStart
from gemini_lab.settings import Settings, SettingValue
from gemini_lab.transfer.assembly import Emit, open_replicator
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.link import LinkBucket, node_link
from gemini_lab.transfer.replicator import Replicator
from gemini_lab.transfer.version import Asked, Peers
from gemini_lab.units import check_number

Value = TypeVar("Value")
NOT_IN_A_LAB: Final = (
    "this script was not started by `gemini-lab run`, so its checkpoints are not protected"
)


def protect(
    engine: ZeroEngine | TorchEngine | None = None,
    *,
    model: nn.Module | Sequence[nn.Module] | None = None,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    scheduler: Stateful | Sequence[Stateful] | None = None,
    data: Source | Sequence[Source] | None = None,
    client_state: dict[str, Value] | None = None,
    also: Mapping[str, Keepable] | None = None,
    settings: Mapping[str, SettingValue] | None = None,
    step: int = 0,
) -> Protected:
    """Keep every iteration in CPU memory here and on other nodes; restore if needed.

    Call it once, on every rank, before the training loop: after `deepspeed.initialize`, with the
    engine; or, in plain PyTorch, with the model as it is called (alone, in DistributedDataParallel,
    or after `fully_shard`) and its optimizer. Ranks may train different models, such as the stages
    of a pipeline, and a rank with several gives lists. When the job is restarting after a failure,
    this call puts back model, optimizer, schedule, random number generators, data position and
    `client_state`, so that the numbers that follow are those of a run that never failed. Under
    plain `deepspeed` or `torchrun` it warns once and does nothing.

    Args:
        engine: What `deepspeed.initialize` returned first; ZeRO stage 1, 2 or 3. Its settings are
            the `"gemini"` block of the DeepSpeed configuration.
        model: Without an engine: what is trained. A list, if this rank has several stages.
        optimizer: Without an engine: any torch optimizer whose state is tensors. A list, if several
            step in each pass of the loop.
        scheduler: A learning-rate schedule that the script steps itself, or a list of them. The
            only one of an optimizer is found without being named.
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
    session = sessions.current
    if session is not None:
        if session.on_finish is not None:
            raise ConfigError(
                "gemini_lab.protect was called twice, and a job protects one engine; make both "
                "models parts of one module, or train the second as a plain module with a torch "
                "optimizer and name these two in `also`"
            )
        session.meet()
    with nullcontext() if session is None else jointly():
        trained = as_engine(engine, model=model, optimizer=optimizer, settings=settings, step=step)
        require_parts(client_state, also)
        named = with_schedule(also, scheduler)
    if session is None:
        if trained.global_rank == 0:
            warnings.warn(
                f"gemini_lab.protect: {NOT_IN_A_LAB}",
                stacklevel=2,
            )
        begin_repeating(trained, data)
        return beside_unprotected(
            UnprotectedLoops(trained), trained, client_state=client_state, also=named
        )
    protection = start_protection(
        session, trained, data=data, client_state=client_state, also=named
    )
    return protection if session.witness is None else WitnessedLoops(session.witness, protection)


def start_protection(
    session: WorkerSession,
    engine: Engine,
    *,
    data: Source | Sequence[Source] | None = None,
    client_state: dict[str, Value] | None = None,
    also: Mapping[str, Keepable] | None = None,
) -> LiveProtection:
    """Protect a worker's engine: lay out, restore what the plan says, and hook the step."""
    remark = remarks(session)
    ready = ready_engine(
        session, engine, data=data, client_state=client_state, also=also, remark=remark
    )
    state, settings, small = ready.state, ready.settings, ready.small
    emit = with_monitor(engine, session.emit)
    recorder = None
    if settings.replicate == "gradients":
        with jointly():
            recorder = recorder_of(state, settings)
    replicator = _open_replicator(session, ready, recorder=recorder, emit=emit)
    follow(session, ready, replicator)
    # Events of an iteration that is thrown away must not be in the log.
    said = session.kept.unless_broken(emit)
    witness = _witness(session, engine, client_state=client_state, also=also)
    if witness is not None:
        said = both(said, witness.hear)
    iterations = IterationLog(
        said,
        newest=iteration_in(small),
        measure=lambda: gradient_norm(engine),
        work_s=thread_work(),
    )
    watch_inputs(engine, iterations)
    open_again = partial(_open_replicator, recorder=None, emit=emit)
    protection = LiveProtection(
        state,
        replicator,
        iterations,
        session.pulse,
        lineage=ready.place.lineage,
        place=place_in(small),
        rewinder=rewinder_of(session, ready, replicator),
        recorder=recorder,
        verification=_verification(session, ready, replicator),
        flaws=Flaws(state.framework, session.flaws).install,
        remark=remark,
        hold=session.hold,
        rejoining=Rejoining(session, ready, open_replicator=open_again),
        ends=Ends(session, is_broken=lambda: session.kept.is_broken),
        rehearse=ready.rehearse,
        update_watch=UpdateWatch(
            state.framework.optimizers,
            state.framework.trained(),
            lambda: state.version,
            emit=emit,
            ends=settings.on_unkept_updates == "stop",
        ),
    )
    _begin(session, ready, replicator, protection)
    begin_repeating(engine, data)
    return protection


def _begin(
    session: WorkerSession, ready: ReadyEngine, replicator: Replicator, made: LiveProtection
) -> None:
    """Hook the engine's step; from here on training does the rest."""
    state, witness = ready.state, session.witness
    state.framework.hook(made if witness is None else WitnessedSteps(witness, made))
    session.on_finish = made.finish
    if witness is not None:
        witness.is_early = lambda: made.is_early
        witness.watch_passes()
        session.on_finish = _in_turn(witness.end_script, made.finish)
        for watch in state.script.watches[:1]:
            watch.on_over = _in_turn(watch.on_over, partial(witness.reach, "batches over"))
    if session.start.plan.version is None and not replicator.is_sent(state.version):
        made.send_version()
    session.pulse.enter("between steps")
    session.listen()


def _witness(
    session: WorkerSession,
    engine: Engine,
    *,
    client_state: Mapping[str, Value] | None,
    also: Mapping[str, Keepable] | None,
) -> Witness | None:
    order = WitnessOrder.of(session.start.order.job.env)
    if order is not None:
        session.witness = Witness(
            order,
            engine,
            epoch=lambda: session.start.epoch,
            client_state=client_state,
            also=also,
        )
    return session.witness


def _in_turn(*calls: Callable[[], None]) -> Callable[[], None]:
    def all_of_them() -> None:
        for call in calls:
            call()

    return all_of_them


def remarks(session: WorkerSession) -> Callable[[str], None]:
    """Return what tells the script's author something in the log; rank 0 does."""

    def say(text: str) -> None:
        if session.start.rank == 0:
            session.emit(events.Note(text=text))

    return say


def _open_replicator(
    session: WorkerSession, ready: ReadyEngine, *, recorder: UpdateRecorder | None, emit: Emit
) -> Replicator:
    settings, place = ready.settings, ready.place
    peers = Peers(
        rank=place.rank,
        sends_to=place.seats.peers_that_keep(place.rank),
        receives_from=place.seats.replica_numbers(place.rank),
    )
    shard_bytes, differences = ready.shard_bytes, None
    if recorder is not None:
        shard_bytes, differences = sent_differences(
            recorder, place.group, place.slab, peers, settings
        )
    return open_replicator(
        settings,
        place.group,
        place.slab,
        peers,
        shard_bytes=shard_bytes,
        link=_open_link(settings, session.start, place.group),
        node_of=place.seats.node_of,
        device=torch.device(ready.engine.device),
        emit=emit,
        asked=lambda: Asked(session.wants_hold, *encode_order(session.order_back)),
        differences=differences,
    )


def _verification(
    session: WorkerSession, ready: ReadyEngine, replicator: Replicator
) -> Verification | None:
    state, settings, place = ready.state, ready.settings, ready.place
    newest = verified_in(ready.small)
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
            apart=replicator.apart,
        ),
        place.slab,
        rank=place.rank,
        on_wrong=settings.on_wrong_sums,
        newest=newest or VerifiedVersion(version=state.version, lineage=place.lineage),
        emit=session.emit,
        stand_still=session.stand_still,
    )


def _open_link(settings: Settings, start: WorkerStart, group: CheckpointGroup) -> LinkBucket | None:
    """Return the emulated link of this worker's node, if the job has one; every rank calls it."""
    if settings.link_bytes_per_s is None:
        return None
    return node_link(
        job=start.rendezvous,
        node=start.seats.node_of(start.rank),
        bytes_per_s=settings.link_bytes_per_s,
        barrier=group.barrier,
    )


class UnprotectedLoops:
    """The engine runs without a lab: nothing is kept, and loops run as they would with one."""

    world_changed = None

    def __init__(self, engine: Engine) -> None:
        self.step = int(engine.global_steps)
        self._engine = engine
        self._watch: UpdateWatch | None = None
        if isinstance(engine, TorchEngine):
            self._watch = UpdateWatch(
                engine.optimizers,
                trained_by(engine.optimizers),
                lambda: engine.global_steps,
                ends=engine.settings.get("on_unkept_updates") != "warn",
            )
            engine.before_update = self._watch.begin_update
            engine.after_update = self._watch.end_update

    def steps(self, total: int, /) -> Iterator[int]:
        """Yield until so many optimizer steps are done; refuse what a lab refuses."""
        check_number("steps", total, is_whole=True)
        return self._steps(total)

    def _steps(self, total: int) -> Iterator[int]:
        while self._engine.global_steps < total:
            if self._watch is not None:
                self._watch.reach_top()
            yield int(self._engine.global_steps)

    def epochs(self, total: int, /) -> Iterator[int]:
        check_number("epochs", total, is_whole=True)
        return iter(range(total))

    def log(self, **values: float) -> None:
        """Refuse what a lab refuses; nothing is written."""
        numbers_of(values)

    def rewind(self, steps: int, *, skip: bool = True) -> None:
        require_rewind(steps, skip)
        raise UnsupportedError(
            f"protected.rewind({steps}, skip={skip}): this script was not started by "
            "`gemini-lab run`, so no version is kept to which training could go back"
        )

    def pause(self, reason: str) -> AbstractContextManager[None]:
        require_text("the pause's reason", reason)
        return nullcontext()
