"""Stage 3: which chunk goes into which idle span? (paper, section 5.3)."""

from gemini_lab.pipeliner.planning import plan_chunks
from gemini_lab.pipeliner.schedule import Algorithm, Chunk, ChunkSchedule, Scheme
from gemini_lab.pipeliner.timing import (
    ChunkTimes,
    Pipeline,
    Timeline,
    least_delay_s,
    model_iteration,
)

__all__ = [
    "Algorithm",
    "Chunk",
    "ChunkSchedule",
    "ChunkTimes",
    "Pipeline",
    "Scheme",
    "Timeline",
    "least_delay_s",
    "model_iteration",
    "plan_chunks",
]
