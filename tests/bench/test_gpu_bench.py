"""The `gpu` bench: refuses without a GPU; what it does on one is tried here with CPU tensors."""

import pytest
import torch

from gemini_lab.errors import ConfigError
from gemini_lab.training.gpt import named_size
from gemini_lab_bench.benches.gpu import GpuTraining, PinnedKeeper, bench, one_turn, rows


class AtOnce:
    """Lanes that do everything as soon as they are told to."""

    def room(self, size_bytes):
        return torch.zeros(size_bytes, dtype=torch.uint8)

    home = room

    def copy(self, _lane, target, source):
        target.copy_(source)

    def enter_thread(self):
        pass

    def require_here(self, _tensors):
        pass

    def mark(self, _lane):
        return None

    def follow(self, _lane, _mark):
        pass

    def finish(self, _mark):
        pass


@pytest.fixture
def training():
    return GpuTraining(named_size("tiny"), device="cpu", batch=1, block=8)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_bench_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="run it on a machine with one"):
        bench(1)


def test_a_version_is_the_state_before_the_next_update_in_12_bytes_a_parameter(training) -> None:
    with PinnedKeeper(training, lanes=AtOnce(), pinned=False) as keeper:
        assert keeper.size_bytes == 12 * training.params
        keeper.start()
        training.gradients()
        expected = b"".join(t.numpy().tobytes() for _, t in training.state())
        keeper.wait()
        training.update()
        copy = keeper.slab.read(0, 1)
        assert copy.bad_chunks() == []
        assert bytes(copy.data[: keeper.size_bytes]) == expected


def test_a_turn_measures_every_way_and_both_rates(training) -> None:
    with PinnedKeeper(training, lanes=AtOnce(), pinned=False) as keeper:
        turn = one_turn(training, keeper, iterations=2, counted=1)
        assert len(keeper.moved) == 2 + 2 + 1
    found = {row.name: row for row in rows([turn], training)}
    assert found["interleaved / none"].values == (turn["interleaved"] / turn["none"],)
    assert found["a version / bus"].values == (turn["bus"] / turn["a version"],)
    assert {"none", "blocking", "interleaved", "DCP async"} < set(found)
    assert found["none"].settings["checkpoint_bytes"] == 12 * training.params
