"""A DeepSpeed engine's model states as one shard: what GEMINI keeps (paper, section 2.1).

The large part are the master weights and the optimizer's tensors. They do not change between two
optimizer steps, so they are given out as live references and copied while the next iteration
computes. The small part (counters, schedule, random states, data position, the user's own objects)
changes at any time and is captured as bytes when the next iteration begins. What of it is drawn,
and so may be of either iteration, can be captured before.
"""

import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from gemini_lab.engine import small_state
from gemini_lab.engine.contract import ZeroEngine
from gemini_lab.engine.script_state import ScriptState
from gemini_lab.engine.weights import aliases, digest_over_ranks
from gemini_lab.engine.zero import partitions_of
from gemini_lab.errors import (
    CapacityError,
    ConfigError,
    GeminiError,
    IntegrityError,
    UnsupportedError,
)
from gemini_lab.shard.codec import decode, decode_framed, encode, encode_framed, framed
from gemini_lab.shard.layout import ShardLayout, TensorSpec, lay_out, require_same
from gemini_lab.units import MIB, format_bytes

Payload = bytes | bytearray | memoryview

_MASTER: Final = "master"  # beside the names of the optimizer's own tensors


class EngineState:
    """The shard of one rank of a DeepSpeed engine: how it lies in memory, out of it and back in.

    All ranks make one together, after `deepspeed.initialize`.

    Args:
        engine: What `deepspeed.initialize` returned first; ZeRO stage 1, 2 or 3.
        script: What the script handed over; restored in place.
        small_capacity_bytes: Room for the small state; by default 1 MiB, what the model's buffers
            take, and room for what was handed over. It must be the same in every start of a run.

    Attributes:
        layout: The form of this rank's payload.
        script: What the script handed over.

    Raises:
        UnsupportedError: The engine has state that would not be kept; says what to change.
    """

    def __init__(
        self,
        engine: ZeroEngine,
        *,
        script: ScriptState | None = None,
        small_capacity_bytes: int | None = None,
    ) -> None:
        self._engine: Any = engine  # DeepSpeed's own: far more of it is read than it declares
        self._partitions = partitions_of(engine)
        self.script = ScriptState() if script is None else script
        self._slots = list(self._lay_slots())
        self.layout: ShardLayout = self._lay_out(small_capacity_bytes)
        self._identity = zlib.compress(encode(self.layout.identity))
        self._zeros: dict[int, torch.Tensor] = {}  # for tensors that do not exist yet
        self._restored: bytes | None = None  # the small state, until the loop's top is reached

    @property
    def version(self) -> int:
        """Optimizer steps done so far."""
        return int(self._engine.global_steps)

    def tensors(self) -> list[torch.Tensor]:
        """The large part, in the layout's order: live, flat, the same until the next step.

        A tensor that the optimizer makes only at its first step is zeros until then.

        Raises:
            UnsupportedError: The optimizer's state is not what its class keeps.
        """
        return [self._checked(index, spec) for index, spec in enumerate(self.layout.tensors)]

    def capture_drawn(self) -> bytes:
        """What of the small state may be of either iteration, as it is now; for `capture_small`.

        Raises:
            UnsupportedError: An object in it cannot be stored.
        """
        return encode(self.script.drawn())

    def capture_small(
        self,
        extra: Mapping[str, Any] | None = None,
        *,
        drawn: bytes | None = None,
        at_top: bool = False,
    ) -> bytes:
        """The small part as bytes, between two iterations; they say their own length.

        Args:
            extra: Whatever else should travel with this version; `load` returns it.
            drawn: What `capture_drawn` gave before; by default it is captured now.
            at_top: The script is at the top of its loop; see `restore_small_again`.

        Raises:
            UnsupportedError: It is no time for it (gradients are being accumulated), or an object
                in it cannot be stored.
            CapacityError: It outgrew its room.
        """
        self._require_boundary()
        drawn = self.capture_drawn() if drawn is None else drawn
        small = small_state.capture(self._partitions, self.script, drawn)
        small["identity"] = self._identity
        small["present"] = [self._tensor(index) is not None for index in range(len(self._slots))]
        small["extra"] = dict(extra or {})
        small["at_top"] = at_top
        encoded = encode_framed(small)
        room_bytes = self.layout.small_capacity_bytes
        if len(encoded) > room_bytes:
            raise CapacityError(
                f"the small state takes {format_bytes(len(encoded))}, its room is "
                f"{format_bytes(room_bytes)}; keep large objects out of client_state and the data "
                "position, or hand them to `protect` in the size that they will have"
            )
        return encoded

    def load(self, payload: Payload) -> dict[str, Any]:
        """Put a version back, so that the numbers that follow are those of a run that went on.

        All ranks call it together, each with its own shard of one version. Nothing is changed on
        any rank if one of them finds that its shard does not fit.

        Returns:
            What `capture_small` was given as `extra`.

        Raises:
            ConfigError: The model, its optimizer or the script changed since, here or elsewhere.
            IntegrityError: The payload cannot be read.
        """
        failure: GeminiError | None = None
        small: dict[str, Any] = {}
        try:
            small = small_state.unfold(decode_framed(payload))
            self._require_fit(small, len(payload))
        except GeminiError as error:
            failure = error
        self._agree(failure)
        self._load_tensors(payload, small["present"])
        self._partitions.publish()
        small_state.restore(small, self._partitions, self.script)
        if small.get("at_top"):
            self._restored = framed(payload)
        return dict(small["extra"])

    def restore_small_again(self) -> None:
        """Undo what was done to the small state since `load`, but for the positions in the data.

        For the top of the script's loop, if the version was captured there: what the script does
        between `load` and its loop belongs to no iteration. At any other time it does nothing.
        """
        if self._restored is not None:
            small = small_state.unfold(decode_framed(self._restored))
            small_state.restore(small, self._partitions, self.script, with_data=False)
        self._restored = None

    # -- form --------------------------------------------------------------------------------

    def _lay_slots(self) -> Iterator[tuple[int, str, torch.dtype]]:
        """Each tensor of the payload: its partition, its name in it, its type."""
        for partition, master in enumerate(self._partitions.masters()):
            yield partition, _MASTER, master.dtype
            state: Mapping[str, Any] = self._partitions.base.state.get(master, {})
            for name, dtype in self._partitions.moments(partition).items():
                existing = state.get(name)
                yield partition, name, dtype if existing is None else existing.dtype

    def _lay_out(self, small_capacity_bytes: int | None) -> ShardLayout:
        module, masters = self._engine.module, self._partitions.masters()
        named = dict(module.named_parameters())
        trained = {id(weight) for weight in self._partitions.weights()}
        frozen = {name: weight for name, weight in named.items() if id(weight) not in trained}
        if small_capacity_bytes is None:
            buffers_bytes = sum(b.nbytes for _, b in small_state.persistent_buffers(module))
            small_capacity_bytes = MIB + buffers_bytes + 256 * len(named) + self.script.room_bytes
        forms = [
            (f"{partition}.{name}", str(dtype).removeprefix("torch."), masters[partition].shape)
            for partition, name, dtype in self._slots
        ]
        tensors = lay_out(forms, start_bytes=small_capacity_bytes)
        numbers = [index for index, slot in enumerate(self._slots) if slot[1] == _MASTER]
        return ShardLayout(
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            stage=int(self._engine.zero_optimization_stage()),
            optimizer=type(self._partitions.base).__name__,
            tensors=tensors,
            small_offset_bytes=0,
            small_capacity_bytes=small_capacity_bytes,
            payload_bytes=tensors[-1].offset_bytes + tensors[-1].size_bytes,
            weights={
                n: tuple(getattr(w, "ds_shape", w.shape))
                for n, w in named.items()
                if n not in frozen
            },
            pieces=tuple(self._partitions.pieces(numbers)),
            aliases=aliases(module),
            frozen=tuple(frozen),
            frozen_digest=digest_over_ranks(list(frozen.values())) if frozen else "",
        )

    def _tensor(self, index: int) -> torch.Tensor | None:
        """A live tensor of the payload; None if the optimizer has not made it yet."""
        partition, name, _ = self._slots[index]
        master = self._partitions.masters()[partition]
        state: Mapping[str, Any] = self._partitions.base.state.get(master, {})
        return master if name == _MASTER else state.get(name)

    def _checked(self, index: int, spec: TensorSpec) -> torch.Tensor:
        tensor = self._tensor(index)
        if tensor is None:
            zeros = torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))
            return self._zeros.setdefault(index, zeros)
        self._zeros.pop(index, None)
        if (tuple(tensor.shape), str(tensor.dtype)) != (spec.shape, f"torch.{spec.dtype}"):
            raise UnsupportedError(
                f"{spec.name} became {tensor.dtype} {[*tensor.shape]}, but was laid out as "
                f"{spec.dtype} {[*spec.shape]}; leave the optimizer's state as its class makes it"
            )
        return tensor.detach()

    # -- out and back in ---------------------------------------------------------------------

    def _require_boundary(self) -> None:
        engine = self._engine
        steps: int = engine.gradient_accumulation_steps()
        if engine.managed_gradient_accumulation() and engine.micro_steps % steps:
            raise UnsupportedError(
                f"a version was asked for after {engine.micro_steps % steps} of {steps} "
                "micro-batches; call capture_small right after the step() that updates the weights"
            )

    def _require_fit(self, small: Mapping[str, Any], size_bytes: int) -> None:
        """Refuse a version that does not fit this engine and this script."""
        require_same(decode(zlib.decompress(small["identity"])), self.layout.identity)
        if size_bytes != self.layout.payload_bytes:
            raise IntegrityError(
                f"the payload has {size_bytes} bytes, its layout {self.layout.payload_bytes}; "
                "take another copy"
            )
        self.script.require_fit(small)
        for what, stored, current in (
            ("a client state", small["client"], self.script.client_state),
            ("a learning rate scheduler", small["scheduler"], self._engine.lr_scheduler),
        ):
            if (stored is None) != (current is None):
                where = ("the script", "the version")[:: 1 if stored is None else -1]
                raise ConfigError(
                    f"{where[0]} has {what}, {where[1]} has none; start the script as it was"
                )

    def _agree(self, failure: GeminiError | None) -> None:
        """Go on if no rank failed; otherwise raise on all of them, so that none waits."""
        device = get_accelerator().current_device_name()
        failed = torch.tensor([int(failure is not None)], device=device)
        dist.all_reduce(failed)
        if failure is not None:
            raise failure
        if int(failed):
            raise ConfigError(
                f"this rank's shard fits, but {int(failed)} of {dist.get_world_size()} ranks "
                "cannot load theirs; their own messages say why"
            )

    def _load_tensors(self, payload: Payload, present: Sequence[bool]) -> None:
        """Copy the payload's tensors over the live ones, made or dropped as they were then."""
        masters, states = self._partitions.masters(), self._partitions.base.state
        for index, (spec, is_present) in enumerate(zip(self.layout.tensors, present, strict=True)):
            partition, name, dtype = self._slots[index]
            master = masters[partition]
            if not is_present:
                states.get(master, {}).pop(name, None)
                continue
            target = self._tensor(index)
            if target is None:
                target = states[master][name] = torch.empty_like(master.detach(), dtype=dtype)
            target.data.copy_(_view(payload, spec))


def _view(payload: Payload, spec: TensorSpec) -> torch.Tensor:
    """One tensor of a payload, in place; not to be written."""
    dtype = getattr(torch, spec.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the payload may be read-only
        flat = torch.frombuffer(
            payload,
            dtype=dtype,
            count=spec.size_bytes // dtype.itemsize,
            offset=spec.offset_bytes,
        )
    return flat.view(spec.shape)
