"""Judges the figures that the stages of gpu_session.sh leave, and prints them.

    figures.py flat FILE              lines of `eps-worker step`: equal peaks of device memory
    figures.py overlap FILE [--report]  steps as fast as their slower half; --report only prints
    figures.py mfu FILE PRECISION     shares of the device's peak
    figures.py losses METRICS METRICS the same training on two devices
    figures.py ours METRICS SHAPE...  prints the line of JSON of a run of eps train, as a peer's
    figures.py used LINE MEBIBYTES    adds the most that nvidia-smi saw to a line of JSON
    figures.py peers FILE             compares the lines of ours and of peers

The exit code is 1 if a limit is missed.
"""

import json
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import shape as shapes

MAX_PEAK_RATIO = 1.01
MAX_OVER_SLOWER_HALF = 1.05
MAX_LOSS_DIFFERENCE = 1e-3
DEPTHS = 4
WARM_UP_STEPS = 2


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def flat(path):
    peaks = [line["device_peak_bytes"] for line in read_lines(path)]
    print(f"peaks {peaks}, largest / smallest {max(peaks) / min(peaks):.4f}; "
          f"the limit is {MAX_PEAK_RATIO}")
    return len(peaks) == DEPTHS and max(peaks) <= MAX_PEAK_RATIO * min(peaks)


def overlap(path, report=None):
    ratios = [line["over_slower_half"] for line in read_lines(path)]
    print(f"step / slower half {ratios}; the limit is {MAX_OVER_SLOWER_HALF}")
    return report == "--report" or max(ratios) <= MAX_OVER_SLOWER_HALF


def percent(share):
    return "of an unknown peak" if share is None else f"{100 * share:.1f} %"


def mfu(path, precision):
    for line in read_lines(path):
        shares = {name: percent(shapes.mfu(line["parameters"], line["tokens"], line[name],
                                           line["device"])) for name in ("step_s", "compute_s")}
        kind = f"{precision}, {line['gradient_sum']}, keep {line['keep']}, {line['tokens']} tokens"
        print(f"{kind}: step {line['step_s']:.3f} s (MFU "
              f"{shares['step_s']}), computing {line['compute_s']:.3f} s (MFU "
              f"{shares['compute_s']}), transfers {line['transfer_s']:.3f} s")
    return True


def step_records(path):
    return [line for line in read_lines(path) if "step_seconds" in line]


def losses(cpu, device):
    pairs = [[line["loss"] for line in step_records(path)] for path in (cpu, device)]
    worst = max((abs(a - b) / a for a, b in zip(*pairs)), default=None)
    print(f"{len(pairs[0])} and {len(pairs[1])} steps, worst relative difference {worst}; "
          f"the limit is {MAX_LOSS_DIFFERENCE}")
    return len(pairs[0]) == len(pairs[1]) and worst is not None and worst <= MAX_LOSS_DIFFERENCE


def ours(path, *arguments):
    shape = shapes.parse(arguments)
    steps = step_records(path)[WARM_UP_STEPS:]
    wrong = [step["tokens"] for step in steps if step["tokens"] != shapes.tokens(shape)]
    if wrong or not steps:
        print(f"{path}: expected steps of {shapes.tokens(shape)} tokens, found {wrong or 'none'}",
              file=sys.stderr)
        return False
    seconds = statistics.median(step["step_seconds"] for step in steps)
    print(shapes.line("eps", shape, seconds, "bf16", None))
    return True


def used(line_path, mebibytes_path):
    [line] = read_lines(line_path)
    with open(mebibytes_path, encoding="utf-8") as file:
        samples = [int(text) for text in file.read().split() if text.isdigit()]
    line["used_device_bytes"] = max(samples) << 20 if samples else None
    print(json.dumps(line))
    return True


def mebibytes(count):
    return f"{count >> 20} MiB of device memory" if count else "unknown device memory"


def peers(path):
    by_peer = {}
    for line in read_lines(path):
        by_peer.setdefault(line["peer"], []).append(line)
    seconds = {peer: statistics.median(line["step_s"] for line in lines)
               for peer, lines in by_peer.items()}
    for peer, lines in by_peer.items():
        print(f"{peer} ({lines[0]['precision']}): {len(lines)} rounds, step {seconds[peer]:.3f} s, "
              f"MFU {percent(lines[0]['mfu'] and statistics.median(l['mfu'] for l in lines))}, "
              f"{mebibytes(max(line['used_device_bytes'] or 0 for line in lines))}, "
              f"its step / ours {seconds[peer] / seconds['eps']:.3f}")
    return True


COMMANDS = {f.__name__: f for f in (flat, overlap, mfu, losses, ours, used, peers)}

if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in COMMANDS:
        sys.exit(__doc__)
    sys.exit(not COMMANDS[sys.argv[1]](*sys.argv[2:]))
