"""Stage 1: when is the training network idle? (paper, section 5.4)."""

from gemini_lab.profiler.average import build_profile
from gemini_lab.profiler.drift import Drift, DriftWatch
from gemini_lab.profiler.observe import IterationRecord, Profiler, SequenceChange
from gemini_lab.profiler.profile import Collective, CollectiveRecord, IdleSpan, Profile
from gemini_lab.profiler.slow_ranks import Slowness, SlowRanks

__all__ = [
    "Collective",
    "CollectiveRecord",
    "Drift",
    "DriftWatch",
    "IdleSpan",
    "IterationRecord",
    "Profile",
    "Profiler",
    "SequenceChange",
    "SlowRanks",
    "Slowness",
    "build_profile",
]
