"""An iteration's time from a model's own traffic: two numbers, fitted on one model of a machine.

With ZeRO-3 and activation recomputation each layer's weights are gathered in the forward and in the
backward pass and its gradients are reduced, 2 bytes a parameter each time; (N - 1) / N of it comes
from other machines. While that crosses the network it is busy. It is idle once a layer and pass,
for as long as computing is not covered by what is prefetched. So

    iteration = 3 x 2 B x params x (N - 1) / N / rate + layers x gap

All of the paper's models have the same batch (8 x 512 tokens a GPU), which is part of the gap.
"""

from dataclasses import dataclass
from typing import Final

from gemini_lab.simulator.catalog import MODELS

NODES: Final = 16
COLLECTIVES: Final = 3
BYTES_A_PARAM: Final = 2
LAYERS: Final = {
    "GPT-2 10B": 46,
    "GPT-2 20B": 64,
    "GPT-2 40B": 128,
    "RoBERTa 40B": 128,
    "BERT 40B": 128,
    "GPT-2 100B": 124,
    "RoBERTa 100B": 124,
    "BERT 100B": 124,
}
"""Of the paper's Table 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficModel:
    """What one machine makes of any model."""

    bytes_per_s: float  # what training's collectives get of an instance's link
    gap_s: float  # idle time that each layer leaves

    def busy_s(self, name: str) -> float:
        return traffic_bytes(name) / self.bytes_per_s

    def idle_s(self, name: str) -> float:
        return LAYERS[name] * self.gap_s

    def iteration_s(self, name: str) -> float:
        return self.busy_s(name) + self.idle_s(name)


def traffic_bytes(name: str) -> float:
    """Return what an instance sends for training in an iteration."""
    others = (NODES - 1) / NODES
    return COLLECTIVES * BYTES_A_PARAM * MODELS[name].params * others


def fitted(name: str, *, iteration_s: float, idle_s: float) -> TrafficModel:
    """Return the machine on which `name` takes these times."""
    return TrafficModel(
        bytes_per_s=traffic_bytes(name) / (iteration_s - idle_s),
        gap_s=idle_s / LAYERS[name],
    )
