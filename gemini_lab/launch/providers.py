"""The providers that come with the package, by the words that name them."""

import shlex
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.launch.auto_scaling import AutoScaling
from gemini_lab.launch.slurm import Slurm

WORDS: Final = "'slurm [SBATCH OPTIONS]' or 'auto-scaling GROUP [REGION]'"


def parse_provider(text: str) -> Slurm | AutoScaling:
    """The provider that words such as `slurm --partition=gpu` name.

    Raises:
        ConfigError: They name none, or one that cannot be.
    """
    try:
        match shlex.split(text):
            case ["slurm", *options]:
                return Slurm(tuple(options))
            case ["auto-scaling", group]:
                return AutoScaling(group)
            case ["auto-scaling", group, region]:
                return AutoScaling(group, region)
    except ValueError as error:  # an open quote
        if isinstance(error, ConfigError):
            raise
    raise ConfigError(f"cannot read the provider {text!r}; write {WORDS}")
