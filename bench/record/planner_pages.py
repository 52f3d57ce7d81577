#!/usr/bin/env python3
"""Writes the output of `eps plan` into docs/planning.md and docs/reproduction.md, and draws the
pictures of the latter.

    bench/record/planner_pages.py bazel-bin/cli/eps

Replaces only the text between the markers of the pages. bench/record/planner_pages_test.py checks
that running it again would change nothing.
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
TIMEOUT_SECONDS = 600
PAPERS = {"l2l": "L2L", "nntile": "NNTile", "smart-infinity": "Smart-Infinity", "jitq": "JIT-Q"}

# Times of Smart-Infinity with and without compression: name, and the text before and after the
# variant in the ids of their rows.
COMPRESSION = [("GPT-2 4.0B, update", "smart.fig9.gpt2_4.0b", ".update"),
               ("GPT-2 8.4B, iteration", "smart.fig9.gpt2_8.4b", ""),
               ("BERT 8.3B, iteration", "smart.fig9.bert_8.3b", ""),
               ("GPT-2 33.0B, iteration", "smart.fig10.gpt2_33.0b", "")]

# Files that the plans read.
MODELS = {
    "17b.json": {"model_type": "gpt2", "n_layer": 78, "n_head": 28, "n_embd": 4256,
                 "n_positions": 1024, "vocab_size": 50257},
    "70b.json": {"model_type": "gpt2", "n_layer": 80, "n_head": 64, "n_embd": 8192,
                 "n_positions": 2048, "vocab_size": 50257},
    "7b.json": {"model_type": "gpt2", "n_layer": 32, "n_head": 32, "n_embd": 4096,
                "n_positions": 2048, "vocab_size": 50257},
}
# A section of a page: its name, the arguments of the command, and the beginnings of the printed
# lines to show; an empty tuple shows all lines.
Plan = collections.namedtuple("Plan", "name arguments shown command", defaults=((), "plan"))
SESSION = ["--hardware=h200_node", "--model=70b.json"]
THREADS = ["--servers.threads=112"]
CODECS = ["--quantization.weights=mx9", "--quantization.gradients=bf16"]
STEP_LINES = ("network per step", "step:", "resources", "bottleneck", "change first", "cost")
STORAGE_LINES = ("cuts", "disks", "step with")
WALL_LINES = ("step:", "bottleneck", "walls", "  forward", "  backward")
WALLS = ["--hardware=h100_host", "--model=7b.json", "--quantization.weights=bf16",
         "--quantization.gradients=bf16", "--training.clip=lagged"]
PLANS = {PLANNING: [
    Plan("plan-quickstart", ["--hardware=two_core_box"]),
    Plan("plan-17b", ["--hardware=v100_16gb_512gb", "--model=17b.json"]),
    Plan("plan-17b-threads", ["--hardware=v100_16gb_512gb", "--model=17b.json",
                              "--servers.threads=40"], STEP_LINES),
    Plan("plan-70b", SESSION),
    Plan("plan-70b-threads", SESSION + THREADS, STEP_LINES),
    Plan("plan-70b-codecs", SESSION + THREADS + CODECS, STEP_LINES),
    Plan("simulate", [*SESSION, *THREADS, *CODECS, "--workers=1024", "--servers=64",
                      "--steps=20000", "--failures=llama3-405b", "--worker-restart=180s",
                      "--cut-steps=20", "--cut-time=2s", "--events=6"], command="simulate"),
    Plan("plan-durable", ["--hardware=h200_node", "--model=17b.json", "--servers.threads=112",
                          "--storage.path=state", "--storage.log=contributions"],
         STEP_LINES + STORAGE_LINES),
    Plan("plan-csd", ["--hardware=a5000_smartssd_6", "--model=17b.json", "--servers.threads=48",
                      "--storage.kind=nvme"], STEP_LINES + STORAGE_LINES),
    Plan("plan-walls-few", WALLS + ["--training.seq_len=512", "--training.micro_batch_size=1",
                                    "--training.micro_batches=1"], WALL_LINES),
    Plan("plan-walls-many", WALLS + ["--training.micro_batch_size=1", "--training.micro_batches=1"],
         WALL_LINES),
    Plan("plan-too-small", ["--hardware=two_core_box", "--model=70b.json"],
         ("eps:", "worker mem")),
]}
DOES_NOT_FIT = 71


def run(eps, arguments, folder=None, command="plan"):
    """Returns what the command prints, including the errors of a plan that does not fit."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EPS_")}
    result = subprocess.run([eps, command, *arguments], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, timeout=TIMEOUT_SECONDS, cwd=folder,
                            env=environment, check=False)
    if result.returncode not in (0, DOES_NOT_FIT):
        raise RuntimeError(f"eps {command} {arguments} ended with {result.returncode}: "
                           f"{result.stderr.decode()}")
    return result.stdout.decode() + result.stderr.decode()


def code(text):
    return "\n".join(["```", text.rstrip("\n"), "```"])


def plan_body(plan, printed):
    lines = printed.splitlines()
    if plan.shown:
        lines = [line for line in lines if line.startswith(plan.shown)]
    return code("\n".join([f"$ eps {plan.command} " + " ".join(plan.arguments), *lines]))


def page_of_plans(eps, page, text):
    """Returns the page with current plans."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
        for name, model in MODELS.items():
            pathlib.Path(folder, name).write_text(json.dumps(model), encoding="utf-8")
        for plan in PLANS[page]:
            printed = run(eps, plan.arguments, folder, plan.command)
            text = report.replace_section(text, plan.name, plan_body(plan, printed))
    if page == PLANNING:
        models = "\n".join(f"$ cat {name}\n{json.dumps(m)}" for name, m in MODELS.items())
        text = report.replace_section(text, "models", code(models))
    return text


def verdict_of(row):
    """Returns the verdict under which the page counts the row."""
    if row["ok"] is None:
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
    """Returns one line per note, with the rows that have it."""
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


def compression_body(rows):
    """Returns a table of Smart-Infinity's time without compression / the time with it."""
    by_id = {row["id"]: row for row in rows}
    lines = ["| SU+O over SU+O+C | n | paper | ours |", "| --- | --- | --- | --- |"]
    for name, prefix, suffix in COMPRESSION:
        for devices in (6, 10):
            dense, compressed = (by_id[f"{prefix}.{variant}{devices}{suffix}"]
                                 for variant in ("su_o", "su_o_c"))
            paper, ours = (dense[side] / compressed[side] for side in ("paper", "ours"))
            lines.append(f"| {name} | {devices} | {paper:.2f} | {ours:.2f} |")
    return "\n".join(lines)


def reproduction_page(eps, text):
    """Returns (the page with current sections, {file name: SVG})."""
    rows_by_paper = {paper: json.loads(run(eps, [f"--reproduce={paper}", "--json"]))
                     for paper in PAPERS}
    text = report.replace_section(text, "counts", counts_body(rows_by_paper))
    for paper, rows in rows_by_paper.items():
        printed = run(eps, [f"--reproduce={paper}"])
        text = report.replace_section(text, paper, paper_body(printed, rows))
    text = report.replace_section(text, "compression",
                                  compression_body(rows_by_paper["smart-infinity"]))
    return text, reproduction_pictures.draw(rows_by_paper)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("eps", help="the program")
    eps = os.path.abspath(parser.parse_args().eps)
    for name in PLANS:
        page = report.ROOT / name
        text = page_of_plans(eps, name, page.read_text(encoding="utf-8"))
        page.write_text(text, encoding="utf-8")
    reproduction = report.ROOT / REPRODUCTION
    text, pictures = reproduction_page(eps, reproduction.read_text(encoding="utf-8"))
    reproduction.write_text(text, encoding="utf-8")
    for name, svg in pictures.items():
        (report.ROOT / IMAGES / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
