"""Whoever trains with DeepSpeed on a CPU needs no compiler."""

import os
import subprocess
import sys

SCRIPT = """
import sys
import deepspeed
from gemini_lab.engine.private_names import avoid_shared_memory_collectives

avoid_shared_memory_collectives()
deepspeed.init_distributed("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
assert deepspeed.comm.get_world_size() == 1
"""


def test_a_process_group_is_made_without_a_compiler(tmp_path):
    used, tools = tmp_path / "used", tmp_path / "tools"
    tools.mkdir()
    for name in ("cc", "gcc", "c++", "g++"):
        (tools / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {used}\nexit 1\n')
        (tools / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    run = [sys.executable, "-c", SCRIPT, str(tmp_path / "meet")]
    done = subprocess.run(
        run, check=False, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert not used.exists(), used.read_text()
