"""A step made again out of its record gives the optimizer's own bits."""

import os
import signal
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made import made

from gemini_lab.engine.frameworks.payload_blocks import WEIGHT, FlatRun
from gemini_lab.engine.gradients.maker_process import Repeater
from gemini_lab.engine.gradients.sent_differences import VersionMaker
from gemini_lab.engine.gradients.update_recorder import (
    TORCH_KINDS,
    RecordedStep,
    UpdateRecorder,
    require_repeatable,
)
from gemini_lab.errors import GeminiError, IntegrityError, UnsupportedError
from gemini_lab.memory.slab import Slab, SlotSpec, bad_chunks, chunk_digest
from gemini_lab.shard.layout import ShardLayout, lay_out

SMALL_ROOM = 128
CHUNK_BYTES = 4096
MOMENTS = {"Adam": ["exp_avg", "exp_avg_sq"], "AdamW": ["exp_avg", "exp_avg_sq"], "SGD": []}


class Trained:
    """An optimizer of some weights, seen as a framework is, and the payloads of its versions."""

    parallelism = "none"
    narrow = None

    def __init__(self, kind, sizes, **options):
        self.weights = [torch.nn.Parameter(torch.randn(size)) for size in sizes]
        groups = [{"params": [weight]} for weight in self.weights]
        self.optimizer = TORCH_KINDS[kind](groups, **options)
        self.engine, self.global_steps = self, 0
        self.names = [WEIGHT, *MOMENTS[kind]]
        self.names += ["max_exp_avg_sq"] * bool(options.get("amsgrad"))
        self.names += ["momentum_buffer"] * bool(options.get("momentum"))
        forms = [
            (f"{number}.{name}", "float32", (size,))
            for number, size in enumerate(sizes)
            for name in self.names
        ]
        tensors = lay_out(forms, start_bytes=SMALL_ROOM)
        self.layout = made(
            ShardLayout,
            stage=3,
            optimizer=kind,
            tensors=tensors,
            small_offset_bytes=0,
            small_capacity_bytes=SMALL_ROOM,
            payload_bytes=tensors[-1].offset_bytes + tensors[-1].size_bytes,
        )

    def updated_tensors(self, layout):
        specs = iter(layout.tensors)
        return [
            (
                weight,
                {
                    name: FlatRun(
                        offset_bytes=spec.offset_bytes, numel=spec.shape[0], dtype=spec.dtype
                    )
                    for name, spec in zip(self.names, specs, strict=False)
                },
            )
            for weight in self.weights
        ]

    def watch_gradients(self):
        return self.narrow

    def step(self, gradients):
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient
        self.optimizer.step()
        self.global_steps += 1

    def payload(self, small=b""):
        """The version as it is now."""
        made = np.zeros(self.layout.payload_bytes, np.uint8)
        made[: len(small)] = np.frombuffer(small, np.uint8)
        for weight, (_, runs) in zip(self.weights, self.updated_tensors(self.layout), strict=True):
            state = self.optimizer.state.get(weight, {})
            for name, run in runs.items():
                value = weight.detach() if name == WEIGHT else state.get(name)
                if value is not None:
                    run.of(made).copy_(value)
        return made


def recorder_of(trained, small_bytes=8):
    return UpdateRecorder(trained, trained.layout, small_bytes=small_bytes, chunk_bytes=CHUNK_BYTES)


def gradients_of(trained, *, scale=1.0):
    return [torch.randn(weight.shape) * scale for weight in trained.weights]


OPTIONS = {
    "Adam": st.fixed_dictionaries({"amsgrad": st.booleans(), "weight_decay": st.floats(0, 0.5)}),
    "AdamW": st.fixed_dictionaries(
        {"weight_decay": st.floats(0, 0.5), "eps": st.sampled_from([1e-8, 1e-3])}
        | {"maximize": st.booleans(), "foreach": st.sampled_from([None, True])}
    ),
    "SGD": st.one_of(
        st.just({}),
        st.fixed_dictionaries(
            {"momentum": st.floats(0.1, 0.99), "weight_decay": st.floats(0, 0.5)}
            | {"nesterov": st.booleans()}
        ),
    ),
}


@pytest.mark.parametrize("kind", OPTIONS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_steps_made_again_give_the_optimizers_own_bits(kind, data):
    """From the very first step on, whatever the schedule does, and with as many threads."""
    torch.manual_seed(data.draw(st.integers(0, 99), label="seed"))
    options = data.draw(OPTIONS[kind], label="options")
    sizes = data.draw(st.lists(st.integers(1, 70), min_size=1, max_size=3), label="sizes")
    trained = Trained(kind, sizes, lr=0.1, **options)
    recorder, repeater = recorder_of(trained), Repeater()
    made = trained.payload()
    for version in range(1, 5):
        rate = data.draw(st.floats(1e-6, 1), label="rate")
        for group in trained.optimizer.param_groups:
            group["lr"] = rate
        trained.step(gradients_of(trained, scale=10.0 ** (version - 2)))
        small = bytes([version] * version)
        difference = recorder.take(version, small)
        repeater.repeat(RecordedStep.decode(difference), made, difference)
        assert bytes(made) == bytes(trained.payload(small))
    recorder.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_tensor_that_several_threads_share_is_updated_by_as_many(threads):
    """Where vectors end and single elements begin is another place for each number of threads."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        trained = Trained("AdamW", [200_003], lr=0.01)
        recorder, made = recorder_of(trained), trained.payload()
        for version in (1, 2):
            trained.step(gradients_of(trained))
            difference = recorder.take(version, b"")
            torch.set_num_threads(2)
            Repeater().repeat(RecordedStep.decode(difference), made, difference)
            assert torch.get_num_threads() == threads
        assert bytes(made) == bytes(trained.payload())
        recorder.close()
    finally:
        torch.set_num_threads(before)


def test_a_gradient_is_a_third_of_what_adam_keeps():
    trained = Trained("Adam", [300_000], lr=0.01)
    recorder = recorder_of(trained)
    assert recorder.room.data.nbytes < 0.36 * trained.layout.payload_bytes
    recorder.close()


def test_half_the_bytes_and_a_scale_say_all_of_a_gradient_that_was_reduced_in_bf16():
    """Where they do not, no difference is said to be one: the version goes in full."""
    torch.manual_seed(3)
    trained = Trained("AdamW", [300_001], lr=0.01)
    trained.narrow = (torch.bfloat16, lambda: scale)
    recorder, repeater, made = recorder_of(trained), Repeater(), trained.payload()
    assert recorder.room.data.nbytes < 0.19 * trained.layout.payload_bytes
    for version, scale in enumerate((1.0, 0.30000001192092896, 2.0**-16), start=1):
        wide = [one.bfloat16().float().mul_(scale) for one in gradients_of(trained)]
        trained.step(wide)
        difference = recorder.take(version, b"")
        repeater.repeat(RecordedStep.decode(difference), made, difference)
        assert bytes(made) == bytes(trained.payload())
    trained.step(gradients_of(trained))  # in bits that bf16 does not have
    assert recorder.take(4, b"") is None
    recorder.close()


def broken_steps():
    """What leaves no record of just one step: what is done, in words."""

    def none(trained):
        trained.global_steps += 1

    def two(trained):
        trained.optimizer.step()
        trained.step(gradients_of(trained))

    def some(trained):
        trained.weights[0].grad = None
        trained.optimizer.step()
        trained.global_steps += 1

    def another(trained):
        trained.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
        trained.optimizer.param_groups[-1]["params"][0].grad = torch.ones(1)
        trained.step(gradients_of(trained))

    return {"no step": none, "two": two, "one of some weights": some, "of other weights": another}


@pytest.mark.parametrize("what", broken_steps())
def test_what_was_not_one_step_of_all_weights_is_not_taken_for_one(what):
    trained = Trained("SGD", [5, 7], lr=0.1)
    recorder = recorder_of(trained)
    trained.step(gradients_of(trained))
    assert recorder.take(1, b"") is not None
    broken_steps()[what](trained)
    assert recorder.take(2, b"") is None
    recorder.close()


def test_a_step_whose_numbers_outgrow_their_room_is_sent_in_full():
    trained = Trained("SGD", [5], lr=0.1)
    recorder = recorder_of(trained)
    trained.step(gradients_of(trained))
    assert recorder.take(1, bytes(200_000)) is None
    recorder.close()


class Own(torch.optim.SGD):
    """Somebody's own."""


@pytest.mark.parametrize("kind", [Own, torch.optim.RMSprop])
def test_an_optimizer_that_is_not_known_is_refused_with_the_way_out(kind):
    weight = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(UnsupportedError, match=f"{kind.__name__}.*AdamW.*copies"):
        require_repeatable(kind([weight], lr=0.1))


def test_a_record_that_is_cut_short_is_refused():
    with pytest.raises(IntegrityError):
        RecordedStep.decode(np.frombuffer(b"\x09" + bytes(20), np.uint8))


def test_what_peers_get_in_its_place_takes_no_memory_where_versions_go_in_full_from_now_on():
    recorder = recorder_of(Trained("SGD", [3]))
    memory = weakref.ref(recorder.room.data)
    recorder.close()
    assert memory() is None


def test_a_process_makes_a_version_in_the_slab_and_says_when_it_cannot_or_is_gone():
    """One process for all of it, for it imports a lot before it is ready."""
    torch.manual_seed(2)
    trained = Trained("AdamW", [3001, 5], lr=0.1)
    recorder = recorder_of(trained)
    size = trained.layout.payload_bytes
    slab = Slab.create([SlotSpec(3, size)], chunk_bytes=CHUNK_BYTES)
    maker = VersionMaker(
        slab,
        difference_bytes=recorder.room.data.nbytes,
        chunk_bytes=CHUNK_BYTES,
        kind=recorder.kind,
    )
    buffer = slab.begin(3, 0)
    buffer.data[:] = trained.payload()
    for index in range(buffer.chunk_count(size)):
        buffer.seal_chunk(index)
    buffer.commit(size)
    maker.wait_until_ready(120)

    trained.step(gradients_of(trained))
    maker.room.data[:] = recorder.take(1, b"small")
    into = slab.begin(3, 1)
    maker.begin(slab.read(3, 0), into)
    digests = maker.finish()
    expected = trained.payload(b"small")
    assert bytes(into.data) == bytes(expected)
    assert not bad_chunks(bytes(expected), digests, CHUNK_BYTES, chunk_digest(digests.tobytes()))

    maker.room.data[:100] = 255  # no record at all
    maker.begin(slab.read(3, 0), into)
    with pytest.raises(IntegrityError, match="cannot be read"):
        maker.finish()
    assert maker.is_ready

    os.kill(maker.pid, signal.SIGKILL)
    maker.begin(slab.read(3, 0), into)
    with pytest.raises(GeminiError, match="ended"):
        maker.finish()
    assert maker.is_lost
    assert not maker.is_ready
    slab.close()
    recorder.close()
