"""Loops as people write them come back bit by bit, whatever stands around the engine's step."""

import pytest

OF_LIBRARIES = ("accelerated", "lightning", "trainer")  # their loops are in library_loops.py


@pytest.mark.parametrize(
    ("loop", "versions"),
    [
        ("prefetching", [3, 4]),  # after version 3, the next loop's top evaluates
        ("nested", [3, 5]),  # version 5 is the last of its epoch
        ("everything", [2, 5]),  # version 2 comes after an evaluation
        ("ranged", [6]),
        ("growing", [3, 5]),  # at version 3 the batch has just grown
        ("accelerated DeepSpeed", [1, 2, 5]),  # version 5 is the last of its epoch
        pytest.param("accelerated DDP", [2, 5], marks=pytest.mark.long),
        pytest.param("accelerated FSDP2", [2, 5], marks=pytest.mark.long),
        ("trainer DeepSpeed", [3, 4, 6]),  # version 4 is evaluated after, and the last of its epoch
        pytest.param("trainer DDP", [4, 6], marks=pytest.mark.long),
        ("trainer FSDP2", [6]),
        ("lightning DDP", [4]),  # the last of its epoch, and evaluated after
        pytest.param("lightning FSDP2", [2, 4, 6], marks=pytest.mark.long),
    ],
)
def test_a_loop_goes_on_with_the_numbers_of_one_that_never_stopped(
    server, tmp_path, loop, versions
):
    if loop.startswith(OF_LIBRARIES):
        pytest.importorskip("accelerate")
        pytest.importorskip("lightning")
        pytest.importorskip("transformers")
    require_same(server, tmp_path, loop, versions)


@pytest.mark.parametrize(
    ("loop", "ranks"),
    [
        ("accelerated TP", 2),
        ("accelerated CP", 2),
        ("trainer loaded FSDP2", 2),
        ("trainer loaded HSDP", 4),
        ("trainer loaded TP", 2),
        ("trainer loaded TP x FSDP2", 4),
        ("trainer loaded EP", 2),
        ("trainer loaded EP x FSDP2", 4),
        ("trainer loaded EP x TP", 4),
    ],
)
def test_a_librarys_ranks_that_share_a_layer_or_a_sample_go_on_as_well(
    server, tmp_path, loop, ranks
):
    """Models that transformers cuts as it loads them, and Accelerate's ParallelismConfig."""
    pytest.importorskip("transformers")
    require_same(server, tmp_path, loop, [3, 5], ranks=ranks)


def require_same(server, folder, loop, versions, *, ranks=2):
    """Fail unless a loop that begins with one of its versions goes on as it would have."""
    job = {"loop": loop, "ranks": ranks}
    whole = server.run(folder, **job, wanted=versions)
    for version in versions:
        resumed = server.run(folder, **job, load=version)
        for before, after in zip(whole, resumed, strict=True):
            expected = {n: loss for n, loss in before["losses"].items() if int(n) % 100 > version}
            assert len(expected) >= 6
            assert after["losses"] == expected
            assert before["remarks"] == after["remarks"] == []


def test_averages_and_models_that_are_not_handed_over_are_said_once(server, tmp_path):
    """A teacher beside them, which nothing trains, is not."""
    for found in server.run(tmp_path, loop="beside"):
        (remark,) = found["remarks"]
        assert remark.startswith("these change during training, and no version keeps them: ")
        named = remark.partition(": ")[2].partition(".")[0].split(", ")
        assert sorted(named) == ["AveragedModel", "Bilinear"]


@pytest.mark.parametrize(
    ("loop", "ranks", "versions"),
    [
        ("phases", 2, [4, 6, 7, 10]),  # version 6 ends the first phase, 10 the second
        ("frozen", 1, [2, 4, 6, 9]),  # after version 7 its loop is broken off
        ("epochs", 2, [3, 5, 6, 10, 12, 15, 20]),  # an epoch has five batches
        ("stateful_epochs", 2, [4, 5, 12]),
        ("inner", 2, [2, 4, 7, 12]),
        ("peeked", 2, [2, 6]),
        ("peeked_at", 2, [2, 6]),
        ("peeked_in_epochs", 2, [1, 4, 7]),
        ("two_passes", 2, [3, 6]),
        ("slow_weights", 2, [2, 5]),  # the slow weights are those of the step before
    ],
)
def test_what_runs_again_before_a_versions_loop_leaves_no_trace(
    server, tmp_path, loop, ranks, versions
):
    """Whatever a script does around its loops; and they are those of a plain run, to the bit."""
    job = {"loop": f"again {loop}", "ranks": ranks}
    plain = server.run(tmp_path, **job, case="plain")
    whole = server.run(tmp_path, **job, wanted=versions)
    assert [one["losses"] for one in whole] == [one["losses"] for one in plain]
    assert [one["end"] for one in whole] == [one["end"] for one in plain]
    assert [one["said"] for one in whole] == [one["said"] for one in plain]
    for version in versions:
        resumed = server.run(tmp_path, **job, load=version)
        for before, after in zip(whole, resumed, strict=True):
            expected = {n: loss for n, loss in before["losses"].items() if int(n) > version}
            done = {n: loss for n, loss in after["losses"].items() if int(n) > version}
            assert done == expected
            assert after["end"] == before["end"]


@pytest.mark.parametrize("engine", ["DDP", "FSDP2", "ZeRO-1", "ZeRO-2", "ZeRO-3"])
def test_passes_that_accumulate_gradients_are_no_sign_that_another_optimizer_trains(
    server, tmp_path, engine
):
    for found in server.run(tmp_path, loop="again accumulated", case=engine):
        assert found["said"] == []
        assert found["passes"] == 24
