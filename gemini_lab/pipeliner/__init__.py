"""Stage 3: which chunk goes into which idle span? (paper, section 5.3)."""

from gemini_lab.pipeliner.schedule import Chunk, ChunkSchedule, Scheme, plan_chunks
from gemini_lab.pipeliner.timing import ChunkTimes, Timeline, model_iteration

__all__ = [
    "Chunk",
    "ChunkSchedule",
    "ChunkTimes",
    "Scheme",
    "Timeline",
    "model_iteration",
    "plan_chunks",
]
