"""Settings that every test shares."""

import asyncio
import gc
import inspect
import os
import random
import subprocess
import sys
import tempfile
import tomllib
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cache
from pathlib import Path

import pytest
from golden import as_text, plain, same
from hypothesis import settings

from gemini_lab.node.locked_tempdir import MPI_SHARED

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
# Random failures are drawn from it: set it to draw an earlier run's again.
os.environ.setdefault("GEMINI_LAB_TEST_SEED", str(random.SystemRandom().randrange(10**6)))

# A property is no faster for being true: on a busy machine an example may take any time.
# The same examples each time, so that a red run means a change; --hypothesis-profile=search looks
# for new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile("repeatable")

REAL = {"cluster": "cluster", "browser": "watched", "notebooks": "watched"}
"""Folders whose tests start nodes, notebooks and browsers, and in which turn they come.

Each mostly waits, for imports, leases and pages: two turns at a time keep two processors busy.
"""
RANKS = "ranks"
"""Engine tests that share a server of ranks: together they take longest, and come next."""
LONG_FILES = ("bench", "course")
"""Folders whose files take longest: what begins last would otherwise be what all wait for."""

YIELDING = 10
"""By how much a process that runs other tests beside those is nicer than they are."""

TIERS = tomllib.loads((Path(__file__).parent / "tiers.toml").read_text())

DURATIONS = "gemini_lab/durations"
"""In pytest's cache: for each test the seconds that it took, the longest first."""

BUILD = """
from deepspeed.ops.op_builder import CPUAdamBuilder, ShareMemCommBuilder
for builder in (CPUAdamBuilder(), ShareMemCommBuilder()):
    builder.load(verbose=False)
"""


def pytest_configure(config):
    """Have tests that begin MPI keep its shared memory in a folder that goes with all tests.

    In /dev/shm it would stay: processes of xdist end without MPI's own end.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ and MPI_SHARED not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="gemini_lab-tests-")
        os.environ[MPI_SHARED] = folder.name
        config.add_cleanup(folder.cleanup)
    if "PYTEST_XDIST_WORKER" not in os.environ and getattr(config, "cache", None) is not None:
        config.pluginmanager.register(Durations(config))


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="run all tests but those marked long")
    parser.addoption("--long", action="store_true", help="run all tests")
    parser.addoption("--rewrite-golden", action="store_true", help="write golden files anew")


def pytest_collection_modifyitems(config, items):
    """Sort the real and the longest first; leave out what the tier asked for does not run.

    A file or test named on the command line runs whatever its tier, a long one if it is named.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: turn_of(scope_of(item.nodeid)))
    if config.getoption("--long") or any("::" in each for each in config.args):
        return
    is_whole = config.args_source is not pytest.Config.ArgsSource.ARGS
    is_fast = is_whole and not config.getoption("--full")
    left_out = [item for item in items if is_left_out(item, is_fast=is_fast)]
    config.hook.pytest_deselected(items=left_out)
    gone = {*left_out}
    items[:] = [item for item in items if item not in gone]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Import and collect without garbage collection, and take what is there out of later ones.

    Collecting thousands of tests makes none. `protect` collects garbage, which would take seconds
    with all of them in memory.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(run_entered(pyfuncitem.obj, given))
    return True


async def run_entered(test, given):
    """Run a coroutine test; enter those of its fixtures that are async context managers."""
    async with AsyncExitStack() as stack:
        for name, value in given.items():
            if isinstance(value, AbstractAsyncContextManager):
                given[name] = await stack.enter_async_context(value)
        await test(**given)


@pytest.fixture
def golden(request):
    """Compare a value with the golden file of this name beside the test: see `golden.py`."""
    folder, rewrite = request.path.parent / "golden", request.config.getoption("--rewrite-golden")

    def compare(name, value):
        text = value if isinstance(value, str) else as_text(plain(value)) + "\n"
        same(folder / name, text, rewrite=rewrite)

    return compare


def is_left_out(item: pytest.Item, *, is_fast: bool) -> bool:
    """Return whether a tier leaves a test out: the full one the long, the fast one the slow."""
    if item.get_closest_marker("long"):
        return True
    return is_fast and is_slow(item.nodeid)


def is_slow(nodeid: str) -> bool:
    """Return whether only the full tier runs a test, by the longest name in the map it is under."""
    name = nodeid.removeprefix("tests/")
    slow, fast = (
        max((len(each) for each in TIERS[tier] if is_under(name, each)), default=0)
        for tier in ("full", "fast")
    )
    return slow > fast


def is_under(name: str, part: str) -> bool:
    """Return whether a test is this folder's, file's or test function's, or this very case."""
    return name == part or name.startswith((f"{part}/", f"{part}::", f"{part}["))


class Durations:
    """Keeps how long each test took when it last ran: setting up and taking down included."""

    def __init__(self, config):
        self.cache, self.took_s = config.cache, {}

    def pytest_runtest_logreport(self, report):
        before_s = self.took_s.get(report.nodeid, 0.0)
        self.took_s[report.nodeid] = round(before_s + report.duration, 2)

    def pytest_sessionfinish(self):
        told_s = self.cache.get(DURATIONS, {}) | self.took_s
        ranked = sorted(told_s.items(), key=lambda one: -one[1])
        self.cache.set(DURATIONS, dict(ranked))


def turn_of(scope: str) -> int:
    """Return when a scope's tests begin: the real ones first, then those that take longest."""
    if scope in REAL.values():
        return 0
    return 1 if scope == RANKS else 2 if room_of(scope) in LONG_FILES else 3


def scope_of(nodeid: str) -> str:
    """Return what one process runs in turn: a file, or all that share ranks or real nodes."""
    file, room = nodeid.partition("::")[0], room_of(nodeid)
    if room in REAL:
        return REAL[room]
    return RANKS if room == "engine" and uses_ranks(file) else file


@cache
def uses_ranks(file: str) -> bool:
    """Return whether tests of a file ask for the server of ranks."""
    return "server" in Path(__file__).parents[1].joinpath(file).read_text()


def room_of(nodeid: str) -> str:
    """The folder of a test, below `tests`."""
    return nodeid.split("/")[1]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give one process the real ones in turn, and the others what computes."""
    from xdist.scheduler import LoadScopeScheduling

    class RealOnesInTurns(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return scope_of(nodeid)

    config.option.loadscopereorder = False  # the real ones come first
    return RealOnesInTurns(config, log)


def pytest_sessionstart(session):
    """Compile DeepSpeed's operators before two processes share the processors.

    A compiler beside real nodes starves them, and they it: of two minutes it makes more than five.
    """
    if getattr(session.config.option, "numprocesses", None):
        # Where there is no compiler, the tests that need one say so themselves.
        build = [sys.executable, "-c", BUILD]
        subprocess.run(build, check=False, capture_output=True, timeout=900)


def pytest_runtest_setup(item):
    """Yield the processors to real nodes, which are watched by the clock."""
    is_beside = "PYTEST_XDIST_WORKER" in os.environ and room_of(item.nodeid) not in REAL
    if is_beside and os.nice(0) < YIELDING:
        os.nice(YIELDING - os.nice(0))
