"""Going on in the same processes: ZeRO 3 keeps the order of its modules, or all ranks learn it."""

import pytest

CASE = {"stage": 3, "optimizer": "Adam"}


@pytest.fixture
def updates(server, tmp_path):
    """Those of a job that nothing happened to."""
    return [one["updates"] for one in server.run(tmp_path, case=CASE, seed=1)]


@pytest.mark.parametrize("forgetful", [None, 1])
def test_the_order_is_kept_where_all_ranks_know_it_and_else_learned_by_all(
    server, tmp_path, updates, forgetful
):
    found = server.run(tmp_path, case=CASE, seed=1, rejoins=forgetful)
    knew, knows = zip(*((one["knew"], one["knows"]) for one in found), strict=True)
    assert [order != 0 for order in knew] == [True, forgetful is None]
    assert knows == (knew if forgetful is None else (0, 0))
    assert [one["updates"] for one in found] == updates
