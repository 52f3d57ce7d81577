"""Shared libraries of CUDA kernels, compiled by nvcc."""

load("@cuda//:defs.bzl", "CUDA_ROOT", "HAS_CUDA", "HOST_CXX")

# Machine code for A100 (80) and H100/H200 (90), and PTX for later devices.
_ARCHITECTURES = [
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=sm_90",
    "-gencode=arch=compute_90,code=compute_90",
]

# The bits of a sum are part of the protocol: denormals are zero, a*b+c is rounded twice, and
# division and root are exact, as on a CPU.
_NUMERICS = ["-ftz=true", "-fmad=false", "-prec-div=true", "-prec-sqrt=true"]

def _nvcc_rule(name, out, srcs, hdrs, flags, visibility):
    nvcc = [CUDA_ROOT + "/bin/nvcc", "-ccbin", HOST_CXX, "-std=c++17", "-O3"] + _NUMERICS + flags
    command = " ".join(nvcc) + " -I. -o $@ " + " ".join(["$(location %s)" % s for s in srcs])
    if not HAS_CUDA:
        command = "echo 'no CUDA compiler: run third_party/install/setup_cuda.sh or set " + \
                  "CUDA_HOME, then bazel sync --configure' >&2; exit 1"
    native.genrule(
        name = name,
        srcs = srcs + hdrs,
        outs = [out],
        cmd = command,
        message = "Compiling CUDA kernels",
        tags = ["manual"],
        visibility = visibility,
    )

def cuda_shared_library(name, out, srcs, hdrs = [], visibility = None):
    """Links `out` from .cu files and the CUDA runtime, and exports only its C functions.

    Loading it needs nothing, not even a driver. Tagged manual, so that only a build that names it
    or a target that depends on it needs the compiler.
    """
    flags = ["-shared", "-cudart", "static", "-L%s/lib" % CUDA_ROOT, "-L%s/lib64" % CUDA_ROOT]
    flags += ["-Werror=all-warnings", "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra"]
    flags += ["-Xcompiler=-ffp-contract=off", "-Xlinker=--exclude-libs=ALL"]
    _nvcc_rule(name, out, srcs, hdrs, flags + _ARCHITECTURES, visibility)

def cuda_assembly(name, out, srcs, hdrs = [], visibility = None):
    """Compiles .cu files to PTX as text, with the flags of cuda_shared_library."""
    _nvcc_rule(name, out, srcs, hdrs, ["-ptx", "-arch=compute_90"], visibility)
