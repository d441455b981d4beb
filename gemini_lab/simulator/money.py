"""Cost of a simulated run: node-hours, and the share of them without lasting progress."""

from dataclasses import dataclass

from gemini_lab.simulator.outcome import Outcome
from gemini_lab.units import check_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Prices a machine and hour, in any currency.

    Power is such a price: with a machine's kW for it, every cost is energy in kWh.

    Attributes:
        node: Of a machine that trains, or waits to.
        extra: Of a machine that a policy needs beside them; without it, as `node`.
    """

    node: float
    extra: float | None = None

    def __post_init__(self) -> None:
        check_number("node", self.node)
        check_number("extra", self.extra_node)

    @property
    def extra_node(self) -> float:
        """Of a machine that a policy needs beside those that train."""
        return self.node if self.extra is None else self.extra


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Node-hours of a run; simulated. A lost machine is paid for until its replacement comes.

    Attributes:
        training_hours: Of the machines on positions.
        standby_hours: Of machines that wait.
        extra_hours: Of machines that the policy needs beside them.
        cost: Of all, in the price's currency.
    """

    training_hours: float
    standby_hours: float
    extra_hours: float
    cost: float

    @property
    def node_hours(self) -> float:
        """All of them."""
        return self.training_hours + self.standby_hours + self.extra_hours

    @property
    def idle_share(self) -> float:
        """The share of all node-hours that standbys and extra machines take."""
        return (self.standby_hours + self.extra_hours) / self.node_hours


def bill(outcome: Outcome, price: Price) -> Bill:
    """Compute the cost of a simulated run."""
    hours = outcome.wall_s / 3600
    training, standby = outcome.nodes * hours, outcome.standbys * hours
    extra = outcome.policy.extra_nodes * hours
    return Bill(
        training_hours=training,
        standby_hours=standby,
        extra_hours=extra,
        cost=(training + standby) * price.node + extra * price.extra_node,
    )
