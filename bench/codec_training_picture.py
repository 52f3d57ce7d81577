"""Draws the curves of the codec tally as one self-contained SVG."""

import collections
import math
import statistics
from xml.sax.saxutils import escape

import codec_training_tally as tally

WIDTH, HEIGHT = 980, 760
LEFT, RIGHT = 80, 690  # of both panels; the legend stands beside them
DIFFERENCE_TICKS = (-0.3, -0.1, -0.03, -0.01, -0.003, 0, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3)
LINEAR_BELOW = 0.003   # differences of more than this are drawn logarithmically
LEGEND_ROW = 22

# Distinct for people who see fewer colours; without feedback the same colour is dashed.
COLOURS = {
    "fp32": "#000000", "bf16": "#0072b2", "mx9": "#56b4e9", "mxfp8_e4m3": "#009e73",
    "mx6": "#7a9a01", "mx4": "#b8860b", "topk:0.1": "#d55e00", "topk:0.01": "#a0007a",
    "mx6+topk:0.01": "#6a51a3",
}
OTHER_COLOURS = ("#8c564b", "#7f7f7f", "#c03060", "#2f4f4f")

# One panel: `begin`, `end` are the values at its lower and upper edge after `scale`.
Panel = collections.namedtuple("Panel", "top bottom begin end scale")


def colours(settings):
    """A colour for each setting."""
    base = [s.removesuffix(tally.NO_FEEDBACK) for s in settings]
    unknown = [b for b in dict.fromkeys(base) if b not in COLOURS]
    extra = {b: OTHER_COLOURS[i % len(OTHER_COLOURS)] for i, b in enumerate(unknown)}
    return {s: COLOURS.get(b) or extra[b] for s, b in zip(settings, base)}


def mean_curve(curves):
    """(step, mean) where all of them have a finite value; None where one has not."""
    values = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*(set(v) for v in values)))
    points = []
    for step in steps:
        here = [tally.finite_or_inf(v[step]) for v in values]
        points.append((step, statistics.mean(here) if math.isfinite(sum(here)) else None))
    return points


def loss_curves(runs, settings):
    return {s: mean_curve([run["curve"] for run in tally.by_seed(runs, s).values()])
            for s in settings}


def difference_curves(runs, settings):
    """Means over seeds of the paired differences to the baseline at each evaluation."""
    curves = {}
    theirs = tally.by_seed(runs, tally.BASELINE)
    for setting in settings:
        pairs = [(run["curve"], dict(theirs[seed]["curve"]))
                 for seed, run in tally.by_seed(runs, setting).items() if seed in theirs]
        if setting == tally.BASELINE or not pairs:
            continue
        curves[setting] = mean_curve(
            [[(step, tally.finite_or_inf(loss) / base[step] - 1) for step, loss in curve
              if base.get(step)] for curve, base in pairs])
    return curves


def nice_ticks(low, high, count=6):
    """Round values from at most `low` to at least `high`."""
    width = max(high - low, 1e-9) / count
    magnitude = 10 ** math.floor(math.log10(width))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= width * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def finite_values(curves):
    return [value for curve in curves.values() for _, value in curve if value is not None]


def asinh_scale(value):
    return math.asinh(value / LINEAR_BELOW)


class Drawing:
    def __init__(self, steps, settings):
        self.steps = steps
        self.colours = colours(settings)
        self.parts = []

    def x(self, step):
        return LEFT + (RIGHT - LEFT) * step / self.steps

    @staticmethod
    def y(panel, value):
        part = (panel.scale(value) - panel.begin) / (panel.end - panel.begin)
        return panel.bottom - (panel.bottom - panel.top) * part

    def text(self, x, y, content, anchor="start", extra=""):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>'
                          f"{escape(content)}</text>")

    def line(self, x1, y1, x2, y2, colour, width, dash=""):
        style = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
                          f'stroke="{colour}" stroke-width="{width}"{style}/>')

    def style(self, setting):
        """(colour, width, dash)"""
        dash = "6 4" if setting.endswith(tally.NO_FEEDBACK) else ""
        return self.colours[setting], 2.5 if setting == tally.BASELINE else 1.6, dash

    def axes(self, panel, ticks, format_tick, title):
        for tick in ticks:
            y = self.y(panel, tick)
            self.line(LEFT, y, RIGHT, y, "#999999" if tick == 0 else "#e4e4e4", 1)
            self.text(LEFT - 8, y + 4, format_tick(tick), "end")
        for tick in nice_ticks(0, self.steps):
            if tick > self.steps:
                continue
            self.line(self.x(tick), panel.bottom, self.x(tick), panel.bottom + 5, "#333333", 1)
            self.text(self.x(tick), panel.bottom + 20, f"{tick:,.0f}", "middle")
        self.line(LEFT, panel.top, LEFT, panel.bottom, "#333333", 1)
        self.line(LEFT, panel.bottom, RIGHT, panel.bottom, "#333333", 1)
        self.text(LEFT, panel.top - 12, title, extra=' font-weight="bold"')
        self.text(RIGHT, panel.bottom + 38, "step", "end")

    def curve(self, panel, setting, points):
        """A line, with gaps where a value is not finite."""
        colour, width, dash = self.style(setting)
        style = f' stroke-dasharray="{dash}"' if dash else ""
        pieces = [[]]
        for step, value in points:
            if value is None:
                pieces.append([])
            else:
                pieces[-1].append(f"{self.x(step):.1f},{self.y(panel, value):.1f}")
        for piece in filter(None, pieces):
            self.parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="{width}"'
                              f'{style} points="{" ".join(piece)}"/>')

    def legend(self, entries):
        y = 70
        for setting, remark in entries:
            colour, width, dash = self.style(setting)
            self.line(RIGHT + 25, y - 4, RIGHT + 60, y - 4, colour, width, dash)
            self.text(RIGHT + 68, y, f"{tally.label(setting)}{remark}")
            y += LEGEND_ROW

    def svg(self, title):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
                f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13" '
                f'fill="#222222">\n<title>{escape(title)}</title>\n'
                f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n'
                + "\n".join(self.parts) + "\n</svg>\n")


def percent(value):
    return "0 %" if value == 0 else f"{100 * value:+g} %"


def draw(runs):
    """The SVG of `runs`, which are of one group: held-out loss of each setting as the mean of its
    seeds, and below the mean difference to the baseline."""
    settings = tally.in_order(run["setting"] for run in runs)
    losses, differences = loss_curves(runs, settings), difference_curves(runs, settings)
    drawing = Drawing(runs[0]["steps"], settings)
    seeds = len({run["seed"] for run in runs})
    drawing.text(LEFT, 24, f"Training with codecs, mean of {seeds} seed{'s' * (seeds > 1)}",
                 extra=' font-size="17"')

    values = finite_values(losses) or [0, 1]
    ticks = nice_ticks(min(values), max(values))
    panel = Panel(65, 330, ticks[0], ticks[-1], float)
    drawing.axes(panel, ticks, "{:.4g}".format, "Held-out loss (nats per token)")
    for setting in settings:
        drawing.curve(panel, setting, losses[setting])

    values = finite_values(differences) + [-LINEAR_BELOW, 0.01]
    ticks = [t for t in DIFFERENCE_TICKS if min(values) <= t <= max(values)]
    panel = Panel(425, 700, asinh_scale(min(values)), asinh_scale(max(values)), asinh_scale)
    drawing.axes(panel, ticks, percent,
                 "Difference to FP32 of the same seed (logarithmic beyond 0.3 %)")
    for setting in settings:
        drawing.curve(panel, setting, differences.get(setting, []))

    drawing.text(RIGHT + 25, 48, "at the last step", extra=' font-weight="bold"')
    last = {s: curve[-1][1] for s, curve in differences.items() if curve}
    drawing.legend([(s, "" if s not in last else
                     ": diverged" if last[s] is None else f": {100 * last[s]:+.2f} %")
                    for s in settings])
    return drawing.svg("Held-out loss of training with codecs")
