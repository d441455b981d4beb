"""Real nodes: MPI starts them, etcd keeps them in step, DeepSpeed trains on them."""

import contextlib
import functools
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from gemini_lab import Job, Lab
from gemini_lab.errors import LaunchError
from gemini_lab.lab.run import Run
from gemini_lab.launch.etcd import find_etcd
from gemini_lab.launch.mpi import find_mpiexec
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.report import RunReport
from gemini_lab.training.quickstart import gpt_job

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Everything here is slow; without MPI or etcd it is skipped."""
    for item in items:
        if Path(item.fspath).parent == HERE:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(400))
            for find in (find_mpiexec, find_etcd):
                try:
                    find()
                except LaunchError as error:
                    item.add_marker(pytest.mark.skip(reason=str(error)))


os.environ["GEMINI_LAB_TESTS"] = MARK = f"tests-{os.getpid()}"


def processes_of_labs() -> list[psutil.Process]:
    """All agents, warm parents, workers and etcd servers that these tests started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_ours = process.environ().get("GEMINI_LAB_TESTS") == MARK
            if is_ours and "gemini_lab" in " ".join(process.cmdline()):
                found.append(process)
    return found


def is_of(process: psutil.Process, known: set[int]) -> bool:
    """Whether a process or one that it descends from is known."""
    try:
        return not known.isdisjoint(one.pid for one in (process, *process.parents()))
    except psutil.NoSuchProcess:
        return True  # it is gone


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """Fail if a test leaves a process or an etcd folder behind, but for those of other labs."""
    before = {process.pid for process in processes_of_labs()}
    yield
    left = [process for process in processes_of_labs() if not is_of(process, before)]
    _, alive = psutil.wait_procs(left, timeout=30)  # a machine on its way may be brought first
    assert [told_of(process) for process in alive] == []


def told_of(process: psutil.Process) -> str:
    """What a process is, for who is to find out why it is still there."""
    with contextlib.suppress(psutil.Error):
        now_s = time.time() - process.create_time()
        return f"{process.pid} of {process.ppid()}, {now_s:.0f} s old: {process.cmdline()}"
    return f"{process.pid}, gone by now"


@pytest.fixture(scope="package")
def lab(tmp_path_factory) -> Iterator[Lab]:
    """Four nodes and a standby; runs come one after the other."""
    with Lab(4, 1, folder=tmp_path_factory.mktemp("lab")) as opened:
        yield opened


@pytest.fixture(scope="package")
def pair(tmp_path_factory) -> Iterator[Lab]:
    """Two nodes; runs come one after the other."""
    with Lab(2, 0, folder=tmp_path_factory.mktemp("pair")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_run_goes_on(request) -> Iterator[None]:
    """A test that failed may leave its run going: the next one is to be judged by itself."""
    yield
    for name in {"lab", "pair"} & {*request.fixturenames}:
        run = request.getfixturevalue(name).run
        if run is not None and not run.is_over:
            run.stop()
            if not run.is_over_within(30):
                run.give_up("a test left it behind", "machines")


@pytest.fixture(scope="package")
def undisturbed(request) -> Callable[..., RunReport]:
    """The report of a job that never fails, by its arguments; only a lab that is used is made."""
    known: dict[tuple[int, int], RunReport] = {}

    def report(*, iterations: int, nodes: int = 4) -> RunReport:
        if (iterations, nodes) not in known:
            job = gpt_job(size="tiny", iterations=iterations)
            lab = request.getfixturevalue({2: "pair", 4: "lab"}[nodes])
            run = lab.train(job, persistent_url=None).wait(200)
            known[iterations, nodes] = run.report()
            assert known[iterations, nodes].recoveries == ()
        return known[iterations, nodes]

    return report


@pytest.fixture(scope="package")
def quiet(lab, tmp_path_factory) -> Callable[..., RunReport]:
    """The report of a script that nothing strikes, by its text and arguments; trained once."""
    path = tmp_path_factory.mktemp("quiet") / "train.py"

    @functools.cache
    def report(text: str, *arguments: str) -> RunReport:
        path.write_text(text)
        job = Job(script=str(path), args=[*arguments])
        found = lab.train(job, persistent_url=None).wait(300).report()
        assert found.recoveries == ()
        return found

    return report


@pytest.fixture
def script(tmp_path) -> Callable[[str], Path]:
    """Writes a training script and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text(text)
        return path

    return write


def random_seeds(count: int) -> list[int]:
    """Other ones in each run of the tests; they stand in the tests' names."""
    draw = random.Random(os.environ["GEMINI_LAB_TEST_SEED"])
    return [draw.randrange(10**6) for _ in range(count)]


def finish(run: Run, timeout_s: float = 200) -> RunReport:
    """Wait for a run that has to succeed."""
    return run.wait(timeout_s).report()


def shell(*arguments: str, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
    """Run `gemini-lab` as a user does."""
    import sys

    return subprocess.run(
        [sys.executable, "-m", "gemini_lab.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=os.environ,
        check=False,
    )


def etcdctl_variables(address: EtcdAddress, folder: Path) -> dict[str, str]:
    """What opens a lab's own etcd, as whoever names one with --etcd has it in the environment."""
    folder.mkdir()
    own = address.own
    assert own is not None
    parts = {"CACERT": own.authority_pem, "CERT": own.pem, "KEY": own.key_pem}
    for name, pem in parts.items():
        (folder / name).write_text(pem)
    return {f"ETCDCTL_{name}": str(folder / name) for name in parts}
