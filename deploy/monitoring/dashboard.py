"""Prints grafana.json, a dashboard of Grafana for the metrics of docs/reference/metrics.md.

    python3 deploy/monitoring/dashboard.py > deploy/monitoring/grafana.json
"""

import json

# Title, unit of Grafana, and (expression, legend) pairs of each panel.
PANELS = [
    ("Step", "none", [("eps_step_current{instance=~\"$server\"}", "{{instance}}")]),
    ("Loss", "none", [("eps_loss{instance=~\"$server\"}", "{{instance}}")]),
    ("Steps per minute", "none",
     [("deriv(eps_step_current{instance=~\"$server\",shard=\"0\"}[5m]) * 60", "{{instance}}")]),
    ("Workers", "none", [("eps_workers{instance=~\"$server\",shard=\"0\"}", "{{instance}}")]),
    ("State", "none", [("eps_job_state{instance=~\"$server\"} == 1", "{{instance}} {{state}}")]),
    ("Jobs on the board", "none", [("eps_jobs{instance=~\"$server\"} > 0", "{{phase}}")]),
    ("Memory", "bytes",
     [("sum by (instance) (eps_memory_bytes{instance=~\"$server\"})", "{{instance}}"),
      ("eps_memory_limit_bytes{instance=~\"$server\"}", "{{instance}} limit")]),
    ("Free on the disks", "bytes",
     [("eps_disk_free_bytes{instance=~\"$server\"}", "{{instance}} {{folder}}")]),
    ("Weights sent", "Bps",
     [("rate(eps_fetch_bytes_total{instance=~\"$server\"}[1m])", "{{instance}}")]),
    ("Gradients received", "Bps",
     [("rate(eps_push_bytes_total{instance=~\"$server\"}[1m])", "{{instance}}")]),
    ("Contributions by result", "ops",
     [("sum by (result) (rate(eps_push_requests_total{instance=~\"$server\"}[1m]))",
       "{{result}}")]),
    ("Longest wait", "s", [("eps_longest_wait_seconds{instance=~\"$server\"}", "{{instance}}")]),
    ("Slack of the stage with the least", "s",
     [("eps_slack_least_seconds{instance=~\"$server\"}", "{{instance}}")]),
    ("Time of a cut", "s",
     [("rate(eps_cut_seconds_total{instance=~\"$server\"}[10m]) / "
       "rate(eps_cuts_total{instance=~\"$server\"}[10m])", "{{instance}}")]),
    ("Terms", "none", [("eps_term{instance=~\"$server\"}", "{{instance}}")]),
    ("Calls denied", "none",
     [("increase(eps_calls_denied_total{instance=~\"$server\"}[10m])", "{{instance}}")]),
]
COLUMNS, WIDTH, HEIGHT = 2, 12, 7
SOURCE = {"type": "prometheus", "uid": "${source}"}


def panel(number, title, unit, queries):
    return {
        "id": number + 1, "title": title, "type": "timeseries", "datasource": SOURCE,
        "gridPos": {"x": number % COLUMNS * WIDTH, "y": number // COLUMNS * HEIGHT, "w": WIDTH,
                    "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [{"refId": chr(ord("A") + i), "expr": expression, "legendFormat": legend,
                     "datasource": SOURCE} for i, (expression, legend) in enumerate(queries)],
    }


def dashboard():
    return {
        "title": "EPS", "uid": "eps", "schemaVersion": 39, "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"}, "annotations": {"list": []},
        "templating": {"list": [
            {"name": "source", "type": "datasource", "query": "prometheus"},
            {"name": "server", "type": "query", "datasource": SOURCE, "multi": True,
             "includeAll": True, "query": "label_values(eps_uptime_seconds, instance)",
             "refresh": 2, "current": {"text": "All", "value": "$__all"}},
        ]},
        "panels": [panel(i, *each) for i, each in enumerate(PANELS)],
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
