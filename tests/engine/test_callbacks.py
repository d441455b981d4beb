"""What libraries' callbacks keep comes back, or is refused by name before training."""

import pytest

pytest.importorskip("lightning")


@pytest.mark.parametrize(
    ("case", "versions"),
    [
        ("accumulation", [7, 9]),
        ("ema", [3, 7, 9]),
        ("averages of epochs", [7, 10]),
        ("average made in setup", [3, 7]),
        ("average made in on_train_start", [3, 7]),
        ("thawing", [3, 7, 10]),
        ("two passes", [3, 7]),  # of its optimizer
        ("quiet", [4, 7, 10]),
    ],
)
def test_what_a_callback_changes_comes_back(server, tmp_path, case, versions):
    """And training with it gives the numbers of one without gemini_lab."""
    job = {"loop": "lightning callbacks"}
    plain = server.run(tmp_path, **job, case=f"{case}, plain")
    whole = server.run(tmp_path, **job, case=case, wanted=versions)
    assert [one["losses"] for one in whole] == [one["losses"] for one in plain]
    assert [one["end"] for one in whole] == [one["end"] for one in plain]
    for version in versions:
        resumed = server.run(tmp_path, **job, case=case, load=version)
        for before, after in zip(whole, resumed, strict=True):
            expected = {n: loss for n, loss in before["losses"].items() if int(n) % 100 > version}
            assert len(expected) >= 4
            assert after["losses"] == expected
            assert after["end"] == before["end"]
            assert after.get("best") == before.get("best")
            assert before["remarks"] == after["remarks"] == []
