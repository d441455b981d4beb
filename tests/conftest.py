"""Settings that every test shares."""

import os
import random
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
# Drawn once, so that all processes that share the tests out collect the same ones.
os.environ.setdefault("GEMINI_LAB_TEST_SEED", str(random.SystemRandom().randrange(10**6)))

# A property is no faster for being true: on a busy machine an example may take any time.
# The same examples each time, so that a red run means a change; --hypothesis-profile=search looks
# for new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile("repeatable")

HERE = Path(__file__).parent
TAKE_THE_MACHINE = {"browser", "cluster", "notebooks"}
"""Folders whose tests start nodes, browsers and kernels: one after the other, with `-n` too."""


@pytest.hookimpl(tryfirst=True)  # the group is read in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that load a machine in one process, which begins with them."""
    for item in items:
        if item.path.relative_to(HERE).parts[0] in TAKE_THE_MACHINE:
            item.add_marker(pytest.mark.xdist_group("machine"))
