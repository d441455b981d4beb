"""Claims about public traces; the samples are our own, in the forms that the traces come in."""

import json

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.simulator import paper_workload, read_acme, read_lanl, read_philly, simulate
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


def test_lanls_table_gives_causes_machines_and_repair_times(tmp_path):
    path = tmp_path / "lanl.csv"
    path.write_text(LANL)
    trace = read_lanl(path, nodes=4, system="20")
    assert [(o.at_s, o.kind, o.positions, o.cause) for o in trace.outages] == [
        (0.0, "hardware", (0,), "hardware"),
        (86_400.0, "software", (1,), "software"),
        (2 * 86_400.0, "hardware", (0,), "undetermined"),
    ]
    assert trace.machines == ("20/7", "20/31")
    assert trace.repairs is not None
    assert trace.repairs.samples_s == (9000.0, 600.0, 3600.0)
    assert trace.per_machine_per_day == pytest.approx(3 / 2 / 2)
    assert len(read_lanl(path, nodes=4).outages) == 4


def test_phillys_attempts_fail_where_another_follows_or_the_job_failed(tmp_path):
    path = tmp_path / "cluster_job_log"
    path.write_text(json.dumps(PHILLY))
    trace = read_philly(path, nodes=8)
    assert trace.machines == ("m4", "m12")
    assert [(o.at_s, o.kind, o.positions) for o in trace.outages] == [
        (0.0, "software", (0,)),
        (86_400.0, "software", (1,)),
    ]
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
        (read_lanl, "System,nodenumz\n", r"begins with \['prob fixed', 'prob started'\]"),
        (read_lanl, LANL.replace("06/01/2004 10:00", "a day"), "line 2: 'a day' is no moment"),
        (read_lanl, LANL.splitlines()[0], "no failure"),
        (read_philly, "{}", "no list of jobs but a dict"),
        (read_philly, "nothing", "no JSON"),
        (read_philly, '[{"status": "Failed"}]', "job 0 is no job of Philly's"),
        (read_acme, "state,gpu_num\n", r"lacks the column\(s\) \['end_time'\]"),
        (read_acme, "state,gpu_num,end_time\nFAILED,many,2023-01-01 00:00:00\n", "'many'"),
    ],
)
def test_a_trace_that_cannot_be_read_is_refused_with_its_place(tmp_path, read, text, message):
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read(path, nodes=4)
