"""Brings deploy/compose up with real containers, kills each of them once, and compares the result
with that of the same job on this machine.

Arguments: the folder of the programs, and the folder of the tools (install_tools.sh)."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

import compose
import podman

BINARIES = TOOLS = None
STEPS_BETWEEN_KILLS = 20
PLUGIN_STEPS = 40
SERVICES = ("server-0", "server-1", "driver", "worker-0", "worker-1")
MAX_SERVER_IMAGE_BYTES = 64e6


class ComposeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="eps-compose-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.podman = podman.Podman(os.path.join(cls.folder, "podman"))
        cls.addClassCleanup(cls.podman.stop)
        cls.podman.build_images(BINARIES)
        cls.undisturbed = compose.train_here(BINARIES, cls.folder)

    def setUp(self):
        self.compose = compose.Compose(TOOLS, BINARIES, self.podman, self.folder)

    def assert_nothing_is_left(self):
        for kind in ("container", "volume", "network"):
            left = self.podman.run(kind, "ls", *(["--all"] if kind == "container" else []),
                                   "--filter=label=com.docker.compose.project", "--quiet")
            self.assertEqual(left, "", kind)

    def up(self):
        self.addCleanup(self.compose.down)
        self.compose.up()

    def kill(self, service):
        """Kills the process of a container, and waits until there is another one."""
        name = self.compose.containers()[service]
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

    def test_the_gpu_file_changes_the_workers_alone(self):
        device = {"driver": "nvidia", "device_ids": ["0"], "capabilities": ["gpu"]}
        for files in ((compose.COMPOSE_FILE,), (compose.COMPOSE_FILE, compose.BOARD_FILE)):
            services = []
            for self.compose.files in (files, (*files, compose.GPU_FILE)):
                services.append(json.loads(self.compose.run("config", "--format=json"))["services"])
            plain, gpu = services
            for i in range(2):
                worker = plain["worker-%d" % i]
                worker["image"] = "eps-worker-cuda:latest"
                worker["environment"]["EPS_WORKER__DEVICE"] = "cuda"
                worker["mem_limit"] = str(8 << 30)
                worker["deploy"] = {"resources": {"reservations": {"devices": [device]}},
                                    "placement": {}}
            self.assertEqual(gpu, plain)

    def new_plugin(self, command, name):
        """Returns the object of a new updater or codec."""
        folder = os.path.join(self.folder, name)
        subprocess.run([os.path.join(BINARIES, "eps"), command, "new", name, "--out=" + folder],
                       check=True, stdout=subprocess.DEVNULL, timeout=podman.TIMEOUT_SECONDS)
        subprocess.run(["make", "--silent", "-C", folder], check=True,
                       timeout=podman.TIMEOUT_SECONDS)
        return os.path.join(folder, name + ".so")

    def test_a_job_uses_plugins_of_its_own(self):
        updater, codec = self.new_plugin("updater", "rule"), self.new_plugin("codec", "bits")
        with open(compose.JOB, encoding="utf-8") as f:
            job = yaml.safe_load(f)
        job["optimizer"] = {"name": "plugin", "lr": job["optimizer"]["lr"]}
        job["quantization"] = {"gradients": "plugin"}
        job["training"]["steps"] = PLUGIN_STEPS
        path = os.path.join(self.folder, "plugins.yaml")
        with open(path, "w", encoding="utf-8") as f:
            yaml.safe_dump(job, f)
        self.compose.files = (compose.COMPOSE_FILE, compose.PLUGIN_FILE, compose.CODEC_FILE)
        self.compose.variables = {"EPS_PLUGIN": updater, "EPS_CODEC": codec, "EPS_JOB": path}
        self.up()
        self.compose.wait_for_the_end()
        here = compose.train_here(
            BINARIES, self.folder, "--optimizer.plugin=" + updater,
            "--quantization.plugin=" + codec, "--servers.trust_plugins=true", job=path,
            steps=PLUGIN_STEPS)
        self.assertEqual(self.compose.result(steps=PLUGIN_STEPS), here)

    def test_trains_and_leaves_nothing(self):
        self.up()
        for service, name in self.compose.containers().items():
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
        self.compose.wait_for_the_end()
        self.assertEqual(self.compose.result(), self.undisturbed)
        self.compose.run("down", "--volumes")
        self.assert_nothing_is_left()

    def test_each_container_may_be_killed(self):
        self.up()
        for service in SERVICES:
            self.compose.wait_for_steps(self.compose.steps() + STEPS_BETWEEN_KILLS)
            self.kill(service)
        self.assertLess(self.compose.steps(), compose.STEPS, "all kills hit the run")
        self.compose.wait_for_the_end()
        self.assertEqual(self.compose.result(), self.undisturbed)

    def test_a_run_continues_after_down(self):
        self.up()
        self.compose.wait_for_steps(STEPS_BETWEEN_KILLS)
        names = [self.compose.containers()[service]
                 for service in ("server-0", "server-1", "driver")]
        self.compose.run("stop")
        codes = [self.podman.inspect(name)["State"]["ExitCode"] for name in names]
        self.assertEqual(codes, [143, 143, 143], self.compose.logs())
        self.assertLess(self.compose.steps(), compose.STEPS, "the stop hit the run")
        self.compose.run("down")
        self.assertEqual(self.compose.containers(), {})
        self.compose.up()
        self.compose.wait_for_the_end()
        self.assertEqual(self.compose.result(), self.undisturbed)

    def test_jobs_on_the_board_run_one_after_the_other(self):
        self.compose.files = (compose.COMPOSE_FILE, compose.BOARD_FILE)
        self.up()

        def eps(*arguments, given=""):
            return self.compose.run("exec", "-T", "driver", "/usr/bin/eps", *arguments,
                                    "--servers=server-0:50151,server-1:50151", given=given)

        def wait_for_success(name):
            podman.wait_for("the end of " + name, lambda: json.loads(
                eps("job", "show", name, "--json"))["phase"] == "SUCCEEDED")

        with open(compose.JOB, encoding="utf-8") as f:
            job = f.read()
        eps("submit", "-f", "/etc/eps/job.yaml", "--name=first")
        eps("submit", "-f", "-", "--name=second", given=job.replace("steps: 300", "steps: 40"))
        self.compose.wait_for_steps(STEPS_BETWEEN_KILLS, "first")
        self.kill("driver")
        wait_for_success("first")
        self.assertEqual(self.compose.result("/out/first"), self.undisturbed)
        wait_for_success("second")
        self.assertEqual(self.compose.steps("second"), 40)
        self.compose.run("down", "--volumes")
        self.assert_nothing_is_left()


if __name__ == "__main__":
    TOOLS, BINARIES = (os.path.abspath(sys.argv.pop(i)) for i in (2, 1))
    unittest.main(verbosity=2)
