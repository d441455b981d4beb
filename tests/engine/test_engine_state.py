"""A restored engine goes on with the very numbers of one that never stopped: real DeepSpeed."""

import math
import shutil
from itertools import pairwise, product

import pytest

from gemini_lab.engine.frameworks.zero import of_blocks, of_release
from gemini_lab.shard.layout import ShardLayout

ONE_A_STAGE = {(1, "SGD", 2), (2, "Adam", 1), (3, "Adam", 2)}
OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
CASES = [
    pytest.param(
        {"stage": stage, "optimizer": optimizer, "accumulation": accumulation},
        marks=() if (stage, optimizer, accumulation) in ONE_A_STAGE else pytest.mark.long,
    )
    for stage in (1, 2, 3)
    for optimizer in ("Adam", "SGD")
    for accumulation in (1, 2)
]
CASES += [{"stage": stage, "optimizer": "Adam", "dtype": "bfloat16"} for stage in (1, 2, 3)]
CASES += [
    {
        "stage": 1,
        "optimizer": "AdamW",
        "dtype": "bfloat16",
        "config": {"data_types": {"grad_accum_dtype": "fp32"}},
    },
    {"stage": 2, "optimizer": "AMSGrad", "tied": True},
    {"stage": 3, "optimizer": "AdamW", "tied": True, "zero": {"sub_group_size": 50}},
    {"stage": 3, "optimizer": "Adam", "frozen": True, "model_seed": 4},
    {"stage": 1, "optimizer": "Adam", "frozen": True, "model_seed": 4},
    *[
        {
            "stage": stage,
            "optimizer": "Adam",
            "dtype": "float16",
            "precision": {"initial_scale_power": 30, "loss_scale_window": 2, "hysteresis": 1},
        }
        for stage in (2, 3)
    ],
    {"stage": 2, "optimizer": "Adam", "zero": OFFLOAD},
    {"stage": 3, "optimizer": "Adam", "zero": OFFLOAD},
    {"stage": 1, "optimizer": "RMSprop"},
    {"stage": 3, "optimizer": "NAdam"},
    {"stage": 1, "optimizer": "SlowAdam"},
    {"stage": 2, "optimizer": "SignMomentum", "dtype": "bfloat16"},
    {"stage": 3, "optimizer": "SignMomentum", "zero": {"sub_group_size": 50}},
    {"stage": 2, "optimizer": "Adagrad", "groups": 1},
    {"stage": 3, "optimizer": "Adagrad", "groups": 1},
    {"stage": 1, "optimizer": "AdamW", "experts": True},
    {"stage": 2, "optimizer": "AdamW", "experts": True, "ranks": 4},
    *[
        {"stage": stage, "optimizer": "AdamW", "width": 16, "ranks": 4, "row": 2, "cut": 2}
        for stage in (1, 2, 3)
    ],
    *[
        {"stage": stage, "optimizer": "AdamW", "stages": 2, "ranks": ranks, "accumulation": 4}
        for stage, ranks in ((0, 4), (1, 4), (0, 2))
    ],
    *[
        {"stage": stage, "optimizer": "SGD", "stages": 2, "accumulation": 2, "again": 1, "seeds": 1}
        for stage in (0, 1)
    ],
    *[
        {"stage": stage, "optimizer": "Adam", "stages": 2, "ranks": 4, "dtype": "bfloat16"}
        for stage in (0, 1)
    ],
    *[
        {"stage": stage, "optimizer": "AdamW", "sequence": 2, "row": 2, "ranks": 4}
        for stage in (1, 2, 3)
    ],
    {"stage": 1, "optimizer": "ZeroMuon"},
    {"stage": 2, "optimizer": "ZeroMuon", "ranks": 3, "accumulation": 2},
    {"stage": 2, "optimizer": "ZeroMuon", "dtype": "bfloat16"},
    {"stage": 3, "optimizer": "ZeroMuon", "ranks": 3, "zero": {"reduce_scatter": False}},
    {"stage": 1, "optimizer": "Adam", "named": True},
    {"stage": 1, "optimizer": "AdamW", "larger": 8},
    {"stage": 3, "optimizer": "AdamW", "larger": 8},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_a_restored_engine_gives_the_losses_of_one_that_never_stopped(server, tmp_path, case):
    ranks = case.get("ranks", 2)
    whole = server.run_once(tmp_path, case=case, ranks=ranks, seed=1, capture_at=3)
    resumed = server.run(tmp_path, case=case, ranks=ranks, seed=99, load=True)
    for before, after in zip(whole, resumed, strict=True):
        assert bool(before["place"]) == bool(before["layout"]["uneven"])
        assert bool(before["layout"]["uneven"]) == bool({"experts", "row", "stages"} & {*case})
        if "width" in case:  # AutoTP has cut it
            assert before["layout"]["weights"]["middle.weight"] == [8, 16]
        assert len(before["updates"]) == 6
        assert after["updates"] == before["updates"][3:]
        assert after["lr"] == before["lr"]
        assert after["client"] == before["client"]
        assert after["restored"]["version"] == 3
        assert after["extra"] == {"note": ["kept", 1]}
        assert after["layout"] == before["layout"]


@pytest.mark.parametrize(
    ("case", "places"),
    [
        ({"stages": 2}, ["pp 0, dp 0", "pp 0, dp 1", "pp 1, dp 0", "pp 1, dp 1"]),
        ({"sequence": 2}, ["sp 0", "sp 1", "sp 0", "sp 1"]),
        (
            {"width": 16, "cut": 2},
            ["dp 0, tp 0", "dp 0, tp 1", "dp 1, tp 0", "dp 1, tp 1"],
        ),
        ({"experts": True}, ["dp 0, ep 0", "dp 1, ep 1", "dp 2, ep 0", "dp 3, ep 1"]),
        ({}, ["", "", "", ""]),
    ],
    ids=["pipeline", "Ulysses", "AutoTP", "MoE", "ZeRO"],
)
def test_a_rank_knows_its_place_among_ranks_that_differ(server, tmp_path, case, places):
    case = {"stage": 1, "optimizer": "AdamW", "row": 2, **case}
    found = server.run(tmp_path, case=case, ranks=4, seed=1, until=1)
    assert [one["place"] for one in found] == places


def test_a_pipeline_under_zero_0_keeps_once_what_a_column_holds(server, tmp_path):
    """AdamW keeps three times the weights; the ranks of a stage hold the same."""
    case = {"stage": 0, "optimizer": "AdamW", "stages": 2}
    found = server.run(tmp_path, case=case, ranks=4, seed=1, until=1)
    layouts = [rank["layout"] for rank in found]
    shapes = [shape for one in layouts[::2] for shape in one["weights"].values()]
    state = 3 * 4 * sum(map(math.prod, shapes))
    kept = sum(one["payload_bytes"] - one["small_capacity_bytes"] for one in layouts)
    assert state <= kept <= state + 64 * sum(len(one["tensors"]) for one in layouts)


@pytest.mark.skipif(not shutil.which("g++"), reason="DeepSpeed compiles its own optimizers")
@pytest.mark.parametrize(
    ("optimizer", "zero", "name"),
    [
        pytest.param("FusedAdam", {}, "FusedAdam", marks=pytest.mark.long),
        ("FusedAdam", OFFLOAD, "DeepSpeedCPUAdam"),
        pytest.param("Lion", OFFLOAD, "DeepSpeedCPULion", marks=pytest.mark.long),
        pytest.param("CPUAdagrad", OFFLOAD, "DeepSpeedCPUAdagrad", marks=pytest.mark.long),
    ],
)
def test_deepspeeds_own_optimizers_are_restored_too(server, tmp_path, optimizer, zero, name):
    case = {"stage": 3, "optimizer": optimizer, "zero": zero}
    # By 25 steps, the powers of its betas that its library multiplies up are not those that it
    # would compute anew.
    whole = server.run(tmp_path, case=case, seed=1, capture_at=25, until=30)
    resumed = server.run(tmp_path, case=case, seed=99, load=True, until=30)
    for before, after in zip(whole, resumed, strict=True):
        assert before["layout"]["optimizer"] == name
        assert after["updates"] == before["updates"][25:]


def test_a_version_from_before_the_first_step_can_be_restored(server, tmp_path):
    case = {"stage": 2, "optimizer": "SGD"}
    whole = server.run(tmp_path, case=case, seed=1, capture_at=0)
    resumed = server.run(tmp_path, case=case, seed=99, load=True)
    stepped = server.run(tmp_path, case=case, seed=99, load=True, steps_before=2)
    for before, *after in zip(whole, resumed, stepped, strict=True):
        assert [found["updates"] for found in after] == [before["updates"]] * 2


@pytest.mark.parametrize("stage", [1, 3])
def test_an_engine_that_already_stepped_can_be_restored(server, tmp_path, stage):
    case = {"stage": stage, "optimizer": "Adam"}
    whole = server.run_once(tmp_path, case=case, seed=1, capture_at=3)
    resumed = server.run(tmp_path, case=case, seed=99, load=True, steps_before=2)
    for before, after in zip(whole, resumed, strict=True):
        assert after["updates"] == before["updates"][3:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": 2}, r"weight last.weight: \[1, 13\] then, \[2, 13\] now"),
        ({"stage": 2}, "ZeRO stage: 1 then, 2 now"),
        ({"optimizer": "SGD"}, "optimizer: AdamW then, SGD now"),
        ({"tied": True}, r"weight again.weight: \[13, 13\] then, none now"),
        ({"frozen": True}, r"frozen weights: \[\] then, \['first.weight', 'first.bias'\] now"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_changed_model_is_refused_with_what_differs(server, tmp_path, change, message):
    case = {"stage": 1, "optimizer": "Adam"}
    server.run_once(tmp_path, case=case, seed=1, capture_at=3)
    with pytest.raises(RuntimeError, match=f"ConfigError: the model or .* changed.*{message}"):
        server.run(tmp_path, case=case | change, seed=1, load=True)


def test_other_frozen_weights_are_refused(server, tmp_path):
    case = {"stage": 3, "optimizer": "Adam", "frozen": True, "model_seed": 4}
    server.run_once(tmp_path, case=case, seed=1, capture_at=3)
    with pytest.raises(RuntimeError, match="checksum of the frozen weights"):
        server.run(tmp_path, case=case | {"model_seed": 5}, seed=1, load=True)


def test_a_payload_that_one_rank_cannot_read_is_refused_by_all(server, tmp_path):
    case = {"stage": 3, "optimizer": "Adam"}
    server.run_once(tmp_path, case=case, seed=1, capture_at=3)
    shard = tmp_path / "shard-1.bin"
    shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(RuntimeError) as caught:
        server.run(tmp_path, case=case, seed=1, load=True)
    assert "IntegrityError: 0 bytes of small state" in str(caught.value)
    assert "rank 1 refuses, so all ranks end: " in str(caught.value)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ({"stage": 0, "optimizer": "Adam"}, 'ZeRO stage 0; set "zero_optimization"'),
        (
            {"stage": 0, "optimizer": "Adam", "stages": 2, "dtype": "float16"},
            'ZeRO stage 0; set "zero_optimization"',
        ),
        ({"stage": 2, "optimizer": "Adagrad"}, "Adagrad with 2 parameter groups"),
        ({"stage": 1, "optimizer": "Muon"}, "the optimizer Muon, which takes flat"),
        ({"stage": 1, "optimizer": "OnebitAdam"}, "the optimizer OnebitAdam, whose errors"),
        (
            {"stage": 3, "optimizer": "Adam", "zero": {"zero_hpz_partition_size": 2}},
            r"hierarchical partitions \(hpZ\)",
        ),
    ],
    ids=["stage 0", "pipeline in fp16", "Adagrad in groups", "Muon", "1-bit Adam", "hpZ"],
)
def test_what_cannot_be_protected_is_refused_with_the_way_out(server, tmp_path, case, message):
    with pytest.raises(RuntimeError, match=f"UnsupportedError: this engine cannot .*{message}"):
        server.run(tmp_path, case=case, seed=1)


def test_blocks_that_no_version_knows_are_refused():
    config = {
        "zero_optimization": {"stage": 2},
        "progressive_layer_drop": {"enabled": True, "theta": 0.5},
        "curriculum_learning": {"enabled": False},
        "quantize_training": {"quantize_groups": 1},
        "compression_training": {"weight_quantization": {}},
        "expert_parallel": {"enabled": True},
    }
    found = [way_out for _, way_out in of_blocks(config)]
    assert found[:2] == ["leave 'compression_training' out", "leave 'progressive_layer_drop' out"]
    assert [way_out[:17] for way_out in found[2:]] == ["use deepspeed.moe"]


@pytest.mark.parametrize(
    ("release", "stage", "device", "is_refused"),
    [
        ("0.19.7", 3, "cpu", True),
        ("0.19.7+cpu", 3, "cpu", True),
        ("0.19.7", 2, "cpu", False),
        ("0.19.7", 3, "cuda", False),
        ("0.19.8", 3, "cpu", False),
        ("0.20", 3, "cpu", False),
    ],
)
def test_a_release_whose_zero_3_computes_with_what_has_not_come_is_refused(
    release, stage, device, is_refused
):
    """It is installed though nobody asked for it: the numbers would be others, unseen."""
    found = [*of_release(release, stage=stage, device=device)]
    assert bool(found) == is_refused
    assert all("deepspeed>=0.19.8" in way_out for _, way_out in found)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("Averaging", "the optimizer Averaging keeps tensors in its attribute 'average'"),
        ("Rows", r"the optimizer Rows keeps 'rows' in the shape \[7\]"),
    ],
)
def test_an_optimizer_whose_state_lies_elsewhere_is_refused(server, tmp_path, optimizer, message):
    with pytest.raises(RuntimeError, match=f"UnsupportedError: {message}"):
        server.run(tmp_path, case={"stage": 2, "optimizer": optimizer}, seed=1)


def test_a_version_in_the_middle_of_gradient_accumulation_is_refused(server, tmp_path):
    case = {"stage": 2, "optimizer": "Adam", "accumulation": 2}
    with pytest.raises(RuntimeError, match="in the middle of 2 micro-batches"):
        server.run(tmp_path, case=case, seed=1, capture_early=True)


def test_a_client_state_that_outgrows_its_room_is_refused_with_the_numbers(server, tmp_path):
    case = {"stage": 2, "optimizer": "Adam"}
    with pytest.raises(
        RuntimeError, match=r"CapacityError: the small state takes 3.0 MiB, its room"
    ):
        server.run(tmp_path, case=case, seed=1, capture_at=0, client={"big": "x" * 3 * 2**20})


def test_every_weight_and_what_is_kept_for_it_lies_in_the_shards_exactly_once(server, tmp_path):
    for stage in (1, 2, 3):
        found = server.run(tmp_path, case={"stage": stage, "optimizer": "SGD"}, seed=1)
        layouts = [ShardLayout.from_json(rank["layout"]) for rank in found]
        assert [ShardLayout.from_json(layout.to_json()) for layout in layouts] == layouts
        for name, state in product(layouts[0].weights, ("", "momentum_buffer")):
            shape = layouts[0].weights[name]
            held = [p for layout in layouts for p in layout.pieces]
            pieces = [p for p in held if (p.weight, p.state) == (name, state)]
            covered = sorted((p.weight_offset, p.weight_offset + p.numel) for p in pieces)
            assert covered[0][0] == 0
            assert covered[-1][1] == math.prod(shape)
            assert all(a[1] == b[0] for a, b in pairwise(covered))
