"""Measures a machine with a GPU: its links, its host memory, its matrix products and attention.

    facts.py --out=FILE [--dry]

Prints each figure and writes all of them to FILE as JSON, as soon as it has them. A part that fails
leaves NAME_error, and the others run. --dry measures small sizes on the CPU. Needs torch.
"""

import argparse
import json
import mmap
import os
import platform
import re
import resource
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

GIB = 1 << 30
# (inner, outer) sizes of linear layers: Qwen2.5 7B's, then Llama 70B's.
LAYERS = [(3584, 4608), (3584, 18944), (18944, 3584), (8192, 10240), (8192, 28672)]


class Facts:
    """The figures and the file that receives them. Not thread-safe."""

    def __init__(self, path, dry):
        self.path = path
        self.dry = dry
        self.device = "cpu" if dry else "cuda"
        self.values = {}

    def note(self, name, value):
        self.values[name] = round(value, 3) if isinstance(value, float) else value
        print(f"{name}: {self.values[name]}", flush=True)
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump(self.values, file, indent=1)

    def seconds(self, work, repeats=5):
        """Returns the median time of `work`, with all that it enqueues on the device."""
        times = []
        for _ in range(repeats + 1):
            begin = time.perf_counter()
            work()
            if not self.dry:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        return sorted(times[1:])[repeats // 2]

    def random(self, *shape, **options):
        return torch.randn(shape, device=self.device, dtype=torch.bfloat16, **options)


def lines_of(path, pattern):
    """Returns the groups of `pattern` in a file, [] if there is no such file."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8", errors="replace") as file:
        return re.findall(pattern, file.read(), re.MULTILINE)


def machine(facts):
    facts.note("glibc", platform.libc_ver()[1])
    library = lines_of("/proc/self/maps", r"(/\S*libstdc\+\+\.so\.6\S*)")
    if library:
        with open(library[0], "rb") as file:
            versions = re.findall(rb"GLIBCXX_3\.4\.(\d+)", file.read())
        facts.note("glibcxx", f"3.4.{max(map(int, versions))}")
    facts.note("python", platform.python_version())
    facts.note("torch", torch.__version__)
    if not facts.dry:
        facts.note("device", torch.cuda.get_device_name())
    facts.note("cores", len(os.sched_getaffinity(0)))
    facts.note("processor", next(iter(lines_of("/proc/cpuinfo", r"^model name\s*: (.*)$")), "?"))
    for name, kib in lines_of("/proc/meminfo", r"^(MemTotal|MemAvailable):\s+(\d+)"):
        facts.note(f"{name}_bytes", int(kib) << 10)
    facts.note("lockable_bytes", resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    if os.path.isdir("/dev/shm"):
        shared = os.statvfs("/dev/shm")
        facts.note("dev_shm_bytes", shared.f_bavail * shared.f_frsize)


def links(facts):
    if facts.dry:
        return
    on_device = [torch.empty(GIB, dtype=torch.uint8, device="cuda") for _ in range(2)]
    begin = time.perf_counter()
    pinned = [torch.empty(GIB, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    facts.note("pin_seconds_per_gib", (time.perf_counter() - begin) / 2)
    streams = [torch.cuda.Stream() for _ in range(2)]

    def copy_in():
        with torch.cuda.stream(streams[0]):
            on_device[0].copy_(pinned[0], non_blocking=True)

    def copy_out():
        with torch.cuda.stream(streams[1]):
            pinned[1].copy_(on_device[1], non_blocking=True)

    def both():
        copy_in()
        copy_out()

    facts.note("copy_in_gb_per_s", GIB / 1e9 / facts.seconds(copy_in))
    facts.note("copy_out_gb_per_s", GIB / 1e9 / facts.seconds(copy_out))
    facts.note("both_gb_per_s_each", GIB / 1e9 / facts.seconds(both))
    facts.note("device_memory_gb_per_s",
               2 * GIB / 1e9 / facts.seconds(lambda: on_device[0].copy_(on_device[1])))


def shared_segment(facts):
    """Copies from memory that another process may have made, registered with the driver."""
    if facts.dry:
        return
    segment = os.memfd_create("eps")
    os.ftruncate(segment, GIB)
    host = torch.frombuffer(mmap.mmap(segment, GIB), dtype=torch.uint8)
    host.fill_(1)
    on_device = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    begin = time.perf_counter()
    status = torch.cuda.cudart().cudaHostRegister(host.data_ptr(), GIB, 0)
    facts.note("register_seconds_per_gib", time.perf_counter() - begin)
    facts.note("register_status", str(status))
    copy = facts.seconds(lambda: on_device.copy_(host, non_blocking=True))
    facts.note("copy_in_shared_gb_per_s", GIB / 1e9 / copy)
    torch.cuda.cudart().cudaHostUnregister(host.data_ptr())


def host_memory(facts):
    """Measures what bounds an update: memory traffic of all cores, and torch's own AdamW."""
    n = (1 << 20) if facts.dry else (1 << 28)
    left, right = torch.ones(n), torch.ones(n)
    facts.note("host_copy_gb_per_s", 8e-9 * n / facts.seconds(lambda: left.copy_(right)))
    facts.note("host_update_gb_per_s", 8e-9 * n / facts.seconds(lambda: left.mul_(1.0001)))
    weights = torch.zeros(n, requires_grad=True)
    weights.grad = torch.ones(n)
    step = torch.optim.AdamW([weights], lr=1e-3, fused=True).step
    facts.note("torch_adamw_ns_per_parameter", 1e9 / n * facts.seconds(step, 3))


def products(facts):
    """The three products of a linear layer in BF16; the weights' gradient also in FP32."""
    tokens = 256 if facts.dry else 8192
    for inner, outer in [(64, 192)] if facts.dry else LAYERS:
        x, w, y = (facts.random(*shape) for shape in
                   ((tokens, inner), (inner, outer), (tokens, outer)))
        kinds = {"forward": lambda: x @ w, "input_gradient": lambda: y @ w.t(),
                 "weight_gradient": lambda: x.t() @ y}
        if not facts.dry:  # a CPU has no such kernel
            kinds["fp32_weight_gradient"] = lambda: torch.mm(x.t(), y, out_dtype=torch.float32)
        for kind, work in kinds.items():
            facts.note(f"{kind}_{inner}x{outer}_tflops",
                       2e-12 * tokens * inner * outer / facts.seconds(work))


def attention(facts):
    """Causal flash attention with deterministic algorithms; its backward must repeat its bits."""
    samples, heads, seq, size = (1, 2, 64, 64) if facts.dry else (4, 28, 4096, 128)
    torch.use_deterministic_algorithms(True)
    q, k, v = (facts.random(samples, heads, seq, size, requires_grad=True) for _ in range(3))
    flops = 2 * samples * heads * seq * seq * size
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        forward = facts.seconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    grad = facts.random(*out.shape)

    def backward():
        return torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

    facts.note("flash_forward_tflops", 1e-12 * flops / forward)
    facts.note("flash_backward_tflops", 2.5e-12 * flops / facts.seconds(backward))
    facts.note("flash_backward_repeats",
               all(torch.equal(a, b) for a, b in zip(backward(), backward())))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    facts = Facts(options.out, options.dry)
    failed = False
    for part in (machine, links, shared_segment, host_memory, products, attention):
        try:
            part(facts)
        except Exception as error:  # pylint: disable=broad-exception-caught
            facts.note(f"{part.__name__}_error", repr(error)[:300])
            failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
