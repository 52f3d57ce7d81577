"""Draws rows of `eps plan --reproduce=PAPER --json`: a paper's values as hollow dots and dashed
lines, the planner's values as solid lines and filled bars."""

import math

import chart

WIDTH, HEIGHT = 980, 400
TOP, BOTTOM = 70, 330
LEFT_PANEL, RIGHT_PANEL = (70, 380), (470, 780)  # the legend is to their right
LEGEND_X, LEGEND_Y = 800, 90
PAPER, OURS = ": paper", ": ours"
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"


class Rows:
    """Holds the rows of one paper by id."""

    def __init__(self, rows):
        self.by_id = {row["id"]: row for row in rows}

    def curves(self, prefix, xs, start=()):
        """Returns ([(x, paper)], [(x, ours)]): the points `start`, then the rows `prefix` + x."""
        rows = [(x, self.by_id[f"{prefix}{x}"]) for x in xs]
        return (list(start) + [(x, row["paper"]) for x, row in rows],
                list(start) + [(x, row["ours"]) for x, row in rows])


def panel_of(edges, x_range, top_value, x_scale=float):
    return chart.Panel(edges[0], edges[1], TOP, BOTTOM, x_scale(x_range[0]), x_scale(x_range[1]), 0,
                       top_value, x_scale)


def draw_pair(drawing, panel, colour, curves):
    paper, ours = curves
    drawing.curve(panel, chart.Style(colour, 1.2, "4 4"), paper)
    drawing.curve(panel, chart.Style(colour, 2), ours)
    drawing.dots(panel, colour, paper)


def pair_legend(names):
    """Returns the entries of a legend for (colour, name)."""
    return [entry for colour, name in names for entry in (
        (chart.Style(colour, 1.2, "4 4"), name + PAPER), (chart.Style(colour, 2), name + OURS))]


def begin(title):
    drawing = chart.Chart(WIDTH, HEIGHT)
    drawing.text(LEFT_PANEL[0], 26, title, extra=' font-size="17"')
    return drawing


def smart_infinity(rows):
    title = "Smart-Infinity: speed by the number of devices, BASE with one is 1"
    drawing = begin(title)
    variants = [("base", BLUE, "BASE"), ("su_o", ORANGE, "SU+O"), ("su_o_c", GREEN, "SU+O+C")]
    devices = [1, 2, 4, 6, 8, 10]
    for gpu, edges in (("a5000", LEFT_PANEL), ("a100", RIGHT_PANEL)):
        panel = panel_of(edges, (0, 10), 6)
        drawing.axes(panel, devices, range(7), str, str, (f"{gpu.upper()}, GPT-2 4.0B", "devices"))
        for variant, colour, _ in variants:
            unit = variant == "base"
            draw_pair(drawing, panel, colour, rows.curves(
                f"smart.fig11.{gpu}.{variant}", devices[1:] if unit else devices,
                [(1, 1)] if unit else []))
    drawing.legend(LEGEND_X, LEGEND_Y, pair_legend((c, name) for _, c, name in variants))
    return drawing.svg(title)


def nntile(rows):
    title = "NNTile: measured speed, and 55 % of the devices' peak"
    drawing = begin(title)
    for experiment, name, top, step, edges in (
            ("l4_gpu4", "4 layers, 4 A100, 500 GB", 400, 100, LEFT_PANEL),
            ("l8_gpu8", "8 layers, 8 A100, 900 GB", 800, 200, RIGHT_PANEL)):
        prefix = f"nntile.rate.{experiment}.k"
        widths = sorted(int(i.removeprefix(prefix)) for i in rows.by_id if i.startswith(prefix))
        billions = {k: rows.by_id[f"nntile.size.{experiment}.k{k}"]["paper"] for k in widths}
        x_ticks = chart.nice_ticks(0, max(billions.values()))
        panel = panel_of(edges, (0, x_ticks[-1]), top)
        drawing.axes(panel, x_ticks, range(0, top + 1, step), "{:g}".format, str,
                     (f"{name}: TFLOP/s", "billion parameters"))
        draw_pair(drawing, panel, BLUE, [
            [(billions[k], value) for k, value in curve] for curve in rows.curves(prefix, widths)])
    drawing.legend(LEGEND_X, LEGEND_Y, [
        (chart.Style(BLUE, 1.2, "4 4"), "NNTile" + PAPER),
        (chart.Style(BLUE, 2), "55 % of TF32 peak")])
    return drawing.svg(title)


def l2l(rows):
    title = "L2L: throughput by micro-batches, device memory by layers"
    drawing = begin(title)
    panel = panel_of(LEFT_PANEL, (0, 4), 100)
    drawing.axes(panel, [1, 2, 4], range(0, 101, 20), str, str,
                 ("Table 3: samples/s", "micro-batches u"))
    draw_pair(drawing, panel, BLUE, rows.curves("l2l.table3.throughput.u", [1, 2, 4]))
    panel = panel_of(RIGHT_PANEL, (16, 512), 10, math.log2)
    drawing.axes(panel, [24, 48, 96, 384], range(0, 11, 2), str, str,
                 ("Table 4: device memory, GB", "layers"))
    homes = [("device", ORANGE, [24, 48, 96]), ("host", GREEN, [24, 96, 384])]
    for home, colour, layers in homes:
        draw_pair(drawing, panel, colour, rows.curves(f"l2l.table4.{home}.n", layers))
    drawing.legend(LEGEND_X, LEGEND_Y, pair_legend(
        [(BLUE, "samples/s"), (ORANGE, "stash device"), (GREEN, "stash host")]))
    return drawing.svg(title)


def jitq(rows):
    title = "JIT-Q: memory saved by keeping no low-precision copies, %"
    drawing = begin(title)
    groups = [("capacity.max.{}.copies2", "largest, 2 copies"),
              ("capacity.mean.{}.copies2", "mean, 2 copies"),
              ("capacity.max.{}.copies1", "largest, 1 copy"),
              ("capacity.mean.{}.copies1", "mean, 1 copy"), ("capacity.fp32.{}", "FP32 masters")]
    formats = [("mx4", BLUE), ("mx6", ORANGE), ("mx9", GREEN)]
    panel = panel_of((LEFT_PANEL[0], RIGHT_PANEL[1]), (0, len(groups)), 25)
    drawing.axes(panel, [], range(0, 26, 5), str, str, ("of the memory, %", ""))
    group_width, bar = (panel.right - panel.left) / len(groups), 18
    for g, (pattern, name) in enumerate(groups):
        left = panel.left + g * group_width
        drawing.text(left + group_width / 2, BOTTOM + 20, name, "middle")
        for f, (form, colour) in enumerate(formats):
            row = rows.by_id["jitq." + pattern.format(form)]
            x = left + 14 + f * 2.2 * bar
            drawing.bar(panel, x, bar, row["paper"], colour, filled=False)
            drawing.bar(panel, x + bar, bar, row["ours"], colour, filled=True)
    drawing.legend(LEGEND_X, LEGEND_Y, [
        (chart.Style(colour, 8), form.upper()) for form, colour in formats])
    drawing.text(LEGEND_X, LEGEND_Y + 75, "hollow" + PAPER)
    drawing.text(LEGEND_X, LEGEND_Y + 97, "filled" + OURS)
    return drawing.svg(title)


# (file in docs/images, paper, function that draws its rows).
PICTURES = [
    ("reproduction_l2l.svg", "l2l", l2l),
    ("reproduction_nntile.svg", "nntile", nntile),
    ("reproduction_smart_infinity.svg", "smart-infinity", smart_infinity),
    ("reproduction_jitq.svg", "jitq", jitq),
]


def draw(rows_by_paper):
    """Returns {file name: SVG}. `rows_by_paper` holds the arrays that --json prints."""
    return {name: function(Rows(rows_by_paper[paper])) for name, paper, function in PICTURES}
