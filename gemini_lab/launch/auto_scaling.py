"""Machines of an EC2 Auto Scaling group, as the paper's cloud operator has them (section 6.2)."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from gemini_lab.errors import CapacityError, ConfigError, LaunchError
from gemini_lab.launch.provider import Fleet, Invitation

STAYS: Final = ("Pending", "InService")  # also "Pending:Wait" and such, of hooks


class AutoScaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="auto-scaling"):
    """Sets the capacity of an Auto Scaling group that serves one lab; implements `Provider`.

    The group's launch template starts `gemini-lab node`, and tells it the instance's id.

    Attributes:
        group: The group's name.
        region: Where it is; `None`: as boto3 finds it, in `AWS_REGION` or its files.
    """

    group: str
    region: str | None = None

    def fleet(self, lab: Invitation) -> Fleet:
        """The group's healthy instances, and what its desired capacity still lacks."""
        del lab
        found = self._look()
        there = [one for one in found["Instances"] if one["LifecycleState"].startswith(STAYS)]
        running = frozenset(one["InstanceId"] for one in there if one["HealthStatus"] == "Healthy")
        return Fleet(running=running, promised=max(0, found["DesiredCapacity"] - len(there)))

    def ask(self, lab: Invitation, count: int) -> None:
        """Raise the desired capacity by `count`.

        Raises:
            CapacityError: It would be above the group's maximum.
        """
        del lab
        found = self._look()
        wanted, most = found["DesiredCapacity"] + count, found["MaxSize"]
        if wanted > most:
            raise CapacityError(
                f"{count} more machines would make {wanted} in the Auto Scaling group "
                f"{self.group!r}, whose maximum is {most}; raise it: `aws autoscaling "
                f"update-auto-scaling-group --auto-scaling-group-name {self.group} "
                f"--max-size {wanted}`, or ask for fewer nodes and standbys"
            )
        self._desire(wanted)

    def give_back(self, lab: Invitation) -> None:
        """Set the desired capacity to the group's minimum."""
        del lab
        self._desire(self._look()["MinSize"])

    def _look(self) -> dict[str, Any]:
        answer = self._call(
            lambda client: client.describe_auto_scaling_groups(AutoScalingGroupNames=[self.group])
        )
        if not answer["AutoScalingGroups"]:
            where = self.region or "boto3's default region"
            raise ConfigError(
                f"there is no Auto Scaling group {self.group!r} in {where}; check its name and "
                "region: `aws autoscaling describe-auto-scaling-groups`"
            )
        found: dict[str, Any] = answer["AutoScalingGroups"][0]
        return found

    def _desire(self, capacity: int) -> None:
        self._call(
            lambda client: client.set_desired_capacity(
                AutoScalingGroupName=self.group, DesiredCapacity=capacity, HonorCooldown=False
            )
        )

    def _call(self, act: Callable[[Any], Any]) -> Any:
        try:
            import boto3  # noqa: PLC0415  (an extra)
            from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(
                "an Auto Scaling group needs boto3, which is not installed; "
                "`pip install 'gemini-lab[ec2]'`"
            ) from error
        try:
            return act(boto3.client("autoscaling", region_name=self.region))
        except (BotoCoreError, ClientError) as error:
            raise LaunchError(
                f"EC2 did not do what was asked of the Auto Scaling group {self.group!r}: {error}; "
                "check region, credentials and their rights with `aws autoscaling "
                "describe-auto-scaling-groups`"
            ) from error
