"""Stage 2: who keeps whose replica?"""

from gemini_lab.placement.adaptive import Proposal, Trial, propose_placement
from gemini_lab.placement.correlated import (
    loss_probability,
    rack_recovery_probability,
    sampled_loss_probability,
    window_chance,
)
from gemini_lab.placement.planner import Placement, plan_placement
from gemini_lab.placement.probability import (
    Estimate,
    best_possible,
    enumerated_probability,
    holder_sets,
    recovery_bound,
    recovery_probability,
    sampled_probability,
    theorem_gap,
)
from gemini_lab.placement.risk import Exposure, Risk

__all__ = [
    "Estimate",
    "Exposure",
    "Placement",
    "Proposal",
    "Risk",
    "Trial",
    "best_possible",
    "enumerated_probability",
    "holder_sets",
    "loss_probability",
    "plan_placement",
    "propose_placement",
    "rack_recovery_probability",
    "recovery_bound",
    "recovery_probability",
    "sampled_loss_probability",
    "sampled_probability",
    "theorem_gap",
    "window_chance",
]
