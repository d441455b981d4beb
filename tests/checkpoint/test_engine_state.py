"""A restored engine goes on with the very numbers of one that never stopped: real DeepSpeed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
SERVER = Path(__file__).with_name("zero_server.py")


class Server:
    """Runs requests on two fresh ranks each."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.number = 0

    def run(self, folder, **request):
        """What each rank found; raises with a rank's error text if one failed."""
        self.number += 1
        request |= {"folder": str(folder), "number": self.number}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the server ended"
        errors = [path.read_text() for path in sorted(folder.glob("error-*.txt"))]
        for path in folder.glob("error-*.txt"):
            path.unlink()
        if any(json.loads(answer)):
            raise RuntimeError("\n".join(errors) or f"exit codes {answer}")
        return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)


@pytest.fixture(scope="module")
def server():
    started = Server()
    yield started
    started.close()


CASES = [
    {"stage": stage, "optimizer": optimizer, "accumulation": accumulation}
    for stage in (1, 2, 3)
    for optimizer in ("Adam", "SGD")
    for accumulation in (1, 2)
]
CASES += [{"stage": stage, "optimizer": "Adam", "dtype": "bfloat16"} for stage in (1, 2, 3)]
CASES += [
    {
        "stage": 1,
        "optimizer": "AdamW",
        "dtype": "bfloat16",
        "config": {"data_types": {"grad_accum_dtype": "fp32"}},
    },
    {"stage": 2, "optimizer": "AMSGrad", "tied": True},
    {"stage": 3, "optimizer": "AdamW", "tied": True, "zero": {"sub_group_size": 50}},
    {"stage": 3, "optimizer": "Adam", "frozen": True, "model_seed": 4},
    {"stage": 1, "optimizer": "Adam", "frozen": True, "model_seed": 4},
    {"stage": 2, "optimizer": "Adam", "zero": {"offload_optimizer": {"device": "cpu"}}},
    {"stage": 3, "optimizer": "Adam", "zero": {"offload_optimizer": {"device": "cpu"}}},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_a_restored_engine_gives_the_losses_of_one_that_never_stopped(server, tmp_path, case):
    whole = server.run(tmp_path, case=case, seed=1, capture_at=3)
    resumed = server.run(tmp_path, case=case, seed=99, load=True)
    for before, after in zip(whole, resumed, strict=True):
        assert len(before["updates"]) == 6
        assert after["updates"] == before["updates"][3:]
        assert after["lr"] == before["lr"]
        assert after["client"] == before["client"]
        assert after["restored"]["version"] == 3
        assert after["extra"] == {"note": ["kept", 1]}
        assert after["layout"] == before["layout"]
