"""Shared by benchmark drivers: medians, the machine, CPU time of processes, report sections."""

import collections
import os
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The small GPT-2 of the recorded figures: its model, and the arguments of `eps train` for it.
SMALL_GPT2_MODEL = ROOT / "bench/record/small_gpt2.json"
SMALL_GPT2 = (f"--config={ROOT}/bench/record/small_gpt2.yaml", f"--model={SMALL_GPT2_MODEL}")
SMALL_GPT2_DATA = "--data=/usr/share/common-licenses"
QUIET_WINDOW_S = 2.0
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

# The median and the extremes of a list of figures.
Spread = collections.namedtuple("Spread", "median low high")


def spread(values):
    return Spread(statistics.median(values), min(values), max(values))


def format_spread(values, digits=3):
    s = spread(values)
    return f"{s.median:.{digits}f} [{s.low:.{digits}f}..{s.high:.{digits}f}]"


def machine_name(cpuinfo):
    """Returns the processor's name from the text of /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return "unknown"


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return machine_name(file.read())


def commit():
    """Returns the commit of the tree, with -dirty if tracked files differ from it."""
    result = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "describe", "--always", "--dirty"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False, timeout=60)
    return result.stdout.decode().strip() or "unknown"


def busy_ticks(stat):
    """Returns the ticks in which any processor was busy, from the text of /proc/stat."""
    fields = [int(f) for f in stat.splitlines()[0].split()[1:]]
    user, nice, system, _, _, irq, softirq, steal = fields[:8]
    return user + nice + system + irq + softirq + steal


def parse_process(stat):
    """Returns (parent, ticks of CPU) from the text of /proc/PID/stat."""
    fields = stat[stat.rindex(")") + 2:].split()  # a name may hold spaces and parentheses
    return int(fields[1]), int(fields[11]) + int(fields[12])


def family(processes, root):
    """Returns `root` and all its descendants. `processes`: pid -> (parent, ticks)."""
    children = collections.defaultdict(list)
    for pid, (parent, _) in processes.items():
        children[parent].append(pid)
    found = []
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if pid in processes:
            found.append(pid)
        waiting += children[pid]
    return found


# Ticks in which the machine was busy, and ticks of a process and its descendants.
CpuSample = collections.namedtuple("CpuSample", "time machine own")


def sample_cpu(root, now):
    processes = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                processes[int(entry)] = parse_process(file.read())
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has ended
    with open("/proc/stat", encoding="utf-8") as file:
        busy = busy_ticks(file.read())
    return CpuSample(now, busy, sum(processes[pid][1] for pid in family(processes, root)))


def others_share(begin, end, cores):
    """Returns the share of the cores' time that other processes took between two samples."""
    ticks = (end.machine - begin.machine) - (end.own - begin.own)
    return max(0.0, ticks / TICKS_PER_SECOND / ((end.time - begin.time) * cores))


def wait_until_quiet(limit, cores, patience, clock, sleep):
    """Waits until others take at most `limit` of the cores; returns False after `patience`."""
    deadline = clock() + patience
    while True:
        begin = sample_cpu(os.getpid(), clock())
        sleep(QUIET_WINDOW_S)
        if others_share(begin, sample_cpu(os.getpid(), clock()), cores) <= limit:
            return True
        if clock() >= deadline:
            return False


def replace_section(text, name, body):
    """Replaces the text between the markers of section `name`; appends a new section."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    section = f"{begin}\n{body.strip()}\n{end}"
    if begin not in text:
        return text.rstrip("\n") + "\n\n" + section + "\n"
    before, _, rest = text.partition(begin)
    if end not in rest:
        raise ValueError(f"the end marker of section {name} is missing")
    return before + section + rest.partition(end)[2]


def write_section(path, name, body):
    """Writes a section of a Markdown page; creates the page if it does not exist."""
    page = pathlib.Path(path)
    text = page.read_text(encoding="utf-8") if page.exists() else (
        "# Benchmarks\n\nEach section is written by the program that it names "
        "(bench/README.md).\n")
    page.write_text(replace_section(text, name, body), encoding="utf-8")
