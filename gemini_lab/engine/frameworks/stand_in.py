"""What state an optimizer makes for a weight, asked of the optimizer itself.

Most make it at their first step. So one weight after the other the optimizer takes a step with a
gradient of zeros, on a stand-in for the weight, with a state and parameter groups that are empty
but for it. The script's weights and the optimizer's state are not in its hands meanwhile, but for a
copy of what that has for all weights together. The optimizer's own attributes, also lists and
dicts, and the random states are put back, so nothing of the script's can have changed. What it made
for the stand-in has the very types, forms and devices of what it will make.
"""

import copy
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch

from gemini_lab.engine.frameworks.options import beside_weights, copied
from gemini_lab.engine.random_states import random_states, restore_random_states
from gemini_lab.errors import UnsupportedError


def state_for(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], weight: torch.Tensor
) -> dict[str, Any]:
    """The state that `optimizer` makes for a weight of that parameter group at its first step.

    Raises:
        UnsupportedError: It cannot take a step on a single weight with a gradient of zeros.
    """
    # With the weight's own values: what an optimizer keeps may depend on them.
    twin = weight.detach().clone().requires_grad_(weight.requires_grad)
    twin.grad = torch.zeros_like(twin)
    options = copy.deepcopy({key: value for key, value in group.items() if key != "params"})
    step: Any = type(optimizer).step
    kept, random = dict(vars(optimizer)), random_states()
    try:
        vars(optimizer).update({name: copied(value) for name, value in kept.items()})
        optimizer.param_groups = [{**options, "params": [twin]}]
        optimizer.state = defaultdict(dict, copy.deepcopy(beside_weights(optimizer)))
        vars(optimizer).update(_optimizer_step_pre_hooks={}, _optimizer_step_post_hooks={})
        getattr(step, "__wrapped__", step)(optimizer)
        return dict(optimizer.state.get(twin, {}))
    except Exception as error:  # whatever the optimizer of somebody else leads to
        raise UnsupportedError(
            f"the state of {type(optimizer).__name__} cannot be foreseen: a step on a stand-in of "
            f"{[*weight.shape]} failed ({type(error).__name__}: {error}); use an optimizer that "
            "needs no closure and can step on such a weight alone, or take a first step before "
            "`protect`"
        ) from error
    finally:
        vars(optimizer).clear()
        vars(optimizer).update(kept)
        restore_random_states(random)
