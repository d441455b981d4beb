"""Jobs that train in turns, over real sockets."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from gemini_lab.errors import RunFailedError
from gemini_lab.training.turns import Turns
from gemini_lab_bench.benches.overhead import give_turns, listen


def train(job: str, address: Path, told: list[str], *, turns: int) -> None:
    """Four iterations a turn, the first turn after a wait."""
    mine = Turns(address, 4)
    mine.wait()
    for done in range(1, 4 * turns + 1):
        told.append(job)
        if mine.are_over(done):
            mine.wait()


def test_each_job_waits_while_the_other_does_its_turn(tmp_path: Path) -> None:
    told: list[str] = []
    with (
        closing(listen(tmp_path / "a")) as a,
        closing(listen(tmp_path / "b")) as b,
        ThreadPoolExecutor() as pool,
    ):
        jobs = [
            pool.submit(train, job, tmp_path / job, told, turns=turns)
            for job, turns in (("a", 2), ("b", 3))
        ]
        # A job that has ended asks for no more turns: its sockets close with its process.
        in_use = pool.submit(give_turns, {"a": a, "b": b}, ranks=1, rest_s=0.05)
        assert in_use.result(30) >= 0
        for job in jobs:
            job.result(30)
    assert "".join(told) == "aaaabbbbaaaabbbbbbbb"


def test_ranks_that_do_not_come_are_not_waited_for_for_ever(tmp_path: Path) -> None:
    with closing(listen(tmp_path / "a")) as a:
        a.settimeout(0.1)
        with pytest.raises(RunFailedError, match="a: not all ranks were ready"):
            give_turns({"a": a}, ranks=1)
