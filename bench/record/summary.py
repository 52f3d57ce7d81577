#!/usr/bin/env python3
"""Writes the summary table at the top of docs/benchmarks.md from the recorded output below it.

Each row gives what was measured, against which limit or peer, the goal, our figure with its
spread, the verdict, and the command that repeats it. The figures are those of the sections; the
program measures nothing.
"""

import argparse
import collections
import pathlib
import re
import sys

import report

SECTION = "summary"
BLOCK = re.compile(r"<!-- (?P<name>[\w-]+): begin -->\n(?P<body>.*?)\n<!-- (?P=name): end -->",
                   re.DOTALL)
# A line that a program judges itself.
JUDGED = re.compile(r"^ *(?P<label>\S.*?) +(?P<ours>[\d.]+) +"
                    r"\[(?P<low>[\d.]+)\.\.(?P<high>[\d.]+)\]"
                    r" +goal >= (?P<goal>[\d.]+): (?:reached|MISSED)$")

# `section` is a section of the page; `what` and `limit` are shown; `pattern` finds the figures, in
# groups ours, low, high and goal, of which the goal may be fixed by `goal`. `at_most` tells a goal
# that is an upper limit.
Figure = collections.namedtuple("Figure", "section what limit pattern goal at_most")
Row = collections.namedtuple("Row", "what limit goal ours met section command")

SPREAD = r"(?P<ours>[\d.]+) \[(?P<low>[\d.]+)\.\.(?P<high>[\d.]+)\]"


def figure(section, what, limit, pattern, goal=None, at_most=False):
    return Figure(section, what, limit, re.compile(pattern, re.MULTILINE), goal, at_most)


def judged(section, what, limit, label, goal=None):
    """A ratio that a program prints, with its goal unless the goal is given here."""
    end = "" if goal else r" +goal >= (?P<goal>[\d.]+)"
    return figure(section, what, limit, rf"^ *{label} +{SPREAD}{end}", goal)


def limited(section, what, limit, label):
    """A ratio that a program prints, with its upper limit."""
    return figure(section, what, limit, rf"^{label} +{SPREAD} goal at most (?P<goal>[\d.]+)",
                  at_most=True)


FIGURES = (
    figure("step-ratio", "time of a training step through servers", "one PyTorch process",
           rf"\*\*ratio {SPREAD} .*goal at most (?P<goal>[\d.]+)", at_most=True),
    figure("step-ratio-sealed", "the same with exact clipping", "one PyTorch process",
           rf"\*\*ratio {SPREAD} .*goal at most (?P<goal>[\d.]+)", at_most=True),
    figure("depth", "peak of device memory, 64 layers", "8 layers",
           r"device flat within 1 %.* ratio (?P<ours>[\d.]+)\)", 1.01, at_most=True),
    *(judged("rules", f"{rule}, {threads}", "memory traffic", f"limit / {rule}, {threads}")
      for rule in ("sgd", "sgd with momentum", "adamw", "adam", "adagrad", "lion", "adamw_sqrtv")
      for threads in ("1 thread", "2 threads")),
    judged("adamw-torch", "AdamW", "torch's fused AdamW", "time of torch, fused / ours"),
    judged("transport", "chunk stream", "TCP socket", "throughput / TCP socket"),
    judged("transport", "chunk stream", "protobuf stream", "throughput / protobuf stream"),
    judged("transport", "chunk stream", "protobuf calls", "throughput / protobuf calls"),
    judged("transport", "chunk stream over mutual TLS", "chunk stream",
           "throughput with mutual TLS / without it"),
    limited("guard", "microseconds of a server for the role and token of a call", "20",
            "microseconds a call, role and token"),
    judged("one-pass", "decode, update and encode in one pass", "six passes",
           "six passes / one pass"),
    judged("one-pass", "update with MX9 output", "the update alone", "update / with encoding"),
    judged("one-pass", "bf16 in, update, bf16 out", "memory traffic",
           "memory traffic / bf16 to bf16"),
    judged("one-pass", "fp32 in, update, bf16 out", "a kernel in DeepSpeed's style",
           "span kernel, cast / fp32 to bf16"),
    judged("one-pass", "fp32 in, update, bf16 out", "unfused passes",
           "unfused, cast / fp32 to bf16"),
    judged("nvme", "writing state to NVMe", "the disk alone", "write / raw write"),
    judged("nvme", "updating state on NVMe", "the disk alone", "update / raw read and write"),
    judged("nvme", "writing state to NVMe", "RocksDB without WAL", "write / RocksDB, no WAL"),
    judged("spill", "step of mode sealed, gradients on NVMe", "gradients in memory",
           "step with gradients in memory / on disk"),
    judged("near-storage", "10 devices that update, sealed", "RAID0, the paper's host",
           "10 devices, RAID0 with the paper's host / ours, sealed"),
    judged("near-storage", "10 devices that update, eager", "RAID0, the paper's host",
           "10 devices, RAID0 with the paper's host / ours, eager"),
    judged("near-storage", "10 devices that update, sealed", "RAID0, the link alone",
           "10 devices, RAID0 with the link alone / ours, sealed"),
    judged("near-storage", "20 devices that update, sealed", "RAID0, the link alone",
           "20 devices, RAID0 with the link alone / ours, sealed"),
    judged("near-storage", "10 devices that update, sealed", "their busiest link",
           "10 devices, use of the busiest link while ours, sealed, updates"),
    judged("near-storage", "a device without rates, sealed", "NVMe",
           "time of the NVMe backend / one device, sealed"),
    judged("near-storage", "a device without rates, eager", "NVMe",
           "time of the NVMe backend / one device, eager"),
    judged("near-storage", "a device without rates, sealed", "its reads and writes alone",
           "reads and writes alone / update of one device, sealed"),
    judged("nvme", "processor time of a write", "0.20 s/GB",
           r"0\.20 processor s/GB / those of write"),
    figure("plans", "error of planned step times, %", "measured steps",
           r"median error of step times (?P<ours>[\d.]+)%, goal at most (?P<goal>[\d.]+)%",
           at_most=True),
    limited("fine-tuning", "step time of a Llama in BF16", "FP32", "step time, BF16 / FP32"),
    limited("fine-tuning", "bytes fetched in BF16", "FP32", "bytes fetched, BF16 / FP32"),
    limited("fine-tuning", "stash in BF16", "FP32", "stash, BF16 / FP32"),
    limited("fine-tuning", "bytes pushed, LoRA of rank 16", "all weights",
            "bytes pushed, LoRA r=16 / all weights"),
    limited("fine-tuning", "state of the servers, LoRA of rank 16", "all weights",
            "server state, LoRA r=16 / all weights"),
    limited("fine-tuning", "step time, LoRA of rank 16", "all weights",
            "step time, LoRA r=16 / all weights"),
    limited("fine-tuning", "time of a whole job", "transformers.Trainer",
            r"whole job, EPS / transformers\.Trainer"),
    limited("fine-tuning", "error of the planned stash, 5 families", "measured bytes",
            "error of the planned stash, 5 families"),
    judged("data-making", "tokens per second of eps data make", "datasets.map",
           r"tokens/s, eps data make / datasets\.map"),
    figure("data-making", "padding left in packed rows", "tokens of the rows",
           r"^padding left in packed rows +(?P<ours>[\d.]+) goal at most (?P<goal>[\d.]+)",
           at_most=True),
    limited("operations", "time of a step with 4 pages and 2 scrapes a second", "nobody looks",
            "step, 4 pages and 2 scrapes a second / none"),
    limited("operations", "time of a step without a driver", "with a driver",
            "step, without a driver / with one"),
    limited("operations", "seconds from a killed driver to the next one", "its lease",
            "seconds, driver killed to driven again"),
    limited("rolling-restart", "steps lost while all servers restart in turn", "none",
            "steps lost, all servers restarted in turn"),
    limited("rolling-restart", "seconds from SIGTERM to the end of a server", "drain_timeout + 2",
            "seconds, SIGTERM to the end of a server"),
    figure("durability-cost", "share of time that cuts take", "a run without cuts",
           rf"^both: {SPREAD}: goal at most (?P<goal>[\d.]+)", at_most=True),
)
CODEC = re.compile(r"^(?P<codec>[a-z]+\d+)\S*(?: row| column)? (?P<way>encode|decode), \d thr")
TOPK = re.compile(r"^topk:(?P<part>[\d.]+)")


def sections(page):
    return {match["name"]: match["body"] for match in BLOCK.finditer(page)
            if match["name"] != SECTION}


def command_of(body):
    """Returns the first command of a section."""
    return re.search(r"^`([^`]+)`", body, re.MULTILINE)[1]


def number(text):
    return f"{float(text):g}"


def spread_text(match):
    groups = match.groupdict()
    if groups.get("low") is None:
        return groups["ours"]
    return f"{groups['ours']} [{groups['low']}..{groups['high']}]"


def is_met(ours, goal, at_most):
    return float(ours) <= float(goal) if at_most else float(ours) >= float(goal)


def threads_before(body, position):
    """Returns ", N threads" if a line of its own names the threads of a figure."""
    heads = [m for m in re.finditer(r"^(\d+ threads?)\b", body[:position], re.MULTILINE)]
    return f", {heads[-1][1]}" if heads else ""


def figure_rows(wanted, body):
    """Returns a row for each place at which a section has the figure."""
    rows, seen = [], set()
    for match in wanted.pattern.finditer(body):
        goal = wanted.goal or match["goal"]
        what = wanted.what + threads_before(body, match.start())
        if what in seen:
            continue
        seen.add(what)
        sign = "≤" if wanted.at_most else "≥"
        # A program judges the figure before it rounds it.
        missed = body[match.end():].splitlines()[:1] == [": MISSED"]
        met = is_met(match["ours"], goal, wanted.at_most) and not missed
        rows.append(Row(what, wanted.limit, f"{sign} {number(goal)}", spread_text(match), met,
                        wanted.section, command_of(body)))
    if not rows:
        raise ValueError(f"section {wanted.section} has no line for {wanted.what!r}")
    return rows


def grouped_rows(section, body, limit, group_of):
    """Returns a row for each group of judged lines: its worst line, and how many met the goal."""
    groups = {}
    for line in body.splitlines():
        match = JUDGED.match(line)
        group = match and group_of(match["label"])
        if group:
            groups.setdefault(group, []).append(match)
    rows = []
    for group, matches in groups.items():
        worst = min(matches, key=lambda m: float(m["ours"]) / float(m["goal"]))
        met = sum(is_met(m["ours"], m["goal"], False) for m in matches)
        count = f", worst of {len(matches)}" if len(matches) > 1 else ""
        rows.append(Row(group + count, limit, f"≥ {number(worst['goal'])}",
                        spread_text(worst) + (f"; {met} of {len(matches)} met" if count else ""),
                        met == len(matches), section, command_of(body)))
    return rows


def codec_group(label):
    match = CODEC.match(label)
    return match and f"{match['codec']} {match['way']}"


def topk_group(label):
    match = TOPK.match(label)
    return match and f"update from topk:{match['part']}"


def rows_of(page):
    there = sections(page)
    rows = []
    for wanted in FIGURES:
        if wanted.section in there:  # else nobody has recorded it yet
            rows += figure_rows(wanted, there[wanted.section])
    rows += grouped_rows("topk", there["topk"], "dense bf16", topk_group)
    rows += grouped_rows("codecs", there["codecs"], "memory traffic", codec_group)
    return rows


def heading_links(there):
    """Returns the title of each section as a link to its heading. A title that occurred before
    gets a number, as in the anchors of Markdown pages."""
    links, times = {}, collections.Counter()
    for name, body in there.items():
        title = re.search(r"^## (.+)$", body, re.MULTILINE)[1]
        anchor = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        suffix = f"-{times[anchor]}" if times[anchor] else ""
        times[anchor] += 1
        links[name] = f"[{title}](#{anchor}{suffix})"
    return links


def table(page):
    there = sections(page)
    rows = rows_of(page)
    met = sum(row.met for row in rows)
    links = heading_links(there)
    lines = [f"## Summary\n\n{met} of {len(rows)} goals are met. Figures are ratios unless they "
             "name a unit, with the extremes of the rounds in brackets; where a row stands for "
             "several lines, it shows the worst. `bench/record/summary.py` writes this table from "
             "the sections below, which name machine and commit.\n",
             "| what | limit or peer | goal | ours | verdict | section, command |",
             "| --- " * 6 + "|"]
    for row in rows:
        lines.append(f"| {row.what} | {row.limit} | {row.goal} | {row.ours} | "
                     f"{'met' if row.met else '**missed**'} | {links[row.section]}: "
                     f"`{row.command}` |")
    return "\n".join(lines)


def write(page):
    """Replaces the table of the page."""
    text = page.read_text(encoding="utf-8")
    page.write_text(report.replace_section(text, SECTION, table(text)), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", default=str(pathlib.Path(report.ROOT) / "docs/benchmarks.md"))
    write(pathlib.Path(parser.parse_args().page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
