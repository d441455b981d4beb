"""Stage 3: which chunk goes into which idle span? (paper, section 5.3)."""

from gemini_lab.pipeliner.planning import plan_chunks
from gemini_lab.pipeliner.schedule import Algorithm, Chunk, ChunkSchedule, Scheme
from gemini_lab.pipeliner.timing import Pipeline, least_delay_s, modelled_delay_s

__all__ = [
    "Algorithm",
    "Chunk",
    "ChunkSchedule",
    "Pipeline",
    "Scheme",
    "least_delay_s",
    "modelled_delay_s",
    "plan_chunks",
]
