"""Models and machines that have names: Tables 1 and 2 of the paper and its section 2.2, as data."""

from dataclasses import dataclass
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.recovery.wasted_time import checkpoint_bytes
from gemini_lab.units import GB

VOCABULARY: Final = 50_265
SEQUENCE: Final = 512
"""Of the models of Table 2 (section 7.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model by its size: what a checkpoint needs to know of it."""

    name: str
    params: float  # number of parameters
    source: str  # where the number comes from

    @property
    def checkpoint_bytes(self) -> int:
        return checkpoint_bytes(self.params)


def transformer_params(*, hidden: int, intermediate: int, layers: int) -> int:
    """Return parameters of a GPT-like model: four attention matrices and two of the MLP a layer.

    Biases and layer norms count (9 h + i a layer, 2 h at the end), as do the embeddings of the
    vocabulary and of the positions.
    """
    layer = 4 * hidden**2 + 2 * hidden * intermediate + 9 * hidden + intermediate
    return layers * layer + (VOCABULARY + SEQUENCE + 2) * hidden


def _table_2(name: str, *, hidden: int, intermediate: int, layers: int, note: str = "") -> Model:
    params = transformer_params(hidden=hidden, intermediate=intermediate, layers=layers)
    return Model(name=name, params=params, source=f"paper, Table 2{note}")


MODELS: Final = {
    model.name: model
    for model in (
        _table_2(
            "GPT-2 10B",
            hidden=5120,
            intermediate=10240,
            layers=46,
            note="; its hidden size 2560 gives 3.75 B, 5120 gives the 10 B of its name",
        ),
        _table_2("GPT-2 20B", hidden=5120, intermediate=20480, layers=64),
        _table_2("GPT-2 40B", hidden=5120, intermediate=20480, layers=128),
        _table_2("RoBERTa 40B", hidden=5120, intermediate=20480, layers=128),
        _table_2("BERT 40B", hidden=5120, intermediate=20480, layers=128),
        _table_2("GPT-2 100B", hidden=8192, intermediate=32768, layers=124),
        _table_2("RoBERTa 100B", hidden=8192, intermediate=32768, layers=124),
        _table_2("BERT 100B", hidden=8192, intermediate=32768, layers=124),
        Model(name="Gopher", params=280e9, source="section 2.2 and the talk's slides"),
        Model(name="MT-NLG", params=530e9, source="section 2.2"),
        Model(name="PaLM", params=540e9, source="section 2.2 and the talk's slides"),
    )
}
"""By name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A kind of machine (Table 1); `network_bytes_per_s` is `None` where the paper has none."""

    name: str
    gpus: int
    gpu_memory_bytes: int
    cpu_memory_bytes: int
    network_bytes_per_s: float | None = None


MACHINES: Final = {
    machine.name: machine
    for machine in (
        Machine(
            name="p3dn.24xlarge",
            gpus=8,
            gpu_memory_bytes=32 * GB,
            cpu_memory_bytes=768 * GB,
            network_bytes_per_s=100e9 / 8,
        ),
        Machine(
            name="p4d.24xlarge",
            gpus=8,
            gpu_memory_bytes=40 * GB,
            cpu_memory_bytes=1152 * GB,
            network_bytes_per_s=400e9 / 8,
        ),
        Machine(name="ND40rs_v2", gpus=8, gpu_memory_bytes=32 * GB, cpu_memory_bytes=672 * GB),
        Machine(name="ND96asr_v4", gpus=8, gpu_memory_bytes=40 * GB, cpu_memory_bytes=900 * GB),
        Machine(name="n1-8-v100", gpus=8, gpu_memory_bytes=32 * GB, cpu_memory_bytes=624 * GB),
        Machine(name="a2-highgpu-8g", gpus=8, gpu_memory_bytes=40 * GB, cpu_memory_bytes=640 * GB),
        Machine(name="DGX A100", gpus=8, gpu_memory_bytes=80 * GB, cpu_memory_bytes=2000 * GB),
    )
}
"""By name."""


def model_named(name: str) -> Model:
    """Return the model called `name`, or one of so many parameters: `"70B"`, `"1.3 B"`, `"350M"`.

    Raises:
        ConfigError: Neither.
    """
    if name in MODELS:
        return MODELS[name]
    units = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
    text = name.strip().upper()
    try:
        params = float(text[:-1]) * units[text[-1:]]
    except (KeyError, ValueError):
        raise ConfigError(
            f"there is no model {name!r}; give a size such as '70B' or one of {sorted(MODELS)}"
        ) from None
    if not 0 < params < 1e18:
        raise ConfigError(f"a model of {name!r} parameters cannot be; give a size such as '70B'")
    return Model(name=name.strip(), params=params, source="given")
