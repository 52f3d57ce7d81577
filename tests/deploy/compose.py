"""Runs the files of deploy/compose with a podman of the test's own (podman.py), and the same job
without containers."""

import json
import os
import subprocess
import sys
import tempfile

import podman

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import small_job  # noqa: E402 # pylint: disable=wrong-import-position

FOLDER = os.path.join(ROOT, "deploy", "compose")
COMPOSE_FILE, BOARD_FILE, GPU_FILE, PLUGIN_FILE, CODEC_FILE = (
    os.path.join(FOLDER, name)
    for name in ("compose.yaml", "board.yaml", "gpu.yaml", "plugin.yaml", "codec.yaml"))
JOB = os.path.join(FOLDER, "job.yaml")
STEPS = 300  # of the job
DATA = [os.path.join(ROOT, "docs", name) for name in ("protocol.md", "durability.md",
                                                      "planning.md")]


def train_here(binaries, folder, *arguments, job=JOB, steps=STEPS):
    """Returns the outcome of the job on this machine, without containers."""
    out, eps = os.path.join(folder, "here"), os.path.join(binaries, "eps")
    subprocess.run([eps, "train", "--config=" + job, "--data.path=" + ",".join(DATA),
                    "--servers=2", "--workers=2", "--worker.threads=1", "--out=" + out,
                    "--overwrite", *arguments],
                   check=True, stdout=subprocess.DEVNULL, timeout=podman.TIMEOUT_SECONDS)
    return small_job.outcome(eps, out, steps)


class Compose:
    """A project of these files. Call down() last. `folder` takes copies of outputs."""

    def __init__(self, tools, binaries, its_podman, folder, files=(COMPOSE_FILE,)):
        self.tools, self.binaries, self.podman, self.folder = tools, binaries, its_podman, folder
        self.files = files
        self.variables = {}

    def run(self, *arguments, given=""):
        """Runs docker compose with a text as its input, and returns what it says."""
        files = [flag for file in self.files for flag in ("-f", file)]
        done = subprocess.run(
            [os.path.join(self.tools, "docker-compose"), *files, *arguments],
            env={**self.podman.environment, **self.variables}, input=given, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=podman.TIMEOUT_SECONDS, check=False)
        if done.returncode != 0:
            raise AssertionError("docker compose %s ended with %d:\n%s\n%s" % (
                " ".join(arguments), done.returncode, done.stdout[-4000:], self.logs()))
        return done.stdout

    def up(self):
        self.run("up", "--detach", "--wait", "--wait-timeout=%d" % (podman.TIMEOUT_SECONDS // 2))

    def down(self):
        self.run("down", "--volumes", "--timeout=1")

    def logs(self):
        return "\n".join("== %s\n%s" % (name, self.podman.run("logs", "--tail=30", name,
                                                              check=False))
                         for name in self.containers().values())

    def containers(self):
        """Returns {service: name of its container}."""
        listed = json.loads(self.podman.run("ps", "--all", "--format=json"))
        return {each["Labels"]["com.docker.compose.service"]: each["Names"][0] for each in listed}

    def steps(self, folder="."):
        """Returns the number of steps in metrics.jsonl of a folder of the output volume."""
        volume = json.loads(self.podman.run("volume", "inspect", "eps_out"))[0]["Mountpoint"]
        try:
            with open(os.path.join(volume, folder, "metrics.jsonl"), encoding="utf-8") as f:
                return f.read().count("\n")
        except OSError:
            return 0

    def wait_for_steps(self, steps, folder="."):
        podman.wait_for("step %d" % steps, lambda: self.steps(folder) >= steps)

    def wait_for_the_end(self):
        """Waits for the end of the driver, which must be a success."""
        driver = self.containers()["driver"]
        state = podman.wait_for("the end of the driver", lambda: (
            lambda found: found["Status"] == "exited" and found)(
                self.podman.inspect(driver)["State"]))
        if state["ExitCode"] != 0:
            raise AssertionError("the driver ended with %d:\n%s" % (state["ExitCode"], self.logs()))

    def result(self, folder="/out", steps=STEPS):
        """Returns the outcome of the run, copied out of the driver's volume."""
        out = tempfile.mkdtemp(dir=self.folder)
        self.run("cp", "driver:%s/." % folder, out)
        return small_job.outcome(os.path.join(self.binaries, "eps"), out, steps)
