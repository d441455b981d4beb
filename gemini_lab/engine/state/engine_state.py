"""A training job's model states as one shard: what GEMINI keeps (paper, section 2.1).

The large part are the master weights and the optimizer's tensors. They do not change between two
optimizer steps, so they are given out as live references and copied while the next iteration
computes. The small part (counters, schedule, random states, data position, the user's own objects)
changes at any time and is captured as bytes when the next iteration begins. What of it is drawn,
and so may be of either iteration, can be captured before.
"""

import warnings
import zlib
from collections.abc import Sequence

import torch

from gemini_lab.engine.contract import Engine, StateDict, StateView, WorldChange
from gemini_lab.engine.frameworks.framework import Framework, Pieces
from gemini_lab.engine.frameworks.optimizer_state import require_both
from gemini_lab.engine.frameworks.resize_state import Heir
from gemini_lab.engine.frameworks.tensors import aliases, digest_over_ranks, sum_over_ranks
from gemini_lab.engine.frameworks.torch_engine import TorchEngine
from gemini_lab.engine.frameworks.torch_framework import TorchFramework
from gemini_lab.engine.frameworks.zero_framework import deepspeed_framework
from gemini_lab.engine.rank_agreement import JointOutcome, gather, word_of
from gemini_lab.engine.state import small_state
from gemini_lab.engine.state.rehearsal import left_alone, named, require_put_back
from gemini_lab.engine.state.script_state import ScriptState
from gemini_lab.errors import (
    CapacityError,
    GeminiError,
    IntegrityError,
    UnsupportedError,
)
from gemini_lab.seats import listed
from gemini_lab.shard.codec import decode, decode_framed, encode, encode_framed
from gemini_lab.shard.layout import ShardLayout, lay_out, require_same
from gemini_lab.units import MIB, format_bytes

Payload = bytes | bytearray | memoryview


class EngineState:
    """The shard of one rank: how it lies in memory, out of it and back in.

    All ranks make one together, when model and optimizer are made.

    Raises:
        UnsupportedError: The engine has state that would not be kept; says what to change.
    """

    def __init__(self, engine: Engine, *, script: ScriptState | None = None) -> None:
        self._engine = engine
        self.framework = framework_of(engine)
        self.script = ScriptState() if script is None else script
        self.layout: ShardLayout = self._lay_out()  # the form of this rank's payload
        loaders = gather([len(self.script.watches)])
        # Whether all ranks handed over equally many loaders.
        self.is_data_even = all(count == loaders[0] for count in loaders)
        self._parts = small_state.ModelParts(self.framework.module)
        # It travels with each version and lists every weight, so it is kept small, and made once.
        self._identity = zlib.compress(encode(self.layout.identity))
        # Set when a version of another number of ranks was taken over.
        self.world_changed: WorldChange | None = None
        self._restored: Payload | None = None  # until the loop is reached that made it

    @property
    def version(self) -> int:
        return int(self._engine.global_steps)

    def pieces(self) -> Pieces:
        """Return the large part: live tensors, the same until the next step, with their places."""
        return self.framework.pieces(self.layout.tensors)

    def capture_drawn(self) -> bytes:
        """Capture the small state that may be of either iteration; for `capture_small`."""
        return encode(self.script.drawn())

    def capture_small(
        self,
        # Whatever else should travel with this version; `load` returns it.
        extra: StateView | None = None,
        *,
        # What `capture_drawn` gave before; by default it is captured now.
        drawn: bytes | None = None,
        at_top: bool = False,  # the script is at the top of its loop; see `restore_again`
    ) -> bytes:
        """Return the small part as bytes, between two iterations; they say their own length.

        Raises:
            UnsupportedError: It is no time for it (gradients are being accumulated), an object
                in it cannot be stored, or the model has other parts than at first.
            CapacityError: It outgrew its room.
        """
        self.framework.require_boundary()
        self._parts.require_same()
        drawn = self.capture_drawn() if drawn is None else drawn
        small = small_state.capture(self.framework, self.script, drawn)
        small["identity"] = self._identity
        small["present"] = self.framework.present()
        small["extra"] = dict(extra or {})
        small["at_top"] = at_top
        small["batch"] = self.batch
        return self._within_room(encode_framed(small))

    def _within_room(self, encoded: bytes) -> bytes:
        room_bytes = self.layout.small_capacity_bytes
        if len(encoded) > room_bytes:
            raise CapacityError(
                f"the small state takes {format_bytes(len(encoded))}, its room is "
                f"{format_bytes(room_bytes)}; keep large objects out of client_state and the data "
                "position, or hand them to `protect`, and make the model's buffers before it, in "
                "the size that they will have"
            )
        return encoded

    def load(self, payload: Payload, *, in_place: bool = False) -> StateDict:
        """Put a version back, so that the numbers that follow are those of a run that went on.

        All ranks call it together, each with its own shard of one version. Nothing is changed on
        any rank if one of them finds that its shard does not fit.

        Args:
            payload: Its bytes; they stay what they are until `restore_again`.
            in_place: Whether the script reads on with the iterators that it has, and is at the top
                of its loop.

        Returns:
            What `capture_small` was given as `extra`.

        Raises:
            ConfigError: The model, its optimizer or the script changed since, here or elsewhere.
            IntegrityError: The payload cannot be read.
        """
        verdict, small = JointOutcome(), StateDict()
        with verdict.withheld():
            small = small_state.unfold(decode_framed(payload))
            self._require_fit(small, len(payload))
        is_new_anywhere = self._agree(verdict, in_place=in_place)
        self._put_back(payload, small, in_place=in_place)
        self._restored = payload if small.get("at_top") and is_new_anywhere else None
        return dict(small["extra"])

    def rehearse(self, room: Payload) -> None:
        """Make a version in this room, load it into what it was made of, and compare.

        So what would not come back after a failure is refused before there is one. All ranks call
        it together, between two iterations. It changes nothing; data stay where they are.

        Raises:
            UnsupportedError: Something does not come back as it was, here or on another rank.
        """
        verdict = JointOutcome()
        with verdict.withheld():
            drawn = encode({"data": [], "seeds": [], **self.script.others()})
            small, flat = bytearray(self.capture_small(drawn=drawn)), _flat(room)
            for start, part in [(0, _flat(small)), *self.pieces()]:
                flat[start : start + part.nbytes].copy_(part.detach().view(torch.uint8))
        verdict.agree()
        schedule = getattr(self._engine, "lr_scheduler", None)
        things = [*self.framework.optimizers, schedule, *self.script.things]
        with left_alone(things, module=self.framework.module, refilled=self.script.things):
            self._put_back(room, small_state.unfold(decode_framed(room)), with_data=False)

    def _put_back(
        self,
        payload: Payload,
        small: StateView,
        *,
        with_data: bool = True,
        in_place: bool = False,
    ) -> None:
        """Put a version back that fits, and refuse it if what is there then is not the same."""
        framework, script, verdict = self.framework, self.script, JointOutcome()
        flat = _flat(payload)
        values = []
        for spec in self.layout.tensors:
            part = flat[spec.offset_bytes : spec.offset_bytes + spec.size_bytes]
            values.append(part.view(getattr(torch, spec.dtype)).view(spec.shape))
        with verdict.withheld():
            # Others wait in this collective, so an error of this rank's is withheld until all were
            # in it.
            framework.load(values, small["present"])
        # Collective, so outside of the block in which an error of one rank skips the rest.
        small_state.put_orders(small, framework, script)
        with verdict.withheld(), named("the version"):
            small_state.restore(small, framework, script, with_data=with_data, in_place=in_place)
            require_put_back(flat, self.layout, self.pieces())
            small_state.require_put_back(small, framework, script)
        verdict.agree()

    @property
    def batch(self) -> int | None:
        """Return samples of all ranks that make one update; `None` where it is not known."""
        found = self.framework.batch()
        if found is not None or not self.script.watches:
            return found
        dealt = {watch.dealt for watch in self.script.watches}
        return dealt.pop() if len(dealt) == 1 else None

    def recast(
        self,
        layouts: Sequence[ShardLayout],  # of its shards, in order
        smalls: Sequence[Payload],  # their small states, as bytes
        *,
        may_restart: bool,  # whether data may be read anew where their position cannot be told
        keep_batch: bool = False,  # whether the global batch has to be what it was
    ) -> tuple[bytes, list[str]]:
        """Return the small state of a version of another number of ranks, as if captured here.

        Returns:
            The bytes, as `capture_small` gives them, and what the script's author should know.

        Raises:
            ConfigError: Something in it cannot be taken over; says what, and the way out.
            CapacityError: There is too little room for it.
        """
        layout, groups = self.layout, self.framework.groups
        peers = [*range(layout.world_size)] if groups is None else groups.of(layout.rank)
        then = [
            one.rank for one in layouts if one.model_parallel_rank == layout.model_parallel_rank
        ]
        heir = Heir(
            rank=peers.index(layout.rank),
            ranks=len(peers),
            layouts=[layouts[rank] for rank in then],
            model_parallel_size=1 if groups is None else groups.model_parallel_size,
        )
        heir.remark(f"{layout.world_size} ranks go on from a version of {len(layouts)} ranks")
        unfolded = [small_state.unfold(decode_framed(smalls[rank])) for rank in then]
        small = small_state.recast(
            unfolded,
            heir,
            self.framework,
            self.script,
            may_restart=may_restart,
            had_number=then[heir.rank : heir.rank + 1] == [layout.rank],
        )
        small["identity"], small["batch"] = self._identity, small.get("batch", self.batch)
        if keep_batch and (self.script.watches or self.is_data_even):  # as a later stage's are not
            _require_batch(unfolded[0].get("batch"), small["batch"], heir)
        self.world_changed = WorldChange(ranks_then=len(layouts), ranks_now=layout.world_size)
        return self._within_room(encode_framed(small)), heir.remarks

    def take_back(self, payload: Payload, *, with_data: bool) -> StateDict:
        """Put a version of this process back at the loop's top; return its `extra`.

        All ranks call it together, each with its own shard of one version that was sealed there.
        """
        small = small_state.unfold(decode_framed(payload))
        self._put_back(payload, small, with_data=with_data, in_place=True)
        self._restored = None
        return dict(small["extra"])

    def peek(self, payload: Payload) -> StateDict | None:
        """Return the small state in a version; `None` where it cannot be read."""
        try:
            return small_state.unfold(decode_framed(payload))
        except GeminiError:
            return None

    def is_finite(self) -> bool:
        """Return whether this rank's weights, moments and buffers are numbers, all of them."""
        buffers = (buffer for _, buffer in small_state.persistent_buffers(self.framework.module))
        held = (*(tensor for _, tensor in self.pieces()), *buffers)
        real = (torch.view_as_real(one) if one.is_complex() else one for one in held)
        tensors = [tensor for tensor in real if tensor.is_floating_point()]
        if not tensors:
            return True
        # One read-back for all tensors: on a GPU each would wait for the device.
        sums = torch.stack([tensor.sum(dtype=torch.float32) for tensor in tensors])
        # A sum of numbers is one, too, unless it overflows.
        return bool(sums.isfinite().all()) or all(bool(t.isfinite().all()) for t in tensors)

    @property
    def is_to_be_put_back(self) -> bool:
        return self._restored is not None

    def restore_again(self) -> None:
        """Undo what was done since `load`, if the version was captured at the top of a loop.

        For that top: what the script does between `load` and its loop belongs to no iteration. All
        ranks call it together. At any other time it does nothing.
        """
        if self._restored is None:
            return
        payload, self._restored = self._restored, None
        small = small_state.unfold(decode_framed(payload))
        # What the script computed before its loop must not be added to the first iteration.
        self.framework.drop_gradients(is_computing=False)
        self.script.put_data_again(small["data"])
        self._put_back(payload, small, with_data=False)

    def _lay_out(self) -> ShardLayout:
        framework, module = self.framework, self.framework.module
        named = dict(module.named_parameters())
        trained = {id(weight) for weight in framework.trained()}
        frozen = {name: weight for name, weight in named.items() if id(weight) not in trained}
        buffers_bytes = sum(b.nbytes for _, b in small_state.persistent_buffers(module))
        # It has to be the same in every start of a run.
        small_capacity_bytes = MIB + buffers_bytes + 256 * len(named) + self.script.room_bytes
        tensors = lay_out(framework.forms(), start_bytes=small_capacity_bytes)
        last, groups = tensors[-1], framework.groups
        size = groups.model_parallel_size if groups is not None else int(not framework.uneven)
        return ShardLayout(
            rank=framework.rank,
            world_size=framework.world_size,
            stage=framework.stage,
            parallelism=framework.parallelism,
            optimizer=" and ".join(type(one).__name__ for one in framework.optimizers),
            tensors=tensors,
            small_offset_bytes=0,
            small_capacity_bytes=small_capacity_bytes,
            payload_bytes=last.offset_bytes + last.size_bytes,
            weights={
                n: tuple(getattr(w, "ds_shape", w.shape))
                for n, w in named.items()
                if n not in frozen
            },
            pieces=tuple(framework.weight_pieces()),
            aliases=aliases(module),
            frozen=tuple(frozen),
            # On all ranks: another one may have frozen weights, and these are collectives.
            frozen_digest=digest_over_ranks(list(frozen.values())),
            frozen_sum=sum_over_ranks(frozen, groups),
            unplaced=tuple(framework.unplaced()),
            uneven=framework.uneven,
            model_parallel_size=size,
            model_parallel_rank=0 if groups is None else groups.model_parallel_rank(framework.rank),
        )

    def _require_fit(self, small: StateView, size_bytes: int) -> None:
        """Refuse a version that does not fit this engine and this script."""
        require_same(decode(zlib.decompress(small["identity"])), self.layout.identity)
        if size_bytes != self.layout.payload_bytes:
            raise IntegrityError(
                f"the payload has {size_bytes} bytes, its layout {self.layout.payload_bytes}; "
                "take another copy"
            )
        self.script.require_fit(small)
        self.framework.require_fit(small)
        require_both("a client state", stored=small["client"], current=self.script.client_state)

    def _agree(self, verdict: JointOutcome, *, in_place: bool) -> bool:
        """Go on if no rank failed; return whether one has started again, and is before its loop.

        Ranks that know different orders of communication learn theirs again.
        """
        answers = verdict.agree(self.framework.learned_order(), int(in_place))
        orders = {order for order, _ in answers}
        if orders == {0} or len(orders) > 1:
            self.framework.forget_order()
        return not all(is_in_place for *_, is_in_place in answers)


def _require_batch(then: int | None, now: int | None, heir: Heir) -> None:
    """Refuse another global batch than the version was made with, as far as that is known."""
    if then is None or now is None:
        heir.remark(
            "how many samples make an update is not known here: that all ranks together read as "
            "many as before is the script's to see to"
        )
    elif then != now:
        raise heir.refusal(
            f"the global batch would be {now} samples, and was {then}; have the script compute "
            "each rank's batch from the number of ranks (under DeepSpeed: train_batch_size "
            'without a micro-batch), or say "batch_on_resize": "change"'
        )


def framework_of(engine: Engine) -> Framework:
    """Return the view of what is protected; all ranks call it together.

    Raises:
        UnsupportedError: It has state that would not be kept, or ranks train in different ways;
            says what to change, on all ranks.
    """
    verdict, kind = JointOutcome(), 0
    with verdict.withheld():
        framework: Framework = (
            TorchFramework(engine)
            if isinstance(engine, TorchEngine)
            else deepspeed_framework(engine)
        )
        kind = word_of((type(framework), framework.stage))
    kinds = [kind for (kind,) in verdict.agree(kind)]
    if others := [rank for rank, one in enumerate(kinds) if one != kinds[0]]:
        raise UnsupportedError(
            f"ranks {listed(others)} train in another way than rank 0 (with DeepSpeed or in plain "
            "PyTorch, or under another ZeRO stage), so that ranks would call other collectives; "
            "give the same configuration to all ranks"
        )
    framework.meet()
    return framework


def _flat(payload: Payload) -> torch.Tensor:
    """Return a payload's bytes, in place; not to be written where it is read-only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it may be that
        return torch.frombuffer(payload, dtype=torch.uint8)
