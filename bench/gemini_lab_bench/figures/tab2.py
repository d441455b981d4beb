"""Table 2: the models' sizes from their shapes, and what a GPU keeps of a checkpoint."""

from gemini_lab.simulator.catalog import MODELS, transformer_params
from gemini_lab_bench.figures.figure import Figure, Known, Point

NAMED: dict[str, float] = {
    "GPT-2 10B": 10,
    "GPT-2 20B": 20,
    "GPT-2 40B": 40,
    "GPT-2 100B": 100,
}
GPUS = 128
GB_A_GPU = 9.4
"""Of GPT-2 100B (section 5.2)."""
PRINTED_10B = transformer_params(hidden=2560, intermediate=10240, layers=46)
WHY = "Table 2 prints a hidden size of 2560 for it; 5120 gives what its name says"


def figure() -> Figure:
    """Return parameters by hidden size, intermediate size and layers, beside the models' names."""
    size, memory = "parameters, 10^9", "checkpoint, GB a GPU"
    points = [Point(size, name, named, "paper", "its name") for name, named in NAMED.items()]
    points += [
        Point(
            size,
            name,
            MODELS[name].params / 1e9,
            "model",
            "4 h² + 2 h i + 9 h + i a layer, and the embeddings",
        )
        for name in NAMED
    ]
    points += [
        Point(
            size,
            "GPT-2 10B, as printed",
            PRINTED_10B / 1e9,
            "model",
            "the same, with the printed hidden size",
            known=Known(WHY, -0.65, -0.6),
            against="GPT-2 10B",
        ),
        Point(memory, "GPT-2 100B", GB_A_GPU, "paper", "section 5.2"),
        Point(
            memory,
            "GPT-2 100B",
            MODELS["GPT-2 100B"].checkpoint_bytes / GPUS / 1e9,
            "model",
            f"12 bytes a parameter on {GPUS} GPUs",
        ),
    ]
    return Figure(
        name="tab2",
        title="Table 2: models by their shapes",
        x_label="model",
        y_label="10^9 or GB",
        points=tuple(points),
        notes=("RoBERTa and BERT of 40 B and 100 B have the shapes of GPT-2 of that size.",),
        kind="bars",
        tolerance=0.03,
    )
