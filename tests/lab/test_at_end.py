"""A program that ends with a lab closes it, and its own last words stay the last."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import asyncio
import multiprocessing
import sys

from lab_stand_in import ClusterStandIn

from gemini_lab import Lab


class Cluster(ClusterStandIn):
    def start(self, config, loop, audience):
        self.loop = loop
        return super().start(config, loop, audience)

    def close(self):
        said = asyncio.to_thread(print, "closed", flush=True)
        self.loop.finish(said, timeout_s=10)


lab = Lab(folder=sys.argv[1], start=Cluster().start)
forked = multiprocessing.get_context("fork").Process(target=print, args=("forked",))
forked.start()
forked.join()
"""


def test_a_script_that_ends_with_a_lab_open_closes_it_once(tmp_path):
    """A process that it has forked leaves the lab alone."""
    done = ended(SCRIPT, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "forked\nclosed\n"


def test_a_script_that_fails_has_its_own_traceback_alone(tmp_path):
    done = ended(f"{SCRIPT}\nraise ValueError('of its own')", tmp_path)
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.endswith("ValueError: of its own\n")
    assert done.stdout == "forked\nclosed\n"


TWO_LABS = """
import sys

from lab_stand_in import ClusterStandIn

from gemini_lab import Lab


class Cluster(ClusterStandIn):
    def close(self):
        print("closed", flush=True)


class Stuck(ClusterStandIn):
    def close(self):
        raise TimeoutError("its nodes said nothing")


labs = [Lab(folder=sys.argv[1], start=one().start) for one in (Cluster, Stuck)]
"""


def test_a_lab_that_cannot_be_closed_is_told_and_the_others_are_closed(tmp_path):
    done = ended(TWO_LABS, tmp_path)
    assert done.stdout == "closed\n"
    assert "not closed in order: TimeoutError: its nodes said nothing;" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_lab_that_cannot_be_closed_leaves_the_last_word_to_the_script(tmp_path):
    done = ended(f"{TWO_LABS}\nraise ValueError('of its own')", tmp_path)
    assert done.stdout == "closed\n"
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.endswith("ValueError: of its own\n")


def ended(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A script that was run to its end."""
    return subprocess.run(
        [sys.executable, "-c", script, str(folder / "runs")],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
