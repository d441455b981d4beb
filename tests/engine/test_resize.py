"""A version of N ranks goes on with N': the state is the same to the bit, also back at N."""

import pytest
import torch
from safetensors.torch import load_file

from gemini_lab.storage.persistent import PersistentTier

CASES = [
    {"stage": 1, "optimizer": "Adam", "zero": {"round_robin_gradients": True}},
    {"stage": 2, "optimizer": "AMSGrad", "tied": True, "accumulation": 2},
    {
        "stage": 3,
        "optimizer": "AdamW",
        "tied": True,
        "frozen": True,
        "model_seed": 4,
        "zero": {"sub_group_size": 50},
    },
    pytest.param({"stage": 3, "optimizer": "Adam", "dtype": "bfloat16"}, marks=pytest.mark.long),
]


def named(case):
    return "-".join(map(str, case.values()))


@pytest.fixture
def run(server, tmp_path):
    """Trains under DeepSpeed on so many ranks; what each found."""

    def request(**more):
        return server.run(tmp_path, resized=True, version=3, **more)

    return request


def differing(folder, then, now):
    """The tensors whose bytes differ between two versions of as many ranks, padding left out."""
    tiers = [PersistentTier(str(folder / name)) for name in (then, now)]
    found = []
    for shard in range(tiers[0].shards(3)):
        (before, layout), (after, _) = (tier.read_file(3, shard) for tier in tiers)
        for piece in layout.pieces:
            spec = layout.tensors[piece.tensor]
            itemsize = getattr(torch, spec.dtype).itemsize
            start = spec.offset_bytes + piece.tensor_offset * itemsize
            end = start + piece.numel * itemsize
            if before[start:end] != after[start:end]:
                found.append((shard, piece))
    return found


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_version_of_two_ranks_goes_on_with_three_and_back_with_two(run, tmp_path, case):
    undisturbed = run(case=case, ranks=2, seed=1, save="a", until=5)
    wider = run(case=case, ranks=3, seed=77, load="a", save="b", until=4)
    again = run(case=case, ranks=2, seed=99, load="b", save="c", until=5)
    then, now = (load_file(tmp_path / name / "weights.safetensors") for name in "ab")
    assert then.keys() == now.keys()
    assert all(torch.equal(then[name], now[name]) for name in then)
    assert differing(tmp_path, "a", "c") == []
    for found in wider:
        assert (found["restored"], found["ranks_then"]) == (3, 2)
        assert "3 ranks go on from a version of 2 ranks" in found["remarks"]
        assert found["micro_steps"] == 3 * case.get("accumulation", 1)
    assert batch(wider, 0) == batch(undisturbed, 3)
    for before, after in zip(undisturbed, again, strict=True):
        assert after["updates"] == before["updates"][3:]
        assert after["lr"] == before["lr"]


def test_a_batch_size_that_the_script_set_is_that_of_other_ranks_too(run):
    case = {"stage": 2, "optimizer": "Adam", "larger": 24}
    undisturbed = run(case=case, ranks=2, seed=1, save="a", until=4)
    wider = run(case=case, ranks=3, seed=77, load="a", until=4)
    assert wider[0]["micro_steps"] == 3 * 2
    assert len(batch(wider, 0)) == 24
    assert batch(wider, 0) == batch(undisturbed, 3)


@pytest.mark.parametrize(
    "case",
    [
        *[{"stage": stage, "stages": 2, "accumulation": 2, "seeds": True} for stage in (0, 1)],
        pytest.param({"stage": 1, "stages": 2, "dtype": "bfloat16"}, marks=pytest.mark.long),
        pytest.param({"stage": 2, "width": 16, "row": 2, "cut": 2}, marks=pytest.mark.long),
        *[{"stage": stage, "width": 16, "row": 2, "cut": 2} for stage in (1, 3)],
    ],
    ids=named,
)
def test_deepspeeds_stages_and_rows_go_on_with_three_columns_and_back_with_two(run, tmp_path, case):
    """Pipelines and AutoTP: what a rank holds is cut over the ranks of its own group."""
    case = {"optimizer": "AdamW", **case}
    undisturbed = run(case=case, ranks=4, seed=1, save="a", until=5)
    wider = run(case=case, ranks=6, seed=77, load="a", save="b", until=4)
    again = run(case=case, ranks=4, seed=99, load="b", save="c", until=5)
    assert differing(tmp_path, "a", "c") == []
    held = {tuple(found["part"]): found["held"] for found in undisturbed}
    assert {*held} == {(0, 2), (1, 2)}
    assert held[0, 2] != held[1, 2]
    for found in wider:
        assert (found["restored"], found["ranks_then"]) == (3, 4)
        assert found["held"] == held[tuple(found["part"])]
    for before, after in zip(undisturbed, again, strict=True):
        assert after["updates"] == before["updates"][3:]
        assert after["lr"] == before["lr"]


def batch(found, number):
    """The samples of all ranks in an update."""
    return sorted(sample for rank in found for sample in rank["updates"][number][1])


PLAIN = [
    pytest.param({"parallel": "DDP", "optimizer": "Adam"}, marks=pytest.mark.long),
    {"parallel": "DDP", "optimizer": "Adafactor"},
    {"parallel": "FSDP2", "optimizer": "AdamW"},
]


CUT = [
    ({"parallel": "TP x FSDP2", "optimizer": "AdamW", "wide": True}, 4, 6),
    ({"parallel": "TP x HSDP", "optimizer": "momentum", "wide": True}, 4, 6),
    ({"schedule": "Schedule1F1B", "sharded": 2}, 4, 6),
    ({"schedule": "Schedule1F1B", "sharded": 2, "copied": True}, 4, 6),
    ({"schedule": "ScheduleInterleaved1F1B", "sharded": 3}, 4, 8),
]


@pytest.mark.parametrize(
    ("case", "few", "many"), CUT, ids=lambda one: str(one) if isinstance(one, int) else named(one)
)
def test_ranks_that_differ_go_on_with_other_data_parallel_sizes_and_back(
    server, tmp_path, case, few, many
):
    """Each rank's part is resharded in its data-parallel group; a row draws the same."""

    def run(ranks, **more):
        sized = {**case, "batch": 24 // ranks, "dealt": True, "whole": True}
        return server.run(tmp_path, case=sized, plain=True, ranks=ranks, **more)

    undisturbed = run(few, wanted=[3], save_tier="a")
    other = run(many, seed=50, load_tier="a", wanted=[3], save_tier="b")
    again = run(few, seed=90, load_tier="b", wanted=[3], save_tier="c")
    assert differing(tmp_path, "a", "c") == []
    part = {found["layout"]["model_parallel_rank"]: found["wholes"]["3"] for found in undisturbed}
    size = undisturbed[0]["layout"]["model_parallel_size"]
    assert len(part) == size > 1
    for found in other:
        assert min(map(int, found["losses"])) == 4
        assert found["layout"]["model_parallel_size"] == size
        assert found["wholes"]["3"] == part[found["layout"]["model_parallel_rank"]]
    for before, after in zip(undisturbed, again, strict=True):
        assert after["losses"] == {n: loss for n, loss in before["losses"].items() if int(n) > 3}


@pytest.mark.parametrize("case", PLAIN, ids=named)
def test_plain_pytorch_goes_on_with_three_ranks_and_back_with_two(server, tmp_path, case):
    def run(ranks, **more):
        sized = {**case, "batch": 12 // ranks}
        return server.run(tmp_path, case=sized, plain=True, ranks=ranks, **more)

    undisturbed = run(2, wanted=[3], save_tier="a")
    wider = run(3, seed=50, load_tier="a", wanted=[3], save_tier="b")
    again = run(2, seed=90, load_tier="b", wanted=[3], save_tier="c")
    assert differing(tmp_path, "a", "c") == []
    for found in wider:
        assert min(map(int, found["losses"])) == 4
        assert any("are new" in text for text in found["remarks"])
    for before, after in zip(undisturbed, again, strict=True):
        assert after["losses"] == {n: loss for n, loss in before["losses"].items() if int(n) > 3}
