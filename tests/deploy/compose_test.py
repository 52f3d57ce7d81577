"""Brings deploy/compose up with real containers, kills each of them once, and compares the result
with that of the same job on this machine.

Arguments: the folder of eps and eps-worker, and the folder of the tools (install_tools.sh)."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import podman

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import small_job  # noqa: E402 # pylint: disable=wrong-import-position

BINARIES = TOOLS = None
COMPOSE_FILE = os.path.join(ROOT, "deploy", "compose", "compose.yaml")
BOARD_FILE = os.path.join(ROOT, "deploy", "compose", "board.yaml")
JOB = os.path.join(ROOT, "deploy", "compose", "job.yaml")
DATA = [os.path.join(ROOT, "docs", name) for name in ("protocol.md", "durability.md",
                                                      "planning.md")]
STEPS = 300
STEPS_BETWEEN_KILLS = 20
SERVICES = ("server-0", "server-1", "driver", "worker-0", "worker-1")
MAX_SERVER_IMAGE_BYTES = 60e6


class ComposeTest(unittest.TestCase):
    files = (COMPOSE_FILE,)

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="eps-compose-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.podman = podman.Podman(os.path.join(cls.folder, "podman"))
        cls.addClassCleanup(cls.podman.stop)
        cls.podman.build_images(BINARIES)
        cls.undisturbed = cls.train_here()

    @classmethod
    def train_here(cls):
        """Returns the outcome of the job on this machine, without containers."""
        out, eps = os.path.join(cls.folder, "here"), os.path.join(BINARIES, "eps")
        subprocess.run([eps, "train", "--config=" + JOB, "--data.path=" + ",".join(DATA),
                        "--servers=2", "--workers=2", "--worker.threads=1", "--out=" + out],
                       check=True,
                       stdout=subprocess.DEVNULL, timeout=600)
        return small_job.outcome(eps, out, STEPS)

    def compose(self, *arguments, given=""):
        files = [flag for file in self.files for flag in ("-f", file)]
        done = subprocess.run(
            [os.path.join(TOOLS, "docker-compose"), *files, *arguments],
            env=self.podman.environment, input=given, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=600, check=False)
        if done.returncode != 0:
            raise AssertionError("docker compose %s ended with %d:\n%s\n%s" % (
                " ".join(arguments), done.returncode, done.stdout[-4000:], self.logs()))
        return done.stdout

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
        driver = self.containers()["driver"]
        state = podman.wait_for("the end of the driver", lambda: (
            lambda found: found["Status"] == "exited" and found)(
                self.podman.inspect(driver)["State"]))
        self.assertEqual(state["ExitCode"], 0, self.logs())

    def result(self, folder="/out"):
        """Returns the outcome of the run, copied out of the driver's volume."""
        out = tempfile.mkdtemp(dir=self.folder)
        self.compose("cp", "driver:%s/." % folder, out)
        return small_job.outcome(os.path.join(BINARIES, "eps"), out, STEPS)

    def assert_nothing_is_left(self):
        for kind in ("container", "volume", "network"):
            left = self.podman.run(kind, "ls", *(["--all"] if kind == "container" else []),
                                   "--filter=label=com.docker.compose.project", "--quiet")
            self.assertEqual(left, "", kind)

    def up(self):
        self.addCleanup(self.compose, "down", "--volumes", "--timeout=1")
        self.compose("up", "--detach", "--wait", "--wait-timeout=180")

    def kill(self, service):
        """Kills the process of a container, and waits until there is another one."""
        name = self.containers()[service]
        before = self.podman.inspect(name)["State"]["Pid"]
        self.podman.kill_process(name)
        podman.wait_for(service + " to run again", lambda: self.podman.inspect(name)[
            "State"]["Pid"] not in (0, before))

    def test_images_hold_no_more_than_they_need(self):
        sizes = {}
        for name in ("eps-server", "eps-worker"):
            image = json.loads(self.podman.run("image", "inspect", name))[0]
            sizes[name] = image["Size"]
            self.assertEqual(image["Config"]["User"], "65532:65532")
            mount = self.podman.run("image", "mount", name).strip()
            files = {os.path.relpath(os.path.join(folder, each), mount)
                     for folder, _, names in os.walk(mount) for each in names}
            self.podman.run("image", "unmount", name)
            self.assertFalse([f for f in files if os.path.basename(f) in ("sh", "bash", "busybox")])
            self.assertEqual(name == "eps-worker", any("libtorch" in f for f in files), name)
        print("image sizes: %s" % sizes, file=sys.stderr)
        self.assertLess(sizes["eps-server"], MAX_SERVER_IMAGE_BYTES)

    def test_trains_and_leaves_nothing(self):
        self.up()
        for service, name in self.containers().items():
            container = self.podman.inspect(name)
            host = container["HostConfig"]
            self.assertTrue(host["ReadonlyRootfs"], service)
            self.assertEqual(container["EffectiveCaps"] or [], [], service)
            self.assertEqual(container["Config"]["User"], "65532:65532")
            self.assertIn("no-new-privileges", " ".join(host["SecurityOpt"]), service)
            self.assertFalse(any((host["PortBindings"] or {}).values()), service)
            self.assertGreater(host["Memory"], 0, service)
            seen = {mount["Destination"] for mount in container["Mounts"]
                    if mount["Destination"].startswith("/certs/")}
            if service != "certificates":
                own = service.split("-")[0]
                others = {"/certs/scheduler"} if own == "driver" else set()
                self.assertEqual(seen, {"/certs/" + own} | others, "certificates of " + service)
        network = json.loads(self.podman.run("network", "inspect", "eps_private"))[0]
        self.assertTrue(network["internal"])
        self.wait_for_the_end()
        self.assertEqual(self.result(), self.undisturbed)
        self.compose("down", "--volumes")
        self.assert_nothing_is_left()

    def test_each_container_may_be_killed(self):
        self.up()
        for service in SERVICES:
            self.wait_for_steps(self.steps() + STEPS_BETWEEN_KILLS)
            self.kill(service)
        self.assertLess(self.steps(), STEPS, "all kills hit the run")
        self.wait_for_the_end()
        self.assertEqual(self.result(), self.undisturbed)

    def test_a_run_continues_after_down(self):
        self.up()
        self.wait_for_steps(STEPS_BETWEEN_KILLS)
        names = [self.containers()[service] for service in ("server-0", "server-1", "driver")]
        self.compose("stop")
        codes = [self.podman.inspect(name)["State"]["ExitCode"] for name in names]
        self.assertEqual(codes, [143, 143, 143], self.logs())
        self.assertLess(self.steps(), STEPS, "the stop hit the run")
        self.compose("down")
        self.assertEqual(self.containers(), {})
        self.compose("up", "--detach", "--wait", "--wait-timeout=180")
        self.wait_for_the_end()
        self.assertEqual(self.result(), self.undisturbed)

    def test_jobs_on_the_board_run_one_after_the_other(self):
        self.files = (COMPOSE_FILE, BOARD_FILE)
        self.up()

        def eps(*arguments, given=""):
            return self.compose("exec", "-T", "driver", "/usr/bin/eps", *arguments,
                                "--servers=server-0:50151,server-1:50151", given=given)

        def wait_for_success(name):
            podman.wait_for("the end of " + name, lambda: json.loads(
                eps("job", "show", name, "--json"))["phase"] == "SUCCEEDED")

        with open(JOB, encoding="utf-8") as f:
            job = f.read()
        eps("submit", "-f", "/etc/eps/job.yaml", "--name=first")
        eps("submit", "-f", "-", "--name=second", given=job.replace("steps: 300", "steps: 40"))
        self.wait_for_steps(STEPS_BETWEEN_KILLS, "first")
        self.kill("driver")
        wait_for_success("first")
        self.assertEqual(self.result("/out/first"), self.undisturbed)
        wait_for_success("second")
        self.assertEqual(self.steps("second"), 40)
        self.compose("down", "--volumes")
        self.assert_nothing_is_left()


if __name__ == "__main__":
    TOOLS, BINARIES = (os.path.abspath(sys.argv.pop(i)) for i in (2, 1))
    unittest.main(verbosity=2)
