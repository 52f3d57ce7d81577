"""Makes stand-ins for the CUDA libraries that PyTorch's wheel names and this project never calls.

The wheel links against cuBLAS, cuDNN and others, 2 GB that a comparison on the CPU has no use for,
yet without them `import torch` ends in the dynamic linker. A stand-in has the library's soname and
defines, with their versions, exactly the symbols that PyTorch's libraries leave undefined. Each
of them returns 1, which CUDA's libraries mean as an error, should anything ever call it.

usage: python3 third_party/install/torch_stub_libs.py TORCH_LIB_FOLDER OUTPUT_FOLDER
The stand-ins are found by adding OUTPUT_FOLDER to LD_LIBRARY_PATH. Needs binutils and gcc.
"""

import collections
import pathlib
import re
import subprocess
import sys

# The libraries by soname, and the names of their symbols where PyTorch asks for them without a
# version. An earlier entry wins: cublasLt stands before cublas, cusparseLt before cusparse.
STAND_INS = {
    "libcublasLt.so.13": r"cublasLt",
    "libcublas.so.13": r"cublas",
    "libcudnn.so.9": r"cudnn",
    "libcufft.so.12": r"cufft",
    "libcufile.so.0": r"cuFile",
    "libcurand.so.10": r"curand",
    "libcusolver.so.12": r"cusolver",
    "libcusparseLt.so.0": r"cusparseLt",
    "libcusparse.so.12": r"cusparse",
    "libnccl.so.2": r"p?nccl",
    "libnvshmem_host.so.3": r"nvshmem",
}
TIMEOUT_SECONDS = 120


def output_of(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True,
                          timeout=TIMEOUT_SECONDS).stdout


def library_of_version(library):
    """{version: soname} of the symbol versions that a shared library asks of others."""
    owners = {}
    soname = None
    for line in output_of("objdump", "-p", str(library)).splitlines():
        heading = re.match(r"\s*required from (\S+):$", line)
        entry = re.match(r"\s*0x[0-9a-f]+ 0x[0-9a-f]+ \d+ (\S+)$", line)
        if heading:
            soname = heading.group(1)
        elif entry and soname:
            owners[entry.group(1)] = soname
        else:
            soname = None
    return owners


def wanted_symbols(libraries):
    """{soname: {version or "": symbols}} for the stand-ins."""
    wanted = {soname: collections.defaultdict(set) for soname in STAND_INS}
    for library in libraries:
        owners = library_of_version(library)
        for line in output_of("nm", "-D", "--undefined-only", str(library)).splitlines():
            symbol, _, version = line.split()[-1].partition("@")
            version = version.lstrip("@")
            if version:
                owner = owners.get(version)
            else:
                owner = next((soname for soname, prefix in STAND_INS.items()
                              if re.match(prefix, symbol)), None)
            if owner in wanted:
                wanted[owner][version].add(symbol)
    return wanted


def write_library(soname, symbols_of_version, folder):
    source = folder / (soname + ".c")
    script = folder / (soname + ".map")
    names = sorted(set().union(*symbols_of_version.values()))
    source.write_text("".join(f"int {name}(void) {{ return 1; }}\n" for name in names) +
                      "int eps_stand_in;\n", encoding="utf-8")
    command = ["gcc", "-shared", "-fPIC", "-o", str(folder / soname), str(source),
               f"-Wl,-soname,{soname}"]
    versions = {version: names for version, names in symbols_of_version.items() if version}
    if versions:
        script.write_text("".join("%s { global: %s; };\n" % (version, "; ".join(sorted(names)))
                                  for version, names in sorted(versions.items())),
                          encoding="utf-8")
        command.append(f"-Wl,--version-script={script}")
    subprocess.run(command, check=True, timeout=TIMEOUT_SECONDS)
    source.unlink()
    script.unlink(missing_ok=True)


def main():
    torch_lib, folder = (pathlib.Path(argument) for argument in sys.argv[1:])
    libraries = sorted(torch_lib.glob("*.so*"))
    if not libraries:
        sys.exit(f"torch_stub_libs: no shared libraries in {torch_lib}")
    folder.mkdir(parents=True, exist_ok=True)
    for soname, symbols in wanted_symbols(libraries).items():
        write_library(soname, symbols, folder)


if __name__ == "__main__":
    main()
