"""program_test: a Python test that runs the programs of the project as a user would."""

def program_test(
        name,
        script,
        programs,
        size = "medium",
        data = [],
        tags = [],
        shard_count = None):
    """Runs `script` with python3 and the paths of `programs` as its arguments.

    Args:
      name: name of the test, ending in _test.
      script: a Python file of this package.
      programs: labels of binaries; their paths are the script's arguments, in order.
      size: size of the test.
      data: other files that the script needs.
      tags: tags of the test.
      shard_count: number of processes among which the script divides its tests, if it does.
    """
    native.sh_test(
        name = name,
        size = size,
        srcs = ["//tests:run_program_test.sh"],
        args = ["$(location %s)" % script] + ["$(location %s)" % p for p in programs],
        data = [script] + programs + data,
        tags = tags,
        shard_count = shard_count,
    )
