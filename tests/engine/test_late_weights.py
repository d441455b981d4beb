"""A process that takes a lost rank's place: its frozen weights have to be that rank's."""

import subprocess
import sys

import pytest

LATE = """
import sys
import torch, torch.distributed as dist, xxhash
from gemini_lab.engine.frameworks.tensors import digest_over_ranks
import msgspec
from gemini_lab.kept.record import RecordedCall
from gemini_lab.kept.groups import StandingGroups

then, now = torch.full((4,), 1.0), torch.full((4,), float(sys.argv[1]))
words = [*xxhash.xxh3_128(then.numpy().tobytes()).digest()]
told = torch.tensor(words).numpy().tobytes()
recorded = [RecordedCall(name="allgather", sizes=[len(told)] * 2, results=[told, told])]
StandingGroups(kept=[0], told=lambda _: msgspec.msgpack.encode(recorded)).install()
dist.init_process_group("gloo", store=dist.HashStore(), rank=1, world_size=2)
print(digest_over_ranks([now]))
"""


@pytest.mark.parametrize("is_same", [True, False])
def test_frozen_weights_that_are_not_the_lost_ranks_end_the_process(is_same):
    words = [sys.executable, "-c", LATE, "1" if is_same else "2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode == 0) == is_same, done.stderr
    assert ("CannotGoOnError: its frozen weights" in done.stderr) != is_same
