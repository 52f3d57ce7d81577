#!/usr/bin/env python3
"""Draws the section near-storage of docs/benchmarks.md as docs/images/near_storage.svg: the seconds
of a step by the number of devices as solid lines, those of the simulation dashed, the paper's as
hollow dots."""

import collections
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "record"))
import chart
import report

PAGE = pathlib.Path(report.ROOT) / "docs/benchmarks.md"
PICTURE = pathlib.Path(report.ROOT) / "docs/images/near_storage.svg"
TITLE = "A step of GPT-2 4.0B whose state lies on storage devices: seconds by devices"
WIDTH, HEIGHT, TOP, BOTTOM = 1040, 420, 70, 350
PANELS = {"A5000": (60, 430), "A100": (500, 760)}
LEGEND_X, LEGEND_Y = 790, 90
TOP_SECONDS = 80
COLOURS = {"RAID0, paper's host": "#0072b2", "RAID0, link alone": "#56b4e9", "SU": "#999999",
           "SU+O": "#d55e00", "SU+O+C, top 1 %": "#cc79a7", "ours, sealed": "#009e73",
           "ours, eager": "#000000"}

LINE = re.compile(r"^ *(?P<devices>\d+)  (?P<variant>\S.*?) +(?P<seconds>[\d.]+) "
                  r"\[ *[\d.]+\.\. *[\d.]+\] +[\d.]+ +(?P<flows>[\d.]+) +[\d.]+ +"
                  r"(?P<paper>[\d.]+|-) +[\d.]+ +[\d.]+$", re.MULTILINE)
Point = collections.namedtuple("Point", "devices seconds flows paper")


def points(page):
    """Returns {GPU: {variant: [Point]}} of the section's output."""
    section = re.search(r"<!-- near-storage: begin -->(.*?)<!-- near-storage: end -->", page,
                        re.DOTALL)[1]
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for block in re.findall(r"```\n(.*?)```", section, re.DOTALL):
        gpu = re.search(r"; (\w+), \d+ rounds", block)[1]
        if gpu not in PANELS:
            continue
        for match in LINE.finditer(block):
            paper = None if match["paper"] == "-" else float(match["paper"])
            found[gpu][match["variant"]].append(
                Point(int(match["devices"]), float(match["seconds"]), float(match["flows"]), paper))
    for curves in found.values():
        for curve in curves.values():
            curve.sort()
    return found


def draw(found):
    drawing = chart.Chart(WIDTH, HEIGHT)
    drawing.text(60, 26, TITLE, extra=' font-size="17"')
    for gpu, (left, right) in PANELS.items():
        devices = sorted({p.devices for curve in found[gpu].values() for p in curve})
        panel = chart.Panel(left, right, TOP, BOTTOM, 0, devices[-1], 0, TOP_SECONDS)
        drawing.axes(panel, devices, range(0, TOP_SECONDS + 1, 20), str, str, (gpu, "devices"))
        for variant, curve in found[gpu].items():
            colour = COLOURS[variant]
            drawing.curve(panel, chart.Style(colour, 1.2, "4 4"),
                          [(p.devices, p.flows) for p in curve])
            drawing.curve(panel, chart.Style(colour, 2), [(p.devices, p.seconds) for p in curve])
            drawing.dots(panel, colour, [(p.devices, p.paper) for p in curve if p.paper])
    drawing.legend(LEGEND_X, LEGEND_Y,
                   [(chart.Style(colour, 2), name) for name, colour in COLOURS.items()] +
                   [(chart.Style("#333333", 1.2, "4 4"), "dashed: simulation"),
                    (chart.Style("#ffffff", 1), "hollow dots: paper")])
    return drawing.svg(TITLE)


if __name__ == "__main__":
    PICTURE.write_text(draw(points(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
