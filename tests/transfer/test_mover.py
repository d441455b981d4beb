"""Versions on their way: whenever a rank dies, one version is whole."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .kill_mover import VERSIONS


@pytest.mark.slow
@pytest.mark.parametrize(("how", "tried"), [("background", 6 * VERSIONS + 1), ("scheduled", 9)])
def test_a_rank_killed_at_any_chunk_leaves_one_version_of_every_shard_whole(how, tried):
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("kill_mover.py")), how],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    stories = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(stories) == tried
    for story in stories:
        died = story["die_at"] <= 6 * VERSIONS
        assert story["statuses"][1] == (-9 if died else 0)
        being_moved = (story["die_at"] - 1) // 6 + 1
        whole = set(story["left"]["0"]) & set(story["left"]["1"])
        if being_moved > 1:  # the version before the one that was being moved
            assert max(whole) >= being_moved - 1, story
