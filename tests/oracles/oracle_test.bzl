"""Tests in Python that compare EPS with PyTorch and other programs of strangers."""

def oracle_test(name, programs = [], size = "large"):
    """Declares the test in NAME.py, which gets the paths of `programs` as arguments.

    It needs the Python of third_party/install/setup_oracles.sh, so only ./test --oracles runs it.
    Bazel cannot detect when its result changes ("external").

    Args:
      name: of the test, and of its script without .py.
      programs: labels of executables.
      size: as of any test.
    """
    native.sh_test(
        name = name,
        size = size,
        srcs = ["run_with_torch.sh"],
        args = ["tests/oracles/%s.py" % name] + ["$(location %s)" % p for p in programs],
        data = programs,
        tags = ["external", "local", "manual", "no-sandbox"],
    )
