"""source_text_test: a Python test that reads the source tree itself."""

def source_text_test(name, script, size = "small"):
    """Runs a Python script of the tree with python3, outside the sandbox.

    The script reads the tree that contains it, so bazel cannot detect when its result changes:
    the test always runs ("external").

    Args:
      name: name of the test, ending in _test.
      script: path of the script from the workspace root.
      size: size of the test.
    """
    native.sh_test(
        name = name,
        size = size,
        srcs = ["//tests:run_python_test.sh"],
        args = [script],
        tags = [
            "external",
            "local",
            "no-sandbox",
        ],
    )
