"""Table 1: machines have more CPU memory than GPU memory, and whether checkpoints fit in it."""

from gemini_lab.memory.slab import Slab, SlotSpec
from gemini_lab.placement.memory import BUFFERS
from gemini_lab.simulator.catalog import MACHINES, MODELS
from gemini_lab.units import GB, MIB
from gemini_lab_bench.figures import tab2
from gemini_lab_bench.figures.figure import Figure, Point

NODES = 16
TB = 1000 * GB
REPLICAS = 2
RUNS = {"p4d.24xlarge": "GPT-2 100B", "p3dn.24xlarge": "GPT-2 40B"}
"""The largest models that the paper trained on 16 of each (section 7.1)."""
SCALE = 10_000
"""A slab is made for a shard that is so many times smaller."""


def figure() -> Figure:
    """CPU memory beside what the agents' slabs take of it for the paper's largest jobs."""
    points = []
    for machine in MACHINES.values():
        for series, size in (
            ("CPU memory", machine.cpu_memory_bytes),
            ("GPU memory", machine.gpus * machine.gpu_memory_bytes),
        ):
            points.append(Point(series, machine.name, size / TB, "input", "Table 1"))
    for name, model in RUNS.items():
        shard_bytes = MODELS[model].checkpoint_bytes / NODES
        slab = slab_share(round(shard_bytes / SCALE)) * shard_bytes / TB
        points += [
            Point(
                f"needed for {model}",
                name,
                BUFFERS * REPLICAS * shard_bytes / TB,
                "model",
                f"{REPLICAS} shards in {BUFFERS} buffers each, {NODES} machines",
            ),
            Point(
                series=f"needed for {model}",
                x=name,
                y=slab,
                low=slab,  # a size does not spread
                high=slab,
                origin="measured",
                how=f"the size of a real slab for shards that are {SCALE:,} times smaller",
            ),
        ]
    points.append(
        Point(
            "needed for GPT-2 100B",
            "p4d.24xlarge",
            BUFFERS * REPLICAS * 8 * tab2.GB_A_GPU / 1000,
            "paper",
            "9.4 GB a GPU (section 5.2), 8 of them, two copies in two buffers (7.1)",
        )
    )
    return Figure(
        name="tab1",
        title="Table 1: memory of machines, and what checkpoints take of it",
        x_label="machine",
        y_label="TB",
        points=tuple(points),
        notes=(
            (
                "Sizes of machines are the paper's, and put in. What is needed for 40 B has no "
                "number in the paper."
            ),
        ),
        kind="bars",
        log_y=True,
        tolerance=0.01,
    )


def slab_share(shard_bytes: int) -> float:
    """Return how many times a shard's size a node's memory for two shards is."""
    slots = [SlotSpec(shard, shard_bytes) for shard in range(REPLICAS)]
    slab = Slab.create(slots, chunk_bytes=MIB // 4)
    try:
        return len(slab.memory) / shard_bytes
    finally:
        slab.close()
