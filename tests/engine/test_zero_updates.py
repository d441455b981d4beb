"""Steps of DeepSpeed's ZeRO made again elsewhere give its own bits: schedule, clipping and all."""

import shutil

import pytest

OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
CASES = [
    {"stage": 3, "optimizer": "AdamW", "accumulation": 2, "zero": {"sub_group_size": 50}},
    {"stage": 1, "optimizer": "SGD"},
    {"stage": 2, "optimizer": "Adam", "dtype": "bfloat16"},
    *[
        pytest.param(case, marks=pytest.mark.long)
        for case in (
            {"stage": 3, "optimizer": "Adam", "dtype": "bfloat16"},
            {"stage": 2, "optimizer": "AMSGrad", "tied": True},
            {"stage": 3, "optimizer": "Adam", "frozen": True, "model_seed": 4},
            {"stage": 3, "optimizer": "SGD", "zero": OFFLOAD},
            {"stage": 2, "optimizer": "Adam", "zero": OFFLOAD},
        )
    ],
]


NARROW = [
    {"stage": 2, "optimizer": "Adam", "dtype": "bfloat16", "accumulation": 2},
    {"stage": 3, "optimizer": "AdamW", "dtype": "bfloat16", "zero": {"sub_group_size": 50}},
    pytest.param(
        {"stage": 3, "optimizer": "AdamW", "dtype": "float16", "precision": {"loss_scale": 128}},
        marks=pytest.mark.long,
    ),
]
"""Clipped, as all of these are, and scaled."""


def name(case):
    return "-".join(map(str, case.values()))


@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_step_of_every_rank_is_made_again_to_the_bit(server, tmp_path, case):
    for rank in server.run(tmp_path, case=case, seed=1, repeats=True):
        assert rank["repeated"] == [True] * 6


@pytest.mark.parametrize("case", NARROW, ids=name)
def test_gradients_that_were_reduced_in_two_bytes_are_sent_in_two(server, tmp_path, case):
    wide = {**case, "dtype": "float32"}
    found = server.run(tmp_path, case=case, seed=1, repeats=True)
    for one, other in zip(
        found, server.run(tmp_path, case=wide, seed=1, repeats=True), strict=True
    ):
        assert one["repeated"] == [True] * 6
        numel = sum(
            spec["shape"][0] for spec in one["layout"]["tensors"] if spec["name"].endswith("master")
        )
        saved = other["difference_bytes"] - one["difference_bytes"]
        assert 2 * numel <= saved + 4096 <= 2 * numel + 8192


@pytest.mark.skipif(not shutil.which("g++"), reason="DeepSpeed compiles its own optimizers")
@pytest.mark.long
@pytest.mark.parametrize(("zero", "kind"), [({}, "FusedAdam"), (OFFLOAD, "DeepSpeedCPUAdam")])
def test_deepspeeds_own_adam_is_made_again_with_the_powers_that_its_library_had(
    server, tmp_path, zero, kind
):
    case = {"stage": 3, "optimizer": "FusedAdam", "zero": zero | {"sub_group_size": 50}}
    for rank in server.run(tmp_path, case=case, seed=1, repeats=True, until=30):
        assert rank["layout"]["optimizer"] == kind
        assert rank["repeated"] == [True] * 30


def test_every_step_under_fsdp2_is_made_again_to_the_bit(server, tmp_path):
    """On more ranks than the smallest weights have rows: some have no part of these."""
    for rank in server.run(tmp_path, loop="repeated", case={"engine": "FSDP2"}, ranks=3):
        assert rank["repeated"] == [True] * 6


@pytest.mark.parametrize("engine", ["ZeRO-3", "FSDP2"])
def test_a_step_that_is_verified_is_made_again_as_the_one_step_that_it_is(server, tmp_path, engine):
    """Verifying makes each update once more, on another rank's copies."""
    case = {"engine": engine, "every": 2}
    found = server.run(tmp_path, loop="repeated", case=case, ranks=3)
    assert all(rank["repeated"] == [True] * 6 for rank in found)
    assert found[0]["said"] == ["sums_verified"] * 4


def test_what_ddp_cuts_wherever_the_cut_falls_is_refused(server, tmp_path):
    with pytest.raises(RuntimeError, match=r"UnsupportedError.*DDP.*fully_shard"):
        server.run(tmp_path, loop="repeated", case={"engine": "DDP"}, ranks=2)


def test_a_step_that_overflows_is_no_step_to_be_made_again(server, tmp_path):
    case = {
        "stage": 2,
        "optimizer": "Adam",
        "dtype": "float16",
        "precision": {"initial_scale_power": 30, "loss_scale_window": 2, "hysteresis": 1},
    }
    for rank in server.run(tmp_path, case=case, seed=1, repeats=True, until=20):
        assert set(rank["repeated"]) == {True, None}


def test_somebody_elses_optimizer_is_refused(server, tmp_path):
    with pytest.raises(RuntimeError, match=r"UnsupportedError.*SlowAdam.*AdamW.*copies"):
        server.run(tmp_path, case={"stage": 1, "optimizer": "SlowAdam"}, seed=1, repeats=True)
