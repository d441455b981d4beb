"""Loops as people write them come back bit by bit, whatever stands around the engine's step."""

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("loop", "capture_at"),
    [
        ("prefetching", 3),  # an evaluation follows at the next loop's top
        ("prefetching", 4),
        ("nested", 3),
        ("nested", 5),  # the last of its epoch
        ("everything", 2),  # after an evaluation
        ("everything", 5),
        ("ranged", 6),
    ],
)
def test_a_loop_goes_on_with_the_numbers_of_one_that_never_stopped(
    server, tmp_path, loop, capture_at
):
    whole = server.run(tmp_path, loop=loop, capture_at=capture_at)
    resumed = server.run(tmp_path, loop=loop, load=True)
    for before, after in zip(whole, resumed, strict=True):
        expected = {n: loss for n, loss in before["losses"].items() if int(n) > capture_at}
        assert len(expected) >= 6
        assert after["losses"] == expected
        assert before["remarks"] == after["remarks"] == []
