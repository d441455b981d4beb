"""Loops as people write them come back bit by bit, whatever stands around the engine's step."""

import pytest

OF_LIBRARIES = ("accelerated", "trainer")


@pytest.mark.parametrize(
    ("loop", "versions"),
    [
        ("prefetching", [3, 4]),  # after version 3, the next loop's top evaluates
        ("nested", [3, 5]),  # version 5 is the last of its epoch
        ("everything", [2, 5]),  # version 2 comes after an evaluation
        ("ranged", [6]),
        ("accelerated", [1, 2, 5]),  # version 5 is the last of its epoch
        ("trainer", [3, 4, 6]),  # version 4 is evaluated after, and the last of its epoch
    ],
)
def test_a_loop_goes_on_with_the_numbers_of_one_that_never_stopped(
    server, tmp_path, loop, versions
):
    if loop in OF_LIBRARIES:
        pytest.importorskip("accelerate")
        pytest.importorskip("transformers")
    whole = server.run(tmp_path, loop=loop, wanted=versions)
    for version in versions:
        resumed = server.run(tmp_path, loop=loop, load=version)
        for before, after in zip(whole, resumed, strict=True):
            expected = {n: loss for n, loss in before["losses"].items() if int(n) > version}
            assert len(expected) >= 6
            assert after["losses"] == expected
            assert before["remarks"] == after["remarks"] == []
