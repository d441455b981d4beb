"""Stage 2: who keeps whose replica?"""

from gemini_lab.placement.planner import Placement, plan_placement

__all__ = ["Placement", "plan_placement"]
