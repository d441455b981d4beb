"""Machines that a provider brings: how many are asked for, and what EC2 Auto Scaling is told."""

import json

import boto3
import msgspec
import pytest
from moto import mock_aws
from store_stand_in import StoreStandIn

from gemini_lab import AutoScaling, Fleet, Invitation, Lab, Slurm
from gemini_lab.errors import CapacityError, ConfigError, LaunchError
from gemini_lab.launch.join import JoinOperator, take_name
from gemini_lab.launch.provider import JoinedNodes, Supply, missing, parse_provider
from gemini_lab.node.etcd_address import EtcdAddress

TOKEN = "0123456789abcdef"
REGION = "eu-central-1"
LAB = Invitation(
    lab="exp",
    identity="17",
    etcd=EtcdAddress(endpoints=("a:1", "b:1"), user="root", password="hidden"),
    token=TOKEN,
)


class Cloud:
    """A provider whose machines come at once, and join or do not."""

    def __init__(self, store, *, joins=True):
        self.store, self.joins = store, joins
        self.asked, self.running, self.promised = [], set(), 0

    def fleet(self, lab):
        assert lab == LAB
        return Fleet(running=frozenset(self.running), promised=self.promised)

    def ask(self, lab, count):
        assert lab == LAB
        self.asked.append(count)
        for _ in range(count if self.joins else 0):
            self.join(f"m{len(self.running)}")

    def give_back(self, lab):
        assert lab == LAB
        self.running.clear()

    def join(self, machine):
        self.running.add(machine)
        name = take_name(self.store, "host", machine=machine)
        self.store.put(f"nodes/{name}", json.dumps({"address": f"10.0.0.1:{len(self.running)}"}))
        return name


@pytest.fixture
def store():
    return StoreStandIn()


@pytest.fixture
def cloud(store):
    return Cloud(store)


def operator(cloud, wait_s=30.0):
    said = []
    supply = Supply(provider=cloud, lab=LAB)
    joined = JoinOperator(
        store=cloud.store, token=TOKEN, wait_s=wait_s, tell=said.append, supply=supply
    )
    return joined, said


def joined(machine_of=None, up=(), known=()):
    return JoinedNodes(machine_of=machine_of or {}, up=up, known=known)


def fleet(*running, promised=0):
    return Fleet(running=frozenset(running), promised=promised)


@pytest.mark.parametrize(
    ("count", "there", "who", "asked"),
    [
        pytest.param(3, fleet(), joined(), 3, id="nothing is there"),
        pytest.param(3, fleet("a", promised=1), joined(), 1, id="on the way"),
        pytest.param(2, fleet("a"), joined({"node-0": "a"}), 1, id="begins to join"),
        pytest.param(2, fleet("a"), joined({"node-0": "a"}, ["node-0"]), 1, id="is up and new"),
        pytest.param(
            1, fleet("a"), joined({"node-0": "a"}, ["node-0"], ["node-0"]), 1, id="is up and known"
        ),
        pytest.param(1, fleet("a"), joined({"node-0": "a"}, [], ["node-0"]), 1, id="is lost"),
        pytest.param(
            1, fleet(), joined({"node-0": "host"}, ["node-0"]), 0, id="came without a provider"
        ),
        pytest.param(1, fleet("a", "b", promised=3), joined(), 0, id="more than enough"),
    ],
)
def test_so_many_machines_are_asked_for_as_neither_came_nor_are_on_their_way(
    count, there, who, asked
):
    assert missing(count, there, who) == asked


def test_a_lost_node_gets_one_machine_more_and_the_lab_leaves_none(cloud):
    machines, _ = operator(cloud)
    first = machines.bring(2)
    assert [agent.name for agent in first] == ["node-0", "node-1"]
    cloud.store.delete("nodes/node-0")
    assert [agent.name for agent in machines.bring(1)] == ["node-2"]
    assert cloud.asked == [2, 1]
    assert cloud.running == {"m0", "m1", "m2"}  # the lost one may come back with its memory
    machines.clear()
    assert cloud.running == set()


def test_another_owner_of_the_lab_asks_for_nothing_twice(cloud):
    machines, _ = operator(cloud)
    known = {agent.name for agent in machines.bring(2)}
    cloud.promised = 1
    again, _ = operator(cloud, wait_s=0)
    again.know(known)
    with pytest.raises(CapacityError, match="nothing is heard of 1 more"):
        again.bring(1)
    assert cloud.asked == [2]


def test_machines_that_end_before_they_join_are_not_waited_for(store):
    cloud = Cloud(store, joins=False)
    machines, _ = operator(cloud, wait_s=600)
    with pytest.raises(CapacityError, match="2 of 2 machines that were asked for have ended"):
        machines.bring(2)


def test_a_machine_that_began_to_join_and_never_did_is_given_up(cloud):
    machines, _ = operator(cloud, wait_s=0)
    cloud.joins = False
    cloud.running.add("m0")
    take_name(cloud.store, "host", machine="m0")
    for asked in ([], [1]):
        with pytest.raises(CapacityError):
            machines.bring(1)
        assert cloud.asked == asked


def test_what_a_machine_is_told_shows_no_secret_in_its_arguments():
    assert LAB.command == ("node", "--lab", "exp", "--etcd", "a:1,b:1")
    told = LAB.environment()
    assert (told["GEMINI_LAB_TOKEN"], told["ETCDCTL_USER"]) == (TOKEN, "root")
    assert told["ETCDCTL_PASSWORD"] == "hidden"
    assert "ETCDCTL_CACERT" not in told


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("slurm", Slurm()),
        ("slurm --partition=gpu -t 8:00", Slurm(("--partition=gpu", "-t", "8:00"))),
        ("auto-scaling exp", AutoScaling("exp")),
        ("auto-scaling exp eu-west-1", AutoScaling("exp", "eu-west-1")),
    ],
)
def test_words_name_a_provider(words, meant):
    assert parse_provider(words) == meant
    assert msgspec.json.decode(msgspec.json.encode(meant), type=Slurm | AutoScaling) == meant


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("pbs", "write 'slurm"),
        ("auto-scaling", "auto-scaling GROUP"),
        ("slurm --comment='open", "cannot read"),
        ("slurm --nodes=4", "leave the number to --nodes"),
        ("slurm -N4", "leave the number to --nodes"),
        ("slurm --job-name exp", "is found by its name"),
    ],
)
def test_words_that_name_no_provider_are_refused_with_the_way_out(words, said):
    with pytest.raises(ConfigError, match=said):
        parse_provider(words)


def test_a_provider_whose_machines_have_no_lab_to_join_is_refused():
    with pytest.raises(ConfigError, match="--join"):
        Lab(provider="slurm", etcd="127.0.0.1:1", token=TOKEN)


def test_without_slurm_the_way_out_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LaunchError, match="on a login node"):
        Slurm().ask(LAB, 1)


# -- EC2 -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def group():
    """A group of no instances, four at most, in an EC2 of this process."""
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        client = boto3.client("autoscaling", region_name=REGION)
        client.create_launch_configuration(
            LaunchConfigurationName="node", ImageId="ami-12c6146b", InstanceType="t3.micro"
        )
        client.create_auto_scaling_group(
            AutoScalingGroupName="exp",
            LaunchConfigurationName="node",
            MinSize=0,
            MaxSize=4,
            AvailabilityZones=[f"{REGION}a"],
        )
        yield AutoScaling("exp", REGION)


def test_a_group_grows_by_what_is_asked_and_shrinks_to_its_minimum(group):
    assert group.fleet(LAB) == Fleet()
    group.ask(LAB, 2)
    first = group.fleet(LAB)
    assert (len(first.running), first.promised) == (2, 0)
    group.ask(LAB, 1)
    assert first.running < group.fleet(LAB).running
    group.give_back(LAB)
    assert group.fleet(LAB) == Fleet()


def test_more_than_the_group_may_have_is_refused_with_the_way_out(group):
    with pytest.raises(CapacityError, match="--max-size 5"):
        group.ask(LAB, 5)
    assert group.fleet(LAB) == Fleet()


@pytest.mark.usefixtures("group")
def test_a_group_that_is_not_there_is_refused_with_the_way_out():
    with pytest.raises(ConfigError, match="no Auto Scaling group 'other' in eu-central-1"):
        AutoScaling("other", REGION).fleet(LAB)


def test_what_ec2_refuses_is_said_with_the_way_out(monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(LaunchError, match="check region"):
        AutoScaling("exp").fleet(LAB)
