"""Stage 1: when is the training network idle? (paper, section 5.4)."""

from gemini_lab.profiler.profile import (
    Collective,
    CollectiveRecord,
    IdleSpan,
    Profile,
    build_profile,
)

__all__ = ["Collective", "CollectiveRecord", "IdleSpan", "Profile", "build_profile"]
