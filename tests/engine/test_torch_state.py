"""Plain PyTorch goes on, bit by bit, with the numbers of a run that never stopped."""

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
