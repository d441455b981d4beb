"""Plain PyTorch goes on, bit by bit, with the numbers of a run that never stopped."""

import math
from itertools import pairwise

import pytest

pytestmark = pytest.mark.slow

CASES = [
    {"parallel": "DDP", "optimizer": "AdamW"},
    {"parallel": "DDP", "optimizer": "Adam", "accumulation": 2},
    {"parallel": "DDP", "optimizer": "momentum"},
    {"parallel": "DDP", "optimizer": "Counting"},
    {"parallel": "DDP", "optimizer": "Adafactor"},
    {"parallel": "FSDP2", "optimizer": "AdamW"},
    {"parallel": "FSDP2", "optimizer": "momentum", "accumulation": 2},
    {"parallel": "FSDP2", "optimizer": "Adagrad"},
    {"parallel": "HSDP", "optimizer": "AdamW", "ranks": 4},
    *[
        {"parallel": "none", "optimizer": name, "ranks": 1}
        for name in ("fused AdamW", "SGD", "Adagrad", "RMSprop", "NAdam", "Counting")
    ],
]


def named(case):
    return "-".join(str(value) for value in case.values())


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_restored_job_goes_on_with_the_numbers_of_one_that_never_stopped(
    torch_server, tmp_path, case
):
    ranks = case.get("ranks", 3)
    whole = torch_server.run(tmp_path, case=case, ranks=ranks, wanted=[3])
    resumed = torch_server.run(tmp_path, case=case, ranks=ranks, seed=50, load=3)
    for before, after in zip(whole, resumed, strict=True):
        assert len(before["losses"]) == 7
        assert after["losses"] == {n: loss for n, loss in before["losses"].items() if int(n) > 3}
        assert after["layout"] == before["layout"]
        assert before["remarks"] == after["remarks"] == []


def test_what_ddp_replicates_is_shared_out_and_what_a_rank_has_alone_is_not(torch_server, tmp_path):
    """AdamW keeps three times the weights; nothing but the small state comes beside."""
    for parallel, share in (("DDP", 1 / 3), ("FSDP2", 1), ("none", 1)):
        case = {"parallel": parallel, "optimizer": "AdamW"}
        for found in torch_server.run(tmp_path, case=case):
            layout = found["layout"]
            large = layout["payload_bytes"] - layout["small_capacity_bytes"]
            local = found["weights"] if parallel != "FSDP2" else found["local"]
            assert 3 * share * local <= large <= 3 * share * local + 1024


def test_the_weights_of_all_ranks_parts_are_the_model(torch_server, tmp_path):
    for parallel in ("DDP", "FSDP2", "none"):
        case = {"parallel": parallel, "optimizer": "SGD"}
        layouts = [found["layout"] for found in torch_server.run(tmp_path, case=case)]
        for name, shape in layouts[0]["weights"].items():
            pieces = [p for one in layouts for p in one["pieces"] if p["weight"] == name]
            runs = sorted((p["weight_offset"], p["weight_offset"] + p["numel"]) for p in pieces)
            assert runs[0][0] == 0
            assert runs[-1][1] == math.prod(shape)
            assert all(a[1] == b[0] for a, b in pairwise(runs))


def test_ranks_that_come_apart_under_ddp_are_noticed_after_the_update(torch_server, tmp_path):
    case = {"parallel": "DDP", "optimizer": "AdamW", "break_ranks": True}
    with pytest.raises(RuntimeError) as caught:
        torch_server.run(tmp_path, case=case)
    words = "UnsupportedError: DDP's ranks differ after update 2: 'parameter.data' of rank 1 is not"
    assert words in str(caught.value)


def test_another_way_to_share_the_model_is_refused_at_the_restore(torch_server, tmp_path):
    torch_server.run(tmp_path, case={"parallel": "DDP", "optimizer": "SGD"}, wanted=[3])
    with pytest.raises(RuntimeError, match="parallelism: DDP then, FSDP2 now"):
        torch_server.run(tmp_path, case={"parallel": "FSDP2", "optimizer": "SGD"}, load=3)


def test_a_version_from_before_the_first_update_can_be_restored(torch_server, tmp_path):
    """The optimizer has no state then; DDP's buckets are those of the start."""
    case = {"parallel": "DDP", "optimizer": "AdamW"}
    whole = torch_server.run(tmp_path, case=case, wanted=[0])
    resumed = torch_server.run(tmp_path, case=case, seed=50, load=0)
    assert [one["losses"] for one in resumed] == [one["losses"] for one in whole]
