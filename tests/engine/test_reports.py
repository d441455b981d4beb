"""Loops after public reports come back bit by bit, also twice in a row, or are told beforehand."""

import pytest


@pytest.mark.parametrize(
    ("loop", "versions"),
    [
        ("spectral", [2, 7]),  # an epoch has five batches
        ("streamed", [3, 13]),  # an epoch has ten
        ("buffered", [7, 13]),
        ("packed", [9, 21]),
        ("clusters", [2, 7]),
        ("counted_average", [3, 8]),
        ("infinite", [2, 7]),
        ("narrow_moments", [2, 7]),
        ("seeded_workers", [2, 7]),
        ("lazy", [2, 7]),
        ("scaled", [3, 8]),
    ],
)
def test_a_loop_that_was_reported_comes_back(server, tmp_path, loop, versions):
    """Beside a run that is not protected, too; and from a version of a start after a failure."""
    job = {"loop": f"report {loop}"}
    first, second = versions
    plain = server.run(tmp_path, **job, case="plain")
    whole = server.run(tmp_path, **job, wanted=[first])
    assert [one["losses"] for one in whole] == [one["losses"] for one in plain]
    assert [one["end"] for one in whole] == [one["end"] for one in plain]
    server.run(tmp_path, **job, load=first, wanted=[second])
    for before, after in zip(whole, server.run(tmp_path, **job, load=second), strict=True):
        expected = {n: loss for n, loss in before["losses"].items() if int(n) > second}
        assert {n: loss for n, loss in after["losses"].items() if int(n) > second} == expected
        assert len(expected) >= 4
        assert after["end"] == before["end"]


@pytest.mark.parametrize(
    ("loop", "text"),
    [
        ("late_schedule", "the script made a schedule of the optimizer after `protect` (LambdaLR)"),
        ("infinite_workers", "was made before `protect`, and workers read for it"),
        ("packed", "does not say all of its position"),
    ],
)
def test_what_would_not_come_back_by_itself_is_told_before_anything_fails(
    server, tmp_path, loop, text
):
    for found in server.run(tmp_path, loop=f"report {loop}"):
        (remark,) = found["remarks"]
        assert text in remark
