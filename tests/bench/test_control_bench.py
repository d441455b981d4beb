"""The `control` bench's arithmetic; what it measures is measured by running it."""

import psutil
import pytest

from gemini_lab.errors import ConfigError
from gemini_lab_bench.benches.control import ControlPlan, _growth, bench, measure
from gemini_lab_bench.benches.control_lab import read_use
from gemini_lab_bench.rows import Row

METRICS = """\
# TYPE grpc_server_msg_received_total counter
grpc_server_msg_received_total{grpc_method="Range",grpc_service="KV",grpc_type="unary"} 40
grpc_server_msg_received_total{grpc_method="LeaseKeepAlive",grpc_type="bidi_stream"} 2.5e+02
grpc_server_msg_sent_total{grpc_method="Range",grpc_service="KV",grpc_type="unary"} 40
etcd_network_client_grpc_received_bytes_total 7
etcd_network_client_grpc_sent_bytes_total 1.5e+06
"""


def test_operations_are_requests_on_streams_and_alone() -> None:
    assert (read_use(METRICS).operations, read_use(METRICS).sent_bytes) == (290.0, 1.5e6)


def test_the_use_of_a_while_is_a_difference() -> None:
    later = read_use(METRICS.replace("} 40", "} 60"))
    assert (later - read_use(METRICS)).operations == 20.0


@pytest.mark.parametrize("agents", ["10,many", "3", "10,,100"])
def test_sizes_that_cannot_be_measured_are_refused(agents: str) -> None:
    with pytest.raises(ConfigError, match=r"--agents .* 2 repeats kill 2 agents"):
        bench(2, agents=agents, seconds=1.0, lease_s=2.0, limit_s=1.0)


def test_a_quantity_that_two_sizes_tell_grows_with_a_power() -> None:
    rows = [Row("etcd", (n / 100,), settings={"agents": n}) for n in (10, 100, 1000)]
    (found,) = _growth([*rows[:2], Row("etcd", (), why_not="the time was over")])
    assert found.name == "etcd: grows with the agents to the power"
    assert found.value == pytest.approx(1.0)
    assert [*_growth(rows[:1])] == []


def test_a_lab_that_takes_too_long_ends_with_what_was_waited_for() -> None:
    """Real agents are begun, and ended again at the limit."""
    before = len(psutil.Process().children())
    rows = measure(3, ControlPlan(repeats=1, seconds=1.0, lease_s=2.0, limit_s=0.5))
    assert {row.why_not for row in rows} == {
        "0.5 s were over while it waited for agents to come up"
    }
    assert len(psutil.Process().children()) == before
