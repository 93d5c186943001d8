"""The dashboard and the alerts in `examples/monitoring/`: well formed, and about metrics that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from the_loop.cli.prometheus import METRICS

FOLDER: Final = Path(__file__).resolve().parents[2] / "examples" / "monitoring"
SERIES: Final = {
    f"{name}{suffix}"
    for name, (kind, _) in METRICS.items()
    for suffix in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
}
LABELS: Final = {"state_root", "source", "kind", "outcome", "result", "version", "le"}
OF_OTHERS: Final = {"instance", "file"}  # of Prometheus itself, and of node_exporter


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
    return found


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yaml").read_text("utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def expressions() -> list[str]:
    shown = dashboard()
    found = [target["expr"] for panel in shown["panels"] for target in panel["targets"]]
    found += [variable["definition"] for variable in shown["templating"]["list"] if "definition" in variable]
    found += [one["expr"] for one in shown["annotations"]["list"]]
    return [*found, *(rule["expr"] for rule in rules())]


def labels_in(text: str) -> set[str]:
    """The labels that an expression or a legend names."""
    found = set(re.findall(r"(\w+)\s*(?:=~|!=|=(?!=))", text)) | set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)", text))
    for group in re.findall(r"\b(?:by|on|group_left)\s*\(([^)]*)\)", text):
        found |= set(re.findall(r"\w+", group))
    return found


@pytest.mark.parametrize("expression", expressions())
def test_expression_when_it_names_a_metric_or_a_label_then_there_is_one(expression: str) -> None:
    named = set(re.findall(r"\bthe_loop_\w+", expression))

    assert named != set()
    assert named - SERIES == set()
    assert labels_in(expression) - LABELS - OF_OTHERS == set()


def test_dashboard_when_read_then_shows_every_metric_that_is_not_only_for_queries() -> None:
    shown = {name for expression in expressions() for name in re.findall(r"\bthe_loop_\w+", expression)}
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}

    assert set(METRICS) - shown == {
        "the_loop_heartbeat_timestamp_seconds",
        "the_loop_waiting_until_timestamp_seconds",
    }


def test_dashboard_when_read_then_its_panels_are_apart_and_use_the_chosen_data_source() -> None:
    panels = dashboard()["panels"]

    assert len({panel["id"] for panel in panels}) == len(panels) >= 8
    for panel in panels:
        assert panel["datasource"]["uid"] == "${datasource}"
        place = panel["gridPos"]
        assert 0 <= place["x"] <= 24 - place["w"]
        assert all(labels_in(target["legendFormat"]) <= LABELS for target in panel["targets"])
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_alerts_when_read_then_are_three_each_with_what_to_do() -> None:
    found = rules()

    assert [rule["alert"] for rule in found] == ["TheLoopDown", "TheLoopNoGoodCycle", "TheLoopNeedsAPerson"]
    for rule in found:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smh]", rule["for"])
        assert "`the-loop poll status`" in rule["annotations"]["description"]
        assert labels_in(str(rule["annotations"])) <= {"value", *LABELS, *OF_OTHERS}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here; the tests above parse them")
def test_alerts_when_promtool_checks_them_then_it_has_no_complaint() -> None:
    argv = ["promtool", "check", "rules", "--lint-fatal", str(FOLDER / "alerts.yaml")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)

    assert (done.returncode, done.stderr) == (0, "")
