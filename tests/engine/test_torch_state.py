"""Plain PyTorch goes on, bit by bit, with the numbers of a run that never stopped."""

import math
from itertools import product

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.storage.export import export_weights

CASES = [
    {"parallel": "DDP", "optimizer": "AdamW"},
    {"parallel": "DDP", "optimizer": "Adam", "accumulation": 2},
    {"parallel": "DDP", "optimizer": "momentum"},
    {"parallel": "DDP", "optimizer": "Counting"},
    {"parallel": "DDP", "optimizer": "Adafactor"},
    {"parallel": "FSDP2", "optimizer": "AdamW", "evaluated": True},
    {"parallel": "FSDP2", "optimizer": "momentum", "accumulation": 2},
    {"parallel": "FSDP2", "optimizer": "SGD", "averaged": True},
    {"parallel": "DDP", "optimizer": "AdamW", "half": True},
    {"parallel": "HSDP", "optimizer": "AdamW", "ranks": 4},
    {"parallel": "HSDP", "optimizer": "momentum", "ranks": 4, "averaged": True},
    {"parallel": "DDP of pairs", "optimizer": "AdamW", "ranks": 4},
    {"parallel": "TP", "optimizer": "AdamW", "ranks": 4, "wide": True},
    {"parallel": "TP x FSDP2", "optimizer": "AdamW", "ranks": 4, "wide": True},
    {"parallel": "TP x FSDP2", "optimizer": "momentum", "ranks": 4, "wide": True},
    {"parallel": "CP x FSDP2", "optimizer": "AdamW", "ranks": 4, "context": True},
    {"parallel": "FSDP2", "optimizer": "Muon", "ranks": 2, "matrices": True},
    {"parallel": "TP x FSDP2", "optimizer": "Muon", "ranks": 4, "matrices": True},
    {"parallel": "DDP", "optimizer": "SGD", "sparse": True},
    {"parallel": "DDP", "optimizer": "SGD", "late": True},
    {"parallel": "DDP", "optimizer": "momentum", "critic": True},
    {"parallel": "FSDP2", "optimizer": "momentum", "thawed": True, "ranks": 2},
    {"parallel": "none", "optimizer": "momentum", "ranks": 1, "thawed": True},
    *[
        {"parallel": "none", "optimizer": name, "ranks": 1}
        for name in ("fused AdamW", "SGD", "Adagrad", "RMSprop", "NAdam", "Counting")
    ],
]


@pytest.fixture
def run(server, tmp_path):
    """Trains on three ranks, or as many as a case says; what each found."""

    def request(*, case, once=False, **more):
        run = server.run_once if once else server.run
        return run(tmp_path, case=case, plain=True, ranks=case.get("ranks", 3), **more)

    return request


def named(case):
    return "-".join(str(value) for value in case.values())


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_restored_job_goes_on_with_the_numbers_of_one_that_never_stopped(run, case):
    whole = run(case=case, wanted=[3], once=True)
    resumed = run(case=case, seed=50, load=3)
    for before, after in zip(whole, resumed, strict=True):
        assert len(before["losses"]) == 7
        assert any(len(tries) > 1 for tries in before["losses"].values()) == case.get("half", False)
        assert after["losses"] == {n: loss for n, loss in before["losses"].items() if int(n) > 3}
        assert after["layout"] == before["layout"]
        assert before["remarks"] == after["remarks"] == []


def test_a_loader_on_one_rank_alone_is_refused_by_all_in_a_loop_over_epochs(run):
    """There the loader tells where an iteration ends: the others would wait elsewhere."""
    with pytest.raises(RuntimeError) as caught:
        run(case={"parallel": "DDP", "optimizer": "SGD", "ranks": 2, "alone": True})
    assert str(caught.value).count("UnsupportedError: only some ranks handed loaders") == 2 * 2


@pytest.fixture(scope="module")
def found(server, tmp_path_factory):
    """What the ranks of a job found, by how they share its model."""
    folder = tmp_path_factory.mktemp("found")
    return {
        name: server.run(folder, case={"parallel": name, "optimizer": "AdamW"}, plain=True, ranks=3)
        for name in ("DDP", "FSDP2", "none")
    }


@pytest.mark.parametrize(("parallel", "share"), [("DDP", 1 / 3), ("FSDP2", 1), ("none", 1)])
def test_what_ddp_replicates_is_shared_out_and_what_a_rank_has_alone_is_not(found, parallel, share):
    """AdamW keeps three times the weights; nothing but the small state comes beside."""
    for rank in found[parallel]:
        layout, large = rank["layout"], 3 * share * rank["local"]
        size = layout["payload_bytes"] - layout["small_capacity_bytes"]
        assert large <= size <= large + 1024


@pytest.mark.parametrize(
    "case",
    [
        {"parallel": "HSDP", "optimizer": "AdamW", "ranks": 4},
        {"parallel": "TP", "optimizer": "AdamW", "ranks": 4, "wide": True},
        {"parallel": "TP x FSDP2", "optimizer": "AdamW", "ranks": 4, "wide": True},
    ],
    ids=named,
)
def test_what_a_mesh_replicates_is_kept_once_for_all_that_hold_it(run, case):
    """AdamW keeps three times the weights; a plain tensor in a model that is cut is each rank's."""
    ranks = run(case=case, wanted=[3], once=True)
    large = 3 * sum({key: size for rank in ranks for key, size in rank["held"].items()}.values())
    every = sum(size for rank in ranks for size in rank["held"].values())
    assert large < 3 * every
    kept = sum(
        rank["layout"]["payload_bytes"] - rank["layout"]["small_capacity_bytes"] for rank in ranks
    )
    blocks = sum(len(rank["layout"]["tensors"]) for rank in ranks)
    assert large * 0.97 <= kept <= large + 64 * blocks


def test_a_version_of_the_2d_example_has_the_models_state_once(run):
    """With m copies it is kept m times: in the owner's memory, and at its peers."""
    ranks = run(case={"parallel": "TP x FSDP2", "optimizer": "AdamW", "ranks": 4, "example": True})
    weights = ranks[0]["layout"]["weights"]
    state = 3 * 4 * sum(math.prod(shape) for shape in weights.values())
    kept = sum(
        rank["layout"]["payload_bytes"] - rank["layout"]["small_capacity_bytes"] for rank in ranks
    )
    blocks = sum(len(rank["layout"]["tensors"]) for rank in ranks)
    assert state <= kept <= state + 64 * blocks


def test_a_version_of_parts_that_a_mesh_cuts_is_no_model_to_export(run, tmp_path):
    case = {"parallel": "TP", "optimizer": "SGD", "ranks": 4, "wide": True}
    run(case=case, wanted=[3], save_tier="tier")
    with pytest.raises(ConfigError, match=r"parts of weights that a device mesh cuts .*--resume"):
        export_weights(tmp_path / "tier", to=tmp_path / "model.pt")


def test_ranks_that_hold_other_tensors_than_they_share_are_refused_on_all_ranks(run):
    case = {"parallel": "DDP of pairs", "optimizer": "AdamW", "ranks": 4, "fewer": [3]}
    with pytest.raises(RuntimeError) as caught:
        run(case=case)
    words = "UnsupportedError: 2 ranks are to hold the same tensors under DDP, and ranks 1, 3 of"
    assert str(caught.value).count(words) == 2 * 4  # each tells its trace, too


def test_ranks_of_a_pair_that_come_apart_end_all_ranks(run):
    case = {"parallel": "DDP of pairs", "optimizer": "AdamW", "ranks": 4, "break_ranks": 2}
    with pytest.raises(RuntimeError) as caught:
        run(case=case)
    words = "UnsupportedError: DDP's ranks differ after update 2:"
    assert str(caught.value).count(words) == 2 * 4  # each tells its trace, too


def test_another_model_on_one_rank_is_refused_at_the_restore(run, tmp_path):
    """Each rank's version says what that rank holds."""
    case = {"parallel": "DDP of pairs", "optimizer": "SGD", "ranks": 4}
    run(case=case, wanted=[3], once=True)
    shards = [tmp_path / f"shard-{rank}-3.bin" for rank in range(4)]
    first, second = shards[0].read_bytes(), shards[1].read_bytes()
    for number, payload in enumerate((second, first, second, first)):
        shards[number].write_bytes(payload)
    with pytest.raises(RuntimeError, match=r"weight first\.weight: \[9, 6\] then, \[13, 6\] now"):
        run(case=case, load=3)


@pytest.mark.parametrize(("parallel", "copies"), [("DDP", 1), ("FSDP2", 1), ("none", 3)])
def test_the_weights_of_all_ranks_parts_are_the_model(found, parallel, copies):
    layouts = [rank["layout"] for rank in found[parallel]]
    assert all(one["unplaced"] == [] for one in layouts)
    for name, state in product(layouts[0]["weights"], ("", "exp_avg", "exp_avg_sq")):
        held = [p for one in layouts for p in one["pieces"]]
        pieces = [p for p in held if (p["weight"], p["state"]) == (name, state)]
        runs = sorted((p["weight_offset"], p["weight_offset"] + p["numel"]) for p in pieces)
        size = math.prod(layouts[0]["weights"][name])
        if state and size == 1 and parallel != "FSDP2":  # what has one element is small state
            assert runs == []
            continue
        assert sum(end - start for start, end in runs) == copies * size
        assert covered_to(runs) == size


def covered_to(runs):
    """Up to where runs in order leave nothing out."""
    at = 0
    for start, end in runs:
        assert start <= at
        at = max(at, end)
    return at


def test_ranks_that_come_apart_under_ddp_are_noticed_after_the_update(run):
    case = {"parallel": "DDP", "optimizer": "AdamW", "break_ranks": 2}
    with pytest.raises(RuntimeError) as caught:
        run(case=case)
    words = "UnsupportedError: DDP's ranks differ after update 2: 'parameter.data' of rank 1 is not"
    assert words in str(caught.value)


def test_ranks_that_come_apart_are_told_what_was_told_before(run):
    case = {"parallel": "DDP", "optimizer": "AdamW", "break_ranks": 4}
    with pytest.raises(RuntimeError, match=r"after update 4: 'parameter\.data' of rank 1 is not"):
        run(case=case)


def test_another_way_to_share_the_model_is_refused_at_the_restore(run):
    run(case={"parallel": "DDP", "optimizer": "SGD"}, wanted=[3], once=True)
    with pytest.raises(RuntimeError, match="parallelism: DDP then, FSDP2 now"):
        run(case={"parallel": "FSDP2", "optimizer": "SGD"}, load=3)


def test_a_version_from_before_the_first_update_can_be_restored(run):
    """The optimizer has no state then; DDP's buckets are those of the start."""
    case = {"parallel": "DDP", "optimizer": "AdamW"}
    whole = run(case=case, wanted=[0])
    resumed = run(case=case, seed=50, load=0)
    assert [one["losses"] for one in resumed] == [one["losses"] for one in whole]


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_second_model_of_a_static_graph_is_told_where_its_sums_may_differ(run, ranks):
    """Two numbers are the same in either order."""
    case = {"parallel": "DDP", "optimizer": "SGD", "critic": "static", "ranks": ranks}
    said = [text for rank in run(case=case) for text in rank["remarks"]]
    assert len(said) == (ranks if ranks > 2 else 0)
    assert all("another model in DDP has static_graph=True (Model)" in text for text in said)
