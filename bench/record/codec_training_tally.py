"""Settings of the codec tally, the file of its finished runs, and the conclusions from it."""

import collections
import fcntl
import json
import math
import os
import statistics

BASELINE = "fp32"
NO_FEEDBACK = "-no-feedback"
SETTINGS = ("fp32", "bf16", "mx9", "mxfp8_e4m3", "mx6", "mx4", "topk:0.1", "topk:0.01",
            "topk:0.1-no-feedback", "topk:0.01-no-feedback", "mx6+topk:0.01")
WARMUP_PART = 0.05  # share of steps whose gradients are sent dense in settings with topk
MIN_SEEDS = 3       # results of fewer seeds are shown but not judged
MIN_SHARE = 0.8     # minimum share of the parameters that are matrices sent in the codec
VISIBLY_WORSE = 0.01

# `at_most`: the largest mean relative difference to the baseline, in runs of at least `from_steps`.
Goal = collections.namedtuple("Goal", "at_most from_steps")
GOALS = {
    "bf16": Goal(0.005, 0), "mx9": Goal(0.005, 0), "mxfp8_e4m3": Goal(0.005, 0),
    "mx6": Goal(0.015, 0), "topk:0.1": Goal(0.01, 0), "topk:0.01": Goal(0.03, 2000),
}


def quantization(setting, steps):
    """Returns the arguments of eps for a setting: "fp32" or codecs joined by "+", at most one for
    weights and one topk for gradients, optionally followed by "-no-feedback"."""
    arguments = {}
    for codec in setting.split("+"):
        if codec.startswith("topk:"):
            feedback = not codec.endswith(NO_FEEDBACK)
            new = {"gradients": codec.removesuffix(NO_FEEDBACK),
                   "error_feedback": "true" if feedback else "false",
                   "warmup_steps": str(int(steps * WARMUP_PART))}
        else:
            new = {"weights": codec}
        if not codec or set(new) & set(arguments):
            raise ValueError(f"setting {setting!r}: expected CODEC, topk:PART[{NO_FEEDBACK}] or "
                             f"CODEC+topk:PART[{NO_FEEDBACK}]")
        arguments.update(new)
    return [f"--quantization.{key}={value}" for key, value in arguments.items()]


def label(setting):
    if setting.endswith(NO_FEEDBACK):
        return setting.removesuffix(NO_FEEDBACK) + " without feedback"
    return setting


def group_of(run):
    """Returns what comparable runs share: everything but setting and seed."""
    return run["steps"], run["data"], tuple(run["arguments"])


def key_of(run):
    """Returns the key of a run. It omits the commit, so that a new one does not void the tally."""
    return (run["setting"], run["seed"]) + group_of(run)


class Tally:
    """A JSON-lines file of finished runs. Several processes may add to it concurrently."""

    def __init__(self, path):
        self.path = path

    def runs(self):
        """Returns all runs, the last of those with equal keys. Ignores a truncated last line."""
        if not os.path.exists(self.path):
            return []
        with open(self.path, encoding="utf-8") as file:
            whole = file.read().rpartition("\n")[0].splitlines()
        runs = {}
        for number, line in enumerate(whole, start=1):
            try:
                run = json.loads(line)
                runs[key_of(run)] = run
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{self.path}:{number} is not a run: {error!r}") from error
        return list(runs.values())

    def add(self, run):
        line = json.dumps(run, allow_nan=False) + "\n"
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        with open(self.path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())


def missing(runs, wanted):
    """Returns the keys of `wanted` without a run, in their order."""
    there = {key_of(run) for run in runs}
    return [key for key in wanted if key not in there]


def final_loss(run):
    """Returns the held-out loss after the last step; infinity if it was not finite."""
    return finite_or_inf(run["curve"][-1][1])


def finite_or_inf(loss):
    return loss if loss is not None and math.isfinite(loss) else math.inf


def by_seed(runs, setting):
    return {run["seed"]: run for run in runs if run["setting"] == setting}


def paired(runs, setting, baseline=BASELINE, loss=final_loss):
    """Returns a setting's relative differences to the baseline, for the seeds that have both."""
    ours, theirs = by_seed(runs, setting), by_seed(runs, baseline)
    differences = {}
    for seed in sorted(set(ours) & set(theirs)):
        a, b = loss(ours[seed]), loss(theirs[seed])
        differences[seed] = a / b - 1 if math.isfinite(a) and math.isfinite(b) else math.inf
    return differences


# `goal` is a text; `verdict` is "met", "MISSED", the reason for no verdict, or "" without a goal.
Row = collections.namedtuple("Row", "setting seeds loss differences goal verdict run")


def judge(runs, setting, steps):
    """Returns (text of the goal, verdict) of a setting."""
    if setting.endswith(NO_FEEDBACK):
        other = setting.removesuffix(NO_FEEDBACK)
        values = list(paired(runs, setting, other).values())
        goal = f"{VISIBLY_WORSE:.0%} worse than {other}"
        reached = values and min(values) > 0 and statistics.mean(values) >= VISIBLY_WORSE
    elif setting in GOALS:
        limit = GOALS[setting]
        values = list(paired(runs, setting).values())
        goal = f"at most +{100 * limit.at_most:.1f} %"
        if limit.from_steps > steps:
            return f"{goal} from {limit.from_steps:,} steps", "not judged"
        reached = values and statistics.mean(values) <= limit.at_most
    else:
        return "reported", ""
    if len(values) < MIN_SEEDS:
        return goal, f"{len(values)} of {MIN_SEEDS} seeds"
    return goal, "met" if reached else "MISSED"


def in_order(settings):
    """Returns the known settings in their order, then the others."""
    place = {setting: i for i, setting in enumerate(SETTINGS)}
    return sorted(set(settings), key=lambda s: (place.get(s, len(place)), s))


def rows(runs):
    """Returns a row for each setting in `runs`, which must be of one group."""
    table = []
    for setting in in_order(run["setting"] for run in runs):
        ours = by_seed(runs, setting)
        goal, verdict = judge(runs, setting, next(iter(ours.values()))["steps"])
        table.append(Row(setting, sorted(ours),
                         statistics.mean(final_loss(run) for run in ours.values()),
                         list(paired(runs, setting).values()), goal, verdict,
                         next(iter(ours.values()))))
    return table


def latest_group(runs, steps, arguments=()):
    """Returns the runs of `steps` steps with these arguments that are comparable with the latest of
    them."""
    of_length = [run for run in runs
                 if run["steps"] == steps and tuple(run["arguments"]) == tuple(arguments)]
    return [run for run in of_length if group_of(run) == group_of(of_length[-1])]


def format_differences(differences):
    if not differences:
        return "-"
    mean, low, high = statistics.mean(differences), min(differences), max(differences)
    return " ".join(["diverged" if math.isinf(mean) else f"{100 * mean:+.2f} %",
                     f"[{100 * low:+.2f}..{100 * high:+.2f}]"])


def format_bytes(count):
    return f"{count / 2**20:.2f} MiB"


def format_table(table):
    lines = ["| setting | seeds | held-out loss | difference to FP32: mean [seeds] | goal | "
             "verdict | fetched, pushed per step |", "| --- " * 7 + "|"]
    for row in table:
        lines.append(
            f"| {label(row.setting)} | {len(row.seeds)} | {row.loss:.4f} | "
            f"{'-' if row.setting == BASELINE else format_differences(row.differences)} | "
            f"{'-' if row.setting == BASELINE else row.goal} | {row.verdict or '-'} | "
            f"{format_bytes(row.run['fetched_bytes_per_step'])}, "
            f"{format_bytes(row.run['pushed_bytes_per_step'])} |")
    return "\n".join(lines)


def listed(runs, field):
    return ", ".join(sorted({str(run[field]) for run in runs}))


def section_body(runs, picture, title="The effect of codecs on training", named="", choice=""):
    """Returns the section of a page. `picture` is the path of the curves relative to the page,
    `named` are the arguments that choose another section, and `choice` those that choose runs."""
    table = rows(runs)
    steps, _, arguments = group_of(runs[0])
    hours = sum(run["seconds"] for run in runs) / 3600
    extra = choice + "".join(" --eps-arg=" + a for a in arguments)
    model = "The small GPT-2, its settings and texts" if not arguments else (
        "The settings and texts of the small GPT-2 with " +
        ", ".join(f"`{a.removeprefix('--')}`" for a in arguments))
    missed = any(row.verdict == "MISSED" for row in table)
    share = min(run["codec_share"] for run in runs)
    note = " **A goal was missed.**" if missed else ""
    return f"""## {title}

`bench/record/codec_training.py --steps={steps}{
extra}`, then `bench/record/codec_training.py --steps={steps}{extra}{named} --report`

{model}, {steps:,} steps, seeds {listed(runs, "seed")}. The end
of the texts is held out: {runs[0]["eval_samples"]} samples, the same for all runs. A difference is
that of the held-out loss after the last step to the FP32 run of the same seed, in percent of it.
{share:.0%} of the parameters are matrices of inner layers and are sent in the codec, embeddings in
BF16, norms and biases in FP32. Evaluations also compute with the weights as received. With topk,
gradients of the first {int(steps * WARMUP_PART)} steps are sent dense. The bytes are those that
`eps train` expects of a step after these. Verdicts need at least {MIN_SEEDS} seeds.

Machine: {listed(runs, "machine")}, {listed(runs, "cores")} cores;
commit {listed(runs, "commit")}; {len(runs)} runs in {hours:.1f} hours.{note}

{format_table(table)}

![Held-out loss of every setting and its difference to FP32]({picture})
"""
