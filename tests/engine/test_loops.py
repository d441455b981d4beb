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
    whole = server.run(tmp_path, loop=loop, wanted=versions)
    for version in versions:
        resumed = server.run(tmp_path, loop=loop, load=version)
        for before, after in zip(whole, resumed, strict=True):
            expected = {n: loss for n, loss in before["losses"].items() if int(n) % 100 > version}
            assert len(expected) >= 6
            assert after["losses"] == expected
            assert before["remarks"] == after["remarks"] == []


def test_averages_and_models_that_are_not_handed_over_are_said_once(server, tmp_path):
    """A teacher beside them, which nothing trains, is not."""
    for found in server.run(tmp_path, loop="beside"):
        carried, remark = found["remarks"]
        assert "no version has ('means' of beside())" in carried
        assert "what stands beside the engine's weights changes while it trains" in remark
        named = remark.partition("(")[2].partition(")")[0].split(", ")
        assert sorted(named) == ["AveragedModel", "Bilinear"]  # the means were named already
