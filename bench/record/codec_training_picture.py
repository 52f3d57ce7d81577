"""Draws the curves of the codec tally as one self-contained SVG."""

import math
import statistics

import chart
import codec_training_tally as tally

WIDTH, HEIGHT = 980, 760
LEFT, RIGHT = 80, 690  # of both panels; the legend is to their right
DIFFERENCE_TICKS = (-0.3, -0.1, -0.03, -0.01, -0.003, 0, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3)
LINEAR_BELOW = 0.003   # larger differences are drawn logarithmically

# Distinguishable for colour-blind readers; settings without feedback use the same colour, dashed.
COLOURS = {
    "fp32": "#000000", "bf16": "#0072b2", "mx9": "#56b4e9", "mxfp8_e4m3": "#009e73",
    "mx6": "#7a9a01", "mx4": "#b8860b", "topk:0.1": "#d55e00", "topk:0.01": "#a0007a",
    "mx6+topk:0.01": "#6a51a3",
}
OTHER_COLOURS = ("#8c564b", "#7f7f7f", "#c03060", "#2f4f4f")


def colours(settings):
    """Returns a colour for each setting."""
    base = [s.removesuffix(tally.NO_FEEDBACK) for s in settings]
    unknown = [b for b in dict.fromkeys(base) if b not in COLOURS]
    extra = {b: OTHER_COLOURS[i % len(OTHER_COLOURS)] for i, b in enumerate(unknown)}
    return {s: COLOURS.get(b) or extra[b] for s, b in zip(settings, base)}


def mean_curve(curves):
    """Returns (step, mean) at the common steps; the mean is None where a value is not finite."""
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
    """Returns the means over seeds of the paired differences to the baseline at each evaluation."""
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


def finite_values(curves):
    return [value for curve in curves.values() for _, value in curve if value is not None]


def asinh_scale(value):
    return math.asinh(value / LINEAR_BELOW)


def styles(settings):
    """Returns the style of each setting's curve."""
    return {setting: chart.Style(colour, 2.5 if setting == tally.BASELINE else 1.6,
                                 "6 4" if setting.endswith(tally.NO_FEEDBACK) else "")
            for setting, colour in colours(settings).items()}


def draw_panel(drawing, panel, ticks, format_tick, title):
    x_ticks = [tick for tick in chart.nice_ticks(0, panel.x_end) if tick <= panel.x_end]
    drawing.axes(panel, x_ticks, ticks, "{:,.0f}".format, format_tick, (title, "step"))


def percent(value):
    return "0 %" if value == 0 else f"{100 * value:+g} %"


def draw(runs):
    """Returns the SVG of `runs`, which must be of one group: above, the held-out loss of each
    setting as the mean of its seeds; below, the mean difference to the baseline."""
    settings = tally.in_order(run["setting"] for run in runs)
    losses, differences = loss_curves(runs, settings), difference_curves(runs, settings)
    steps, looks = runs[0]["steps"], styles(settings)
    drawing = chart.Chart(WIDTH, HEIGHT)
    seeds = len({run["seed"] for run in runs})
    drawing.text(LEFT, 24, f"Training with codecs, mean of {seeds} seed{'s' * (seeds > 1)}",
                 extra=' font-size="17"')

    values = finite_values(losses) or [0, 1]
    ticks = chart.nice_ticks(min(values), max(values))
    panel = chart.Panel(LEFT, RIGHT, 65, 330, 0, steps, ticks[0], ticks[-1])
    draw_panel(drawing, panel, ticks, "{:.4g}".format, "Held-out loss (nats per token)")
    for setting in settings:
        drawing.curve(panel, looks[setting], losses[setting])

    values = finite_values(differences) + [-LINEAR_BELOW, 0.01]
    ticks = [t for t in DIFFERENCE_TICKS if min(values) <= t <= max(values)]
    panel = chart.Panel(LEFT, RIGHT, 425, 700, 0, steps, asinh_scale(min(values)),
                        asinh_scale(max(values)), scale=asinh_scale)
    draw_panel(drawing, panel, ticks, percent,
               "Difference to FP32 of the same seed (logarithmic beyond 0.3 %)")
    for setting in settings:
        drawing.curve(panel, looks[setting], differences.get(setting, []))

    drawing.text(RIGHT + 25, 48, "at the last step", extra=' font-weight="bold"')
    last = {s: curve[-1][1] for s, curve in differences.items() if curve}
    remarks = {s: "" if s not in last else
               ": diverged" if last[s] is None else f": {100 * last[s]:+.2f} %" for s in settings}
    drawing.legend(RIGHT + 25, 70, [(looks[s], f"{tally.label(s)}{remarks[s]}") for s in settings])
    return drawing.svg("Held-out loss of training with codecs")
