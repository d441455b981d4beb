"""The alert rules, evaluated by Prometheus' own `promtool` on series that fire them and do not."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

RULES = Path(__file__).parents[2] / "docs" / "examples" / "alerts.yml"
TOOL = shutil.which("promtool")
TRAINING = 'gemini_lab_phase{gemini_lab_phase="training"}'
# By alert: what a run tells each minute when it is to fire, and when it is not.
CASES = {
    "GeminiLabRunFailed": (
        {'gemini_lab_phase{gemini_lab_phase="failed"}': "1x60"},
        {TRAINING: "1x60", 'gemini_lab_phase{gemini_lab_phase="failed"}': "0x60"},
    ),
    "GeminiLabRunSilent": (
        {"gemini_lab_silent_seconds": "0+60x60"},
        {
            "gemini_lab_silent_seconds": "0+60x60",
            'gemini_lab_phase{gemini_lab_phase="finished"}': "1x60",
        },
    ),
    "GeminiLabStandsStill": (
        {"gemini_lab_iteration": "7x60", TRAINING: "1x60"},
        {"gemini_lab_iteration": "7+1x60", TRAINING: "1x60"},
    ),
    "GeminiLabWaits": (
        {'gemini_lab_phase{gemini_lab_phase="waiting for machines"}': "1x60"},
        {'gemini_lab_phase{gemini_lab_phase="waiting for machines"}': "1x5 0x54"},
    ),
    "GeminiLabUnprotected": (
        {"gemini_lab_survivable_nodes": "0x60", TRAINING: "1x60"},
        {"gemini_lab_survivable_nodes": "0x5 1x54", TRAINING: "1x60"},
    ),
    "GeminiLabVersionOld": (
        {"gemini_lab_version_age_seconds": "0+60x60", TRAINING: "1x60"},
        {"gemini_lab_version_age_seconds": "30x60", TRAINING: "1x60"},
    ),
    "GeminiLabNotSaved": (
        {"gemini_lab_persistent_failures_total": "0x30 1x30"},
        {"gemini_lab_persistent_failures_total": "4x60"},
    ),
    "GeminiLabRecoversOften": (
        {"gemini_lab_recoveries_total": "0+1x10 10x50"},
        {"gemini_lab_recoveries_total": "0x20 2x40"},
    ),
    "GeminiLabDiverged": (
        {"gemini_lab_divergences_total": "0x30 1x30"},
        {"gemini_lab_divergences_total": "2x60"},
    ),
    "GeminiLabRankSlow": ({"gemini_lab_slow_rank": "2x60"}, {"gemini_lab_slow_rank": "1.2x60"}),
    "GeminiLabNodeAiling": ({"gemini_lab_node_ailing": "1x60"}, {"gemini_lab_node_ailing": "0x60"}),
    "GeminiLabGoodputLow": (
        {"gemini_lab_goodput_ratio": "0.5x60"},
        {"gemini_lab_goodput_ratio": "0.5x20 0.97x40"},
    ),
    "GeminiLabCheckpointSlows": (
        {
            "gemini_lab_checkpoint_wait_seconds_sum": "0+10x60",
            "gemini_lab_step_seconds_sum": "0+60x60",
        },
        {
            "gemini_lab_checkpoint_wait_seconds_sum": "0+1x60",
            "gemini_lab_step_seconds_sum": "0+60x60",
        },
    ),
}


def rules():
    return yaml.safe_load(RULES.read_text())["groups"][0]["rules"]


PLACE = {"job": "gemini", "instance": "here"}


def series_of(told):
    """The series of promtool, which all have a job and an instance."""
    place = ",".join(f'{name}="{value}"' for name, value in PLACE.items())
    return [
        {"series": f"{name.rstrip('}')}{',' if '{' in name else '{'}{place}}}", "values": values}
        for name, values in told.items()
    ]


def fired(rule, told):
    """The alert that is expected of a rule: it has the labels of what it watches."""
    watched = dict(re.findall(r'(\w+)="([^"]+)"', next(iter(told))))
    return {"exp_labels": rule["labels"] | PLACE | watched, "exp_annotations": rule["annotations"]}


def test_each_rule_has_series_that_fire_it_and_series_that_do_not():
    assert {rule["alert"] for rule in rules()} == {*CASES}


@pytest.mark.skipif(TOOL is None, reason="there is no promtool on the PATH")
def test_each_rule_fires_on_what_it_watches_and_on_nothing_else(tmp_path):
    tests = [
        {
            "interval": "1m",
            "input_series": series_of(told),
            "alert_rule_test": [
                {
                    "eval_time": "45m",
                    "alertname": rule["alert"],
                    "exp_alerts": [fired(rule, told)] if fires else [],
                }
            ],
        }
        for rule in rules()
        for fires, told in zip((True, False), CASES[rule["alert"]], strict=True)
    ]
    file = tmp_path / "alerts_test.yml"  # YAML has JSON in it
    file.write_text(json.dumps({"rule_files": [str(RULES)], "tests": tests}))
    done = subprocess.run(
        [TOOL, "test", "rules", file], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
