"""The random number generators that all code shares: Python's, numpy's, torch's, the device's.

With them go those that DeepSpeed's tracker has by name, such as a tensor parallel rank's own.
"""

import random
from typing import Any, Final

import numpy as np
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.activation_checkpointing.checkpointing import get_cuda_rng_tracker

from gemini_lab.engine.contract import StateDict, StateView

GENERATORS: Final = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""Classes of those that a script makes of its own."""
Generator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
_has_device = True


def forget_device() -> None:
    """Leave the device's generator out from now on: a process that was forked has no device."""
    global _has_device  # noqa: PLW0603 - of the process
    _has_device = False


def random_states() -> StateDict:
    """Return their states as they are now, for the codec."""
    device = get_accelerator()
    is_left_out = not _has_device or device.device_name() == "cpu"
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 - scripts still use it
        "torch": torch.get_rng_state(),
        "device": None if is_left_out else device.get_rng_state(),
        "named": get_cuda_rng_tracker().get_states(),
    }


def seeded_random_states(seed: int) -> StateDict:
    """Seed the generators with a number, and return their states; those with names keep theirs."""
    random.seed(seed)
    # numpy's old generator refuses larger seeds.
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)  # the device's too
    return random_states()


def restore_random_states(states: StateView) -> None:
    """Put back what `random_states` gave."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    if states["device"] is not None:
        get_accelerator().set_rng_state(states["device"])
    # Not in place: whoever captured them, such as an activation checkpoint, holds the tensors.
    get_cuda_rng_tracker().set_states(dict(states["named"]))


def read_generator(one: Generator) -> Any:
    """Return the state of one of `GENERATORS`, for the codec."""
    match one:
        case torch.Generator():
            return one.get_state()
        case np.random.Generator():
            return one.bit_generator.state
        case np.random.RandomState():
            return one.get_state(legacy=False)
    return one.getstate()


def is_generator_state(value: object) -> bool:
    """Return whether `read_generator` gave this, and no attribute that is plain."""
    if isinstance(value, dict):
        return "bit_generator" in value
    if isinstance(value, tuple):  # Python's: a version, 625 words, and a normal number to come
        return [_length(one) for one in value] == [_length(one) for one in random.getstate()]
    return isinstance(value, torch.Tensor)


def _length(one: object) -> int:
    return len(one) if isinstance(one, tuple) else 0


def put_generator(one: Generator, state: Any) -> None:
    """Put back what `read_generator` gave."""
    match one:
        case torch.Generator():
            one.set_state(state)
        case np.random.Generator():
            one.bit_generator.state = state
        case np.random.RandomState():
            one.set_state(state)
        case _:
            one.setstate(state)
