"""Settings that every test shares."""

import os
import random

from hypothesis import settings

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
