#!/usr/bin/env python3
"""Writes what `eps plan` prints into docs/planning.md and docs/reproduction.md, and the pictures.

    bench/planner_pages.py bazel-bin/cli/eps

Only what stands between the markers of the pages is replaced. bench/planner_pages_test.py holds
that nothing would change.
"""

import argparse
import collections
import json
import os
import pathlib
import subprocess
import tempfile

import report
import reproduction_pictures

PLANNING = "docs/planning.md"
REPRODUCTION = "docs/reproduction.md"
IMAGES = "docs/images"
TIMEOUT_SECONDS = 60
PAPERS = {"l2l": "L2L", "nntile": "NNTile", "smart-infinity": "Smart-Infinity", "jitq": "JIT-Q"}

# Files that the plans of PLANNING read.
MODELS = {
    "17b.json": {"model_type": "gpt2", "n_layer": 78, "n_head": 28, "n_embd": 4256,
                 "n_positions": 1024, "vocab_size": 50257},
    "70b.json": {"model_type": "gpt2", "n_layer": 80, "n_head": 64, "n_embd": 8192,
                 "n_positions": 2048, "vocab_size": 50257},
}
# A section of PLANNING: its name, the arguments of the plan, and with which words the lines begin
# that are shown of what it prints; none: all lines.
Plan = collections.namedtuple("Plan", "name arguments shown", defaults=((),))
SESSION = ["--hardware=h200_node", "--model=70b.json"]
THREADS = ["--servers.threads=112"]
CODECS = ["--quantization.weights=mx9", "--quantization.gradients=bf16"]
BATCHES = ["--training.micro_batches=16"]
STEP_LINES = ("network per step", "step:", "resources", "bottleneck", "change first", "cost")
PLANS = [
    Plan("plan-quickstart", ["--hardware=two_core_box"]),
    Plan("plan-17b", ["--hardware=v100_16gb_512gb", "--model=17b.json"]),
    Plan("plan-70b", SESSION),
    Plan("plan-70b-threads", SESSION + THREADS, STEP_LINES),
    Plan("plan-70b-codecs", SESSION + THREADS + CODECS, STEP_LINES),
    Plan("plan-70b-batches", SESSION + THREADS + CODECS + BATCHES, STEP_LINES),
    Plan("plan-too-small", ["--hardware=two_core_box", "--model=70b.json"], ("eps:", "worker mem")),
]
DOES_NOT_FIT = 71


def run(eps, arguments, folder=None):
    """What `eps plan` prints; of one that does not fit, what it says about it, too."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EPS_")}
    result = subprocess.run([eps, "plan", *arguments], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, timeout=TIMEOUT_SECONDS, cwd=folder,
                            env=environment, check=False)
    if result.returncode not in (0, DOES_NOT_FIT):
        raise RuntimeError(f"eps plan {arguments} ended with {result.returncode}: "
                           f"{result.stderr.decode()}")
    return result.stdout.decode() + result.stderr.decode()


def code(text):
    return "\n".join(["```", text.rstrip("\n"), "```"])


def plan_body(plan, printed):
    lines = printed.splitlines()
    if plan.shown:
        lines = [line for line in lines if line.startswith(plan.shown)]
    return code("\n".join(["$ eps plan " + " ".join(plan.arguments), *lines]))


def planning_page(eps, text):
    """The page with its sections as they are now."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
        for name, model in MODELS.items():
            pathlib.Path(folder, name).write_text(json.dumps(model), encoding="utf-8")
        for plan in PLANS:
            printed = run(eps, plan.arguments, folder)
            text = report.replace_section(text, plan.name, plan_body(plan, printed))
    models = "\n".join(f"$ cat {name}\n{json.dumps(model)}" for name, model in MODELS.items())
    return report.replace_section(text, "models", code(models))


def verdict_of(row):
    """As the text counts it."""
    if row["tolerance"] is None:
        return "shown"
    return "reached" if row["ok"] else "missed"


def count(rows, verdict):
    return sum(verdict_of(row) == verdict for row in rows)


def counts_body(rows_by_paper):
    lines = ["| paper | rows | reached | missed | shown, not judged |",
             "| --- | --- | --- | --- | --- |"]
    for paper, rows in rows_by_paper.items():
        lines.append(f"| {PAPERS[paper]} | {len(rows)} | {count(rows, 'reached')} | "
                     f"{count(rows, 'missed')} | {count(rows, 'shown')} |")
    return "\n".join(lines)


def group_lines(rows, verdict):
    """One line for each note, with the rows that have it."""
    groups = {}
    for row in rows:
        if verdict_of(row) == verdict:
            groups.setdefault(row.get("note", "no reason is given"), []).append(row)
    lines = []
    for note, group in groups.items():
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        lines.append(f"* `{group[0]['id']}`{more}: {note.removeprefix('not judged: ')}.")
    return lines or ["None."]


def paper_body(text, rows):
    return "\n".join(
        [f"{count(rows, 'reached')} of {len(rows)} rows are reached, {count(rows, 'missed')} "
         f"missed, {count(rows, 'shown')} shown and not judged.", "", "Missed:", ""]
        + group_lines(rows, "missed") + ["", "Not judged, and why:", ""]
        + group_lines(rows, "shown") + ["", code(text)])


def reproduction_page(eps, text):
    """(the page with its sections as they are now, {file name: SVG})."""
    rows_by_paper = {paper: json.loads(run(eps, [f"--reproduce={paper}", "--json"]))
                     for paper in PAPERS}
    text = report.replace_section(text, "counts", counts_body(rows_by_paper))
    for paper, rows in rows_by_paper.items():
        printed = run(eps, [f"--reproduce={paper}"])
        text = report.replace_section(text, paper, paper_body(printed, rows))
    return text, reproduction_pictures.draw(rows_by_paper)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("eps", help="the program")
    eps = os.path.abspath(parser.parse_args().eps)
    planning, reproduction = report.ROOT / PLANNING, report.ROOT / REPRODUCTION
    planning.write_text(planning_page(eps, planning.read_text(encoding="utf-8")), encoding="utf-8")
    text, pictures = reproduction_page(eps, reproduction.read_text(encoding="utf-8"))
    reproduction.write_text(text, encoding="utf-8")
    for name, svg in pictures.items():
        (report.ROOT / IMAGES / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
