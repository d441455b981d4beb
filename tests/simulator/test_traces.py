"""Claims about public traces; the samples are our own, in the forms that the traces come in."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.simulator import (
    paper_workload,
    read_acme,
    read_lanl,
    read_philly,
    read_trace,
    simulate,
)
from gemini_lab.simulator.policy import gemini

LANL = """\
System,machine type,nodenumz,Prob Started (mm/dd/yy hh:mm),Prob Fixed (mm/dd/yy hh:mm),\
Down Time,Facilities,Hardware,Human Error,Network,Undetermined,Software,Same Event
20,cluster,7,06/01/2004 10:00,06/01/2004 12:30,150,,Memory Dimm,,,,,No
20,cluster,31,06/02/2004 10:00,06/02/2004 10:10,10,,,,,,Parallel File System,No
20,cluster,7,06/03/2004 10:00,06/03/2004 11:00,60,,,,,Unresolvable,,No
8,cluster,3,06/02/2004 00:00,,,Power Outage,,,,,,No
"""
PHILLY = [
    {
        "status": "Failed",
        "jobid": "a",
        "attempts": [
            {
                "start_time": "2017-10-07 01:00:00",
                "end_time": "2017-10-07 02:00:00",
                "detail": [{"ip": "m4", "gpus": ["gpu0"]}],
            },
            {
                "start_time": "2017-10-07 02:10:00",
                "end_time": "2017-10-08 02:00:00",
                "detail": [{"ip": "m12", "gpus": ["gpu0"]}, {"ip": "m4", "gpus": ["gpu1"]}],
            },
        ],
    },
    {
        "status": "Pass",
        "jobid": "b",
        "attempts": [
            {
                "start_time": "2017-10-07 01:00:00",
                "end_time": "2017-10-09 02:00:00",
                "detail": [{"ip": "m5", "gpus": ["gpu0"]}],
            },
            {"start_time": "2017-10-09 03:00:00", "end_time": None, "detail": []},
        ],
    },
    {"status": "Killed", "jobid": "c", "attempts": []},
]
ACME = """\
job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,fail_time,duration
a,u1,1,8,128,Other,FAILED,2023-03-01 00:00:00+08:00,2023-03-01 00:00:30+08:00,\
2023-03-01 02:00:00+08:00,2023-03-01 01:59:00+08:00,7170
b,u1,1,8,128,Other,COMPLETED,2023-03-01 00:00:00+08:00,2023-03-01 00:00:30+08:00,\
2023-03-01 01:00:00+08:00,,3570
c,u1,4,32,512,Pretrain,NODE_FAIL,2023-03-01 00:00:00+08:00,2023-03-01 00:00:30+08:00,\
2023-03-02 01:00:00+08:00,,89970
d,u1,1,1,16,Eval,FAILED,2023-03-01 00:00:00+08:00,2023-03-01 00:00:30+08:00,\
2023-03-01 00:01:00+08:00,2023-03-01 00:01:00+08:00,30
"""


PHILLY_BY_NUMBER = json.dumps(
    [
        {
            "status": "Failed",
            "attempts": [{"end_time": "2017-10-07 02:00:00", "detail": [{"ip": 7}]}],
        }
    ]
)


def test_lanls_table_gives_causes_and_machines(tmp_path):
    path = tmp_path / "lanl.csv"
    path.write_text(LANL)
    trace = read_lanl(path, nodes=40, system="20")
    assert [(o.at_s, o.kind, o.positions, o.cause) for o in trace.outages] == [
        (0.0, "hardware", (7,), "hardware"),
        (86_400.0, "software", (31,), "software"),
        (2 * 86_400.0, "hardware", (7,), "undetermined"),
    ]
    assert trace.machines == ("20/7", "20/31")
    assert len(read_lanl(path, nodes=4).outages) == 4


def test_phillys_attempts_fail_where_another_follows_or_the_job_failed(tmp_path):
    path = tmp_path / "cluster_job_log"
    path.write_text(json.dumps(PHILLY))
    trace = read_philly(path, nodes=8)
    assert trace.machines == ("m4", "m12")
    assert [(o.at_s, o.kind) for o in trace.outages] == [(0.0, "software"), (86_400.0, "software")]
    assert trace.days == pytest.approx(2.0)


def test_acmes_states_say_what_failed_and_small_jobs_are_left_out(tmp_path):
    path = tmp_path / "trace_kalos.csv"
    path.write_text(ACME)
    trace = read_acme(path, nodes=8)
    assert [(o.at_s, o.kind, o.cause) for o in trace.outages] == [
        (59 * 60.0, "software", "failed"),
        (86_400.0, "hardware", "node_fail"),
    ]
    assert len(read_acme(path, nodes=8, least_gpus=1).outages) == 3
    assert "machines are drawn" in trace.assumptions


def lanl_of(struck):
    """A table of one system's failures, an hour apart, on these machines."""
    head = LANL.splitlines()[0]
    began = datetime(2004, 6, 1, tzinfo=UTC)
    times = [(began + timedelta(hours=i)).strftime("%m/%d/%Y %H:%M") for i in range(len(struck))]
    lines = [
        f"20,cluster,{machine},{at},,,,Disk,,,,,No"
        for machine, at in zip(struck, times, strict=True)
    ]
    return "\n".join([head, *lines]) + "\n"


def test_machines_are_dealt_over_all_positions_where_nothing_tells_theirs(tmp_path):
    """Of 1000 positions, not the first ones, which keep one another's replicas."""
    path = tmp_path / "lanl.csv"
    path.write_text(lanl_of([2000 + i for i in range(60)]))
    positions = [o.positions[0] for o in read_lanl(path, nodes=1000).outages]
    assert len(set(positions)) == 60
    assert max(positions) > 500
    assert positions == [o.positions[0] for o in read_lanl(path, nodes=1000).outages]
    assert positions != [o.positions[0] for o in read_lanl(path, nodes=1000, seed=1).outages]
    shared = {o.positions[0] for o in read_lanl(path, nodes=16).outages}
    assert shared == set(range(16))


def test_a_machine_that_is_drawn_sits_where_it_was_drawn(tmp_path):
    path = tmp_path / "trace_seren.csv"
    lines = [f"NODE_FAIL,8,2023-03-0{day} 00:00:00" for day in (1, 3, 5)]
    path.write_text("\n".join(["state,gpu_num,end_time", *lines]))
    trace = read_acme(path, nodes=1000)
    assert {f"m{o.positions[0]}" for o in trace.outages} == set(trace.machines)


def test_moments_of_several_time_zones_are_set_right(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(
        "state,gpu_num,end_time\nFAILED,8,2023-03-01 08:00:00+08:00\n"
        "FAILED,8,2023-03-01 08:00:00+00:00\nFAILED,8,2023-03-01 09:00:00\n"
    )
    assert [o.at_s for o in read_acme(path, nodes=4).outages] == [0.0, 8 * 3600.0, 9 * 3600.0]


def test_a_file_may_begin_with_a_mark_of_its_encoding_and_be_named_by_text(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("\ufefftime,node,kind\n1,1,hardware\n")
    assert len(read_trace(str(path), nodes=4)) == 1


@pytest.mark.parametrize("read", [read_lanl, read_philly, read_acme, read_trace])
def test_a_file_that_is_none_is_refused(tmp_path, read):
    with pytest.raises(ConfigError, match=r"cannot read a trace from .*No such file"):
        read(tmp_path / "none", nodes=4)
    with pytest.raises(ConfigError, match=r"cannot read a trace from .*directory"):
        read(tmp_path, nodes=4)
    (tmp_path / "latin").write_bytes(b"time,node,kind,state\n1,1,\xe9,\n")
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        read(tmp_path / "latin", nodes=4)
    for nodes in (0, -3, 2.5):
        with pytest.raises(ConfigError, match=f"`nodes` must be from 1 on.*got {nodes}"):
            read(tmp_path / "none", nodes=nodes)


def test_philly_is_no_trace_of_kinds_that_a_machine_does_not_tell(tmp_path):
    for kind in ("banana", "straggler", "rack"):
        with pytest.raises(ConfigError, match=f"software, gpu, hardware .got '{kind}'"):
            read_philly(tmp_path / "log", nodes=4, kind=kind)


def test_a_public_trace_plays_in_the_simulator(tmp_path):
    path = tmp_path / "lanl.csv"
    path.write_text(LANL)
    workload = paper_workload(standbys=2)
    outages = read_lanl(path, nodes=workload.nodes).outages
    outcome = simulate(workload, gemini(workload), outages, days=5)
    assert outcome.failures == 4


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_lanl, "System,nodenumz\n", r"begins with \['prob started'\]"),
        (read_lanl, LANL.replace("06/01/2004 10:00", "a day"), "line 2: 'a day' is no moment"),
        (read_lanl, LANL.splitlines()[0], "no failure"),
        (read_philly, "{}", "no list of jobs but a dict"),
        (read_philly, "nothing", "no JSON"),
        (read_philly, '[{"status": "Failed"}]', "job 0 is no job of Philly's"),
        (read_acme, "state,gpu_num\n", r"lacks the column\(s\) \['end_time'\]"),
        (read_acme, "state,gpu_num,end_time\nFAILED,many,2023-01-01 00:00:00\n", "'many'"),
        (read_acme, "state,gpu_num,end_time\nFAILED,nan,2023-01-01 00:00:00\n", "'nan'"),
        (read_acme, "state,gpu_num,end_time\nFAILED\n", "line 2 has fewer columns"),
        (read_lanl, LANL + "20,cluster\n", "line 6 has fewer columns"),
        (read_philly, '[{"status": "Failed", "attempts": [{"end_time": 7}]}]', "7 is no moment"),
        (read_philly, PHILLY_BY_NUMBER, "job 0: a machine's `ip` is 7"),
        (read_trace, "time,node,kind\n1,1\n", "line 2 has fewer columns"),
        (read_trace, "time,node,kind\ninf,1,software\n", "time inf"),
    ],
)
def test_a_trace_that_cannot_be_read_is_refused_with_its_place(tmp_path, read, text, message):
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read(path, nodes=4)
