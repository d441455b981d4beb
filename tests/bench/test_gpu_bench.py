"""The `gpu` bench: refuses without a GPU; what it does on one is tried here with CPU tensors."""

import json

import pytest
import torch

from gemini_lab.errors import ConfigError
from gemini_lab.training.gpt import named_size
from gemini_lab_bench.benches.gpu import (
    PEERS,
    GpuTraining,
    PinnedKeeper,
    bench,
    one_turn,
    rows,
    rows_of_peers,
)
from gemini_lab_bench.benches.gpu_steps import STEPS, HostLanes, every_step, run_step


@pytest.fixture
def training():
    return GpuTraining(named_size("tiny"), device="cpu", batch=1, block=8)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_bench_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="run it on a machine with one"):
        bench(1)


def test_a_version_is_the_state_before_the_next_update_in_12_bytes_a_parameter(training) -> None:
    with PinnedKeeper(training, lanes=HostLanes(), pinned=False) as keeper:
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
    with PinnedKeeper(training, lanes=HostLanes(), pinned=False) as keeper:
        turn = one_turn(training, keeper, iterations=2, counted=1)
        assert len(keeper.moved) == 2 + 2 + 1
    found = {row.name: row for row in rows([turn], training)}
    assert found["interleaved / none"].values == (turn["interleaved"] / turn["none"],)
    assert found["a version / bus"].values == (turn["bus"] / turn["a version"],)
    added = 1e3 * (turn["blocking"] - turn["none"])
    assert found["blocking: added"].values == (pytest.approx(added),)
    assert {"none", "blocking", "interleaved"} < set(found)
    assert found["none"].settings["checkpoint_bytes"] == 12 * training.params


def test_each_other_system_has_a_value_or_says_why_it_has_none(training) -> None:
    found = {row.name: row for row in rows_of_peers(training)}
    assert set(PEERS) <= set(found)
    assert found["DCP async / none"].values[0] > 0
    for name in PEERS:
        assert found[name].values or "No module named" in found[name].why_not


OF_RUNS = ("restart", "two workers")


@pytest.mark.parametrize("step", [step for step in STEPS if step not in OF_RUNS])
def test_a_step_tells_values_on_cpus_and_no_reason_for_none_but_a_package_that_is_absent(
    step,
) -> None:
    told = run_step(step, 300.0, is_tiny=True)
    assert told
    assert all("No module named" in row.why_not for row in told if not row.values)


@pytest.mark.parametrize("step", OF_RUNS)
def test_a_step_with_a_real_run_tells_that_its_losses_were_the_same(step) -> None:
    told = {row.name: row for row in run_step(step, 300.0, is_tiny=True)}
    same = [row.values for name, row in told.items() if name.endswith("bit-identical")]
    assert len(same) == (2 if step == "restart" else 1)
    assert set(same) == {(1.0,)}


def test_a_step_that_takes_too_long_is_ended_and_said(tmp_path, monkeypatch) -> None:
    work, _ = STEPS["register"]
    monkeypatch.setattr("gemini_lab_bench.benches.gpu_steps.STEPS", {"register": (work, 0.005)})
    every_step(is_tiny=True, lines=tmp_path / "lines.jsonl")
    [line] = (tmp_path / "lines.jsonl").read_text().splitlines()
    assert json.loads(line)["why_not"].startswith("it took longer than its 0 s")
