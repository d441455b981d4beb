"""The `control` bench's arithmetic; what it measures is measured by running it."""

import psutil
import pytest

from gemini_lab.errors import ConfigError
from gemini_lab_bench.benches.control import Plan, bench, measure, table
from gemini_lab_bench.benches.store_metrics import read_use
from gemini_lab_bench.command import BENCHES
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


def row(size: int, *values: float, why_not: str = "") -> Row:
    settings = {"agents": size, "iterations_per_s": 10.0, "lease_s": 2.0}
    return Row(name="etcd", unit="cores", values=values, settings=settings, why_not=why_not)


def test_the_table_has_a_column_for_each_size_and_how_a_quantity_grows() -> None:
    values = (0.1, 0.2, 0.3) * 4
    told = table([row(10, *values), row(100, 2.0), Row(name="etcd", values=(1.0,))])
    head, line, spread, *_ = told.splitlines()
    assert head.split() == ["agents", "10", "100", "growth"]
    assert line.split() == ["etcd,", "cores", "0.2", "2", "N^1.00"]
    assert spread.split() == ["0.1..0.3"]


def test_the_table_says_what_was_not_measured_and_why() -> None:
    told = table([row(10, 0.2), row(100, why_not="the time was over"), Row(name="etcd", values=())])
    assert "not measured" in told.splitlines()[1]
    assert told.splitlines()[-1] == "not all was measured at 100 agents: the time was over"


def test_a_lab_that_takes_too_long_ends_with_what_was_waited_for() -> None:
    """Real agents are begun, and ended again at the limit."""
    before = len(psutil.Process().children())
    rows = measure(3, Plan(repeats=1, seconds=1.0, lease_s=2.0, limit_s=0.5))
    assert {row.why_not for row in rows} == {
        "0.5 s were over while it waited for agents to come up"
    }
    assert len(psutil.Process().children()) == before


def test_the_bench_stands_in_the_table() -> None:
    assert BENCHES["control"][0] == "gemini_lab_bench.benches.control:bench"
