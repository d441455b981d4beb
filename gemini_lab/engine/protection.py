"""`protect`: the one call that keeps a DeepSpeed engine's every iteration in CPU memory."""

import time
import warnings
from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from gemini_lab.engine import session as sessions
from gemini_lab.engine.engine_state import EngineState
from gemini_lab.engine.session import WorkerSession
from gemini_lab.errors import ConfigError, GeminiError, IntegrityError
from gemini_lab.log import events
from gemini_lab.memory.slab import Slab
from gemini_lab.recovery.plan import RecoveryPlan
from gemini_lab.settings import Settings
from gemini_lab.storage import persistent_tier
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.traffic import Traffic, open_link
from gemini_lab.transfer.transfer import Job, receive_copy, send_copy


class Protected:
    """What `protect` returns.

    Attributes:
        step: Iterations that are already done: 0, or the version that was restored.
    """

    step: int

    def log(self, **values: float) -> None:
        """Attach values, such as the loss, to the iteration that is computed, or was just done.

        Called before `engine.step()`, they are also kept in the version, and a node that dies takes
        none of them along.
        """


class Unprotected(Protected):
    """The engine runs without a lab: everything is a no-op."""

    def __init__(self, engine: Any) -> None:
        self.step = int(engine.global_steps)


def protect(engine: Any, *, data: Any = None, client_state: dict[str, Any] | None = None) -> Any:
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
        A `Protected`: loop over `range(protected.step, iterations)`.

    Raises:
        UnsupportedError: The engine has state that cannot be protected.
        ConfigError: A setting is impossible, or the model is not the one that was saved.
        CapacityError: A node's memory cannot hold its shard and replicas.
    """
    if sessions.current is None:
        if int(engine.global_rank) == 0:
            warnings.warn(
                "gemini_lab.protect: this script was not started by `gemini-lab run`, so its "
                "checkpoints are not protected",
                stacklevel=2,
            )
        return Unprotected(engine)
    return LiveProtection(sessions.current, engine, data=data, client_state=client_state)


def read_settings(engine: Any, overrides: Mapping[str, Any]) -> Settings:
    """The job's settings: the `"gemini"` block, then what the launcher was told."""
    block = getattr(engine, "_config", None)
    return Settings.parse(getattr(block, "_param_dict", {}).get("gemini", {})).updated(overrides)


class LiveProtection(Protected):
    """Protection of one worker of a lab."""

    def __init__(
        self,
        session: WorkerSession,
        engine: Any,
        *,
        data: Any,
        client_state: dict[str, Any] | None,
    ) -> None:
        if session.on_finish is not None:
            raise ConfigError("gemini_lab.protect was called twice; call it once, for one engine")
        self._session = session
        self._engine = engine
        self._values: dict[str, float] = {}
        self._last: dict[str, Any] = {}  # what was said of the newest iteration
        start = session.start
        self._rank: int = start.rank
        self._settings = read_settings(engine, start.order.settings)
        seats = start.seats
        self._seats = seats if seats.placement is not None else seats.placed(self._settings)
        self._state = EngineState(engine, data=data, client_state=client_state)
        url = self._settings.persistent_url
        if url is not None and self._rank == 0 and start.plan.version is None:
            persistent_tier(url).check()
        self._group = CheckpointGroup(session.store, rank=self._rank, world_size=seats.world_size)
        self._slab = self._open_slab()
        self.step = self._restore()
        self._traffic = Traffic(
            settings=self._settings, group=self._group, slab=self._slab, sizes=self._sizes,
            sends_to=self._seats.peers_that_keep(self._rank),
            receives_from=self._seats.replica_numbers(self._rank),
            link=open_link(self._settings, start, self._group),
            ranks_per_node=seats.workers_per_node,
            on_device=torch.device(engine.device).type == "cuda", emit=session.emit,
        )  # fmt: skip
        self._wrap_step()
        session.on_finish = self.finish
        self._began = time.perf_counter()
        if start.plan.version is None and not self._traffic.is_sent(0):
            self._send_version()

    def log(self, **values: float) -> None:
        """Attach values, such as the loss, to the iteration that is computed, or was just done.

        Called before `engine.step()`, they are also kept in the version, and a node that dies takes
        none of them along.
        """
        numbers = {name: float(value) for name, value in values.items()}
        if self._is_computing or not self._last:
            self._values.update(numbers)
        else:  # after the step: said again, with the values
            self._last = {**self._last, "values": {**self._last["values"], **numbers}}
            self._session.emit(events.Iteration(**self._last))

    def finish(self) -> None:
        """Wait until the last version is whole everywhere."""
        self._traffic.wait()
        if not self._traffic.is_sent(self._state.version):
            self._send_version()
        self._traffic.close()

    # -- every iteration ---------------------------------------------------------------------

    def _wrap_step(self) -> None:
        """Wait before the update that changes the state, and send the new version after it."""
        inner = self._engine.step
        self._is_computing = False

        def note_forward(*_: Any) -> None:
            self._is_computing = True

        self._engine.module.register_forward_pre_hook(note_forward)

        def step(*args: Any, **kwargs: Any) -> Any:
            is_update = self._engine.is_gradient_accumulation_boundary()
            waited_s = self._traffic.wait() if is_update else 0.0
            result = inner(*args, **kwargs)
            if is_update:
                self._after_update(waited_s)
            return result

        self._engine.step = step

    def _after_update(self, waited_s: float) -> None:
        now = time.perf_counter()
        self._last = {
            "iteration": self._state.version, "duration_s": now - self._began,
            "waited_s": waited_s, "values": self._values,
        }  # fmt: skip
        self._values = {}
        self._is_computing = False
        self._began = now
        self._session.emit(events.Iteration(**self._last))
        if self._traffic.is_due(self._state.version):
            self._send_version()

    def _send_version(self) -> None:
        layout = self._state.layout
        # The last iteration's values travel in the version: when a node dies before it could say
        # them, whoever restores the version says them again.
        small = self._state.capture_small({"last": self._last})
        pieces = [
            (layout.small_offset_bytes, torch.frombuffer(bytearray(small), dtype=torch.uint8))
        ]
        for spec, tensor in zip(layout.tensors, self._state.tensors(), strict=True):
            pieces.append((spec.offset_bytes, tensor))
        self._traffic.send(
            Job(version=self._state.version, pieces=pieces, payload_bytes=layout.payload_bytes)
        )

    def _open_slab(self) -> Slab:
        layout = self._state.layout
        sizes = [size for (size,) in self._group.all_gather([layout.payload_bytes])]
        self._sizes = sizes
        slots = [(shard, sizes[shard]) for shard in self._seats.kept_shards(self._rank)]
        fd = self._session.request_slab(
            slots=slots, chunk_bytes=self._settings.chunk_bytes, layout=layout
        )
        expected = self._session.start.fingerprint
        if expected is not None and expected != layout.fingerprint:
            raise ConfigError(
                "the model, its optimizer or the number of ranks is not that of the saved version "
                f"(fingerprint {layout.fingerprint[:12]}, saved {expected[:12]}); restart with the "
                "script as it was, or start a new run"
            )
        self._session.emit(
            events.Protected(
                shard_bytes=layout.payload_bytes,
                fingerprint=layout.fingerprint,
                settings=self._settings,
                placement=self._seats.holders,
            )
        )
        return Slab.attach(fd)

    # -- after a failure -----------------------------------------------------------------------

    def _restore(self) -> int:
        """Do this rank's part of the recovery plan; returns the iterations that are done."""
        plan = self._session.start.plan
        for copy in self._slab.copies():
            if plan.version is None or copy.version > plan.version:
                self._slab.discard(copy.shard, copy.version)
        if plan.version is None:
            return 0
        receipt: dict[str, Any] = {
            "retrieve_s": 0.0, "verify_s": 0.0, "tier": "local",
            "holder": self._seats.node_of(self._rank),
        }  # fmt: skip
        if plan.tier == "persistent":
            receipt |= self._read_persistent(plan.version)
        else:
            receipt |= self._move_copies(plan)
        receipt |= self._load(plan.version, receipt)
        self._session.emit(events.ShardRestored(shard=self._rank, version=plan.version, **receipt))
        return self._state.version

    def _move_copies(self, plan: RecoveryPlan) -> dict[str, Any]:
        """Send and receive until every holder has the version; every rank walks the same list."""
        assert plan.version is not None
        receipt: dict[str, Any] = {}
        for move in plan.transfers:
            sender, receiver = (
                self._seats.rank_on(node, keeping=move.shard)
                for node in (move.sender, move.receiver)
            )
            started = time.perf_counter()
            if sender == self._rank:
                copy = self._slab.read(move.shard, plan.version)
                send_copy(copy, self._settings.chunk_bytes, to=receiver, group=self._group)
            elif receiver == self._rank:
                verify_s = self._receive(move.shard, plan.version, sender, move.sender)
                if move.shard == self._rank:
                    elapsed_s = time.perf_counter() - started - verify_s
                    receipt = {"tier": "peer", "holder": move.sender, "retrieve_s": elapsed_s,
                               "verify_s": verify_s}  # fmt: skip
        return receipt

    def _receive(self, shard: int, version: int, sender: int, holder: str) -> float:
        try:
            return receive_copy(
                self._slab, shard=shard, version=version, sender=sender, group=self._group
            )[1]
        except IntegrityError as error:
            self._give_up(shard, version, holder, error)

    def _read_persistent(self, version: int) -> dict[str, Any]:
        started = time.perf_counter()
        url = self._settings.persistent_url
        try:
            payload = persistent_tier(str(url)).read_shard(version, self._rank)
        except (GeminiError, OSError) as error:
            self._give_up(self._rank, version, None, error)
        buffer = self._slab.begin(self._rank, version)
        buffer.data[: len(payload)] = memoryview(payload)
        for index in range(buffer.chunk_count(len(payload))):
            buffer.seal_chunk(index)
        buffer.commit(len(payload))
        elapsed_s = time.perf_counter() - started
        return {"tier": "persistent", "holder": url, "retrieve_s": elapsed_s}

    def _load(self, version: int, receipt: dict[str, Any]) -> dict[str, Any]:
        copy = self._slab.read(self._rank, version)
        started = time.perf_counter()
        if bad := copy.bad_chunks():
            error = IntegrityError(f"{len(bad)} chunks differ from their checksums: {bad[:8]}")
            self._give_up(self._rank, version, self._seats.node_of(self._rank), error)
        verified = time.perf_counter()
        try:
            self._last = self._state.load(copy.data)["last"]
        except IntegrityError as error:
            self._give_up(self._rank, version, self._seats.node_of(self._rank), error)
        if self._last:
            self._session.emit(events.Iteration(**self._last, restored=True))
        return {
            "size_bytes": copy.info.payload_bytes, "verified": True,
            "verify_s": receipt["verify_s"] + verified - started,
            "load_s": time.perf_counter() - verified,
        }  # fmt: skip

    def _give_up(self, shard: int, version: int, holder: str | None, error: Exception) -> NoReturn:
        """Report a copy that cannot be used, and end this worker: the root plans without it."""
        self._session.restore_failed(shard=shard, version=version, holder=holder, reason=str(error))
        raise error
