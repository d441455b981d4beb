"""Metrics are the figures of report and dashboard, under names that docs and board know."""

import json
import re
from pathlib import Path

import msgspec
import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from told_runs import ToldRun, with_a_bug, with_one_loss

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Call, Collectives, NodeAiling, RankSlow
from gemini_lab.report.metrics import PHASES, metrics_of
from gemini_lab.report.reducer import FOR_METRICS, RunReducer
from gemini_lab.report.tables.recoveries import losses as losses_of
from gemini_lab.report.tables.status import status
from gemini_lab.report.tables.time_breakdown import spent

DOCS = Path(__file__).parents[2] / "docs"


def reduced(run: ToldRun) -> RunReducer:
    reducer = RunReducer(keep=FOR_METRICS)
    reducer.extend(run.entries)
    return reducer


def scraped(run: RunReducer, *, now_s: float | None = None):
    """Every sample's value by its name and labels, as a reader of OpenMetrics gets it."""

    class Collector:
        def collect(self):
            return metrics_of(run, now_s=now_s or run.newest_s)

    registry = CollectorRegistry()
    registry.register(Collector())
    text = generate_latest(registry).decode()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    return {(one.name, *sorted(one.labels.values())): one.value for one in samples}


@pytest.fixture
def with_loss():
    return reduced(with_one_loss())


def test_the_parts_of_the_wall_time_sum_to_all_of_it(with_loss):
    parts = [
        value for key, value in scraped(with_loss).items() if key[0] == "gemini_lab_time_seconds"
    ]
    assert sum(parts) == pytest.approx(spent(with_loss).wall_s)


def test_a_run_that_is_over_does_not_age(with_loss):
    far_s = with_loss.newest_s + 1e6
    assert scraped(with_loss, now_s=far_s) == scraped(with_loss)


@pytest.mark.parametrize("entries", [0, 2, 3, 10, 40])
def test_a_run_can_be_scraped_from_its_first_word_on(entries):
    run = RunReducer(keep=FOR_METRICS)
    run.extend(with_a_bug().entries[:entries])
    scraped(run, now_s=run.newest_s or 0.0)


def test_docs_and_board_name_the_metrics_that_there_are(with_loss):
    families = {family.name: family.type for family in metrics_of(with_loss, now_s=0.0)}
    ends = {"counter": "_total", "info": "_info"}
    names = {name + ends.get(kind, "") for name, kind in families.items()}
    told = set(re.findall(r"gemini_lab_\w+", (DOCS / "how-to" / "metrics.md").read_text()))
    assert told == names
    suffixes = {"histogram": ("_bucket", "_sum", "_count")}
    asked = {
        name + suffix
        for name, kind in families.items()
        for suffix in suffixes.get(kind, (ends.get(kind, ""),))
    }
    board = json.loads((DOCS / "examples" / "grafana.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    drawn = {name for query in queries for name in re.findall(r"gemini_lab_\w+", query)}
    assert drawn <= asked
    assert len(drawn) > 15
    rules = yaml.safe_load((DOCS / "examples" / "alerts.yml").read_text())["groups"][0]["rules"]
    watched = {name for rule in rules for name in re.findall(r"gemini_lab_\w+", rule["expr"])}
    assert watched <= asked
    assert len(watched) > 10


def test_a_rule_of_a_phase_names_one_that_there_is():
    rules = (DOCS / "examples" / "alerts.yml").read_text()
    named = re.findall(r'gemini_lab_phase=~?"([^"]+)"', rules)
    assert {name for one in named for name in one.split("|")} <= {*PHASES}
    assert named


def test_who_came_last_to_collectives_is_evidence_of_a_slow_rank():
    run = reduced(ToldRun().protect().train(1, 3))
    for iteration, waits_s in ((3, {0: 0.2, 1: 0.3, 2: 0.1}), (4, {0: 0.2})):
        for rank, wait_s in waits_s.items():
            calls = [
                Call("all_reduce", 8, 0.5, 0.5 + wait_s),
                Call("broadcast", 8, 1.0, 1.0 + rank),
            ]
            event = Collectives.of(calls, rank=rank, epoch=1, iteration=iteration, began_s=1.0)
            run.take(Entry(at_s=run.newest_s, node="node-0", event=event))
    slow = RankSlow(
        rank=2,
        epoch=1,
        name="node-2",
        iteration=3,
        work_s=0.3,
        others_s=0.1,
        duration_s=0.4,
        behind=13,
    )
    run.take(Entry(at_s=run.newest_s, node="node-0", event=slow))
    (line,) = status(run, now_s=5.0, losses=losses_of(run)).ailing
    assert line == f"{slow}; it came last to 1 of 2 collectives of iteration 3"


def test_each_alert_has_its_runbook_and_each_runbook_its_alert():
    rules = yaml.safe_load((DOCS / "examples" / "alerts.yml").read_text())["groups"][0]["rules"]
    page = (DOCS / "how-to" / "alerts.md").read_text()
    names = [rule["alert"] for rule in rules]
    assert names == re.findall(r"^## (\w+)$", page, re.MULTILINE)
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"how-to/alerts.html#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"] in page


def test_slow_ranks_and_faults_of_machines_are_scraped_while_they_last():
    told = ToldRun().protect().train(1, 3)
    slow = RankSlow(
        rank=2,
        epoch=1,
        name="node-2",
        iteration=3,
        work_s=0.3,
        others_s=0.1,
        duration_s=0.4,
        behind=13,
    )
    ails = NodeAiling(name="node-1", fault="oom_kill", seen="one")
    over = [msgspec.structs.replace(one, is_over=True) for one in (slow, ails)]
    run = reduced(told)
    for at_s, event in enumerate([slow, ails, *over]):
        if at_s == 2:
            found = scraped(run)
            assert found["gemini_lab_slow_rank", "2", "node-2"] == pytest.approx(3.0)
            assert found["gemini_lab_node_ailing", "node-1", "oom_kill"] == 1
            lines = status(run, now_s=5.0, losses=losses_of(run)).ailing
            assert lines == (str(slow), "node-1: one")
        run.take(Entry(at_s=run.newest_s, node="node-0", event=event))
    assert not {"gemini_lab_slow_rank", "gemini_lab_node_ailing"} & {
        name for name, *_ in scraped(run)
    }
    assert status(run, now_s=5.0, losses=losses_of(run)).ailing == ()
