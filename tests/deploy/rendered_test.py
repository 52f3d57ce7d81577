"""Runs the containers of the rendered chart with podman, as the pods' specifications say: asks the
probes, submits jobs with the commands of docs/guides/kubernetes.md, kills and replaces containers,
and compares the results with those of the same jobs on this machine.

Arguments: the folder of the programs, and the folder of the tools (install_tools.sh)."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

import yaml

import podman
import pods

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import small_job  # noqa: E402 # pylint: disable=wrong-import-position

BINARIES = TOOLS = None
CHART = os.path.join(ROOT, "deploy", "helm", "eps")
GUIDE = os.path.join(ROOT, "docs", "guides", "kubernetes.md")
STEPS = 200  # of the guide's job
MORE_STEPS = 400  # of a job in which containers end
STEPS_BETWEEN_ENDS = 20
TERMINATED = 143
PATIENCE_SECONDS, PROBE_SECONDS = 1800, 300


def render():
    """Returns {component: object} of the objects that make pods, and the data of the ConfigMap."""
    text = subprocess.run(
        [os.path.join(TOOLS, "helm"), "template", "eps", CHART, "--kube-version=1.36.3",
         "--set=image.tag=latest,workers.config.worker\\.threads=1"], check=True,
        stdout=subprocess.PIPE, text=True, timeout=60).stdout
    found, files = {}, {}
    for each in yaml.safe_load_all(text):
        if each["kind"] == "ConfigMap":
            files = each["data"]
        elif each["kind"] == "Pod":
            found["test"] = each
        elif "template" in each["spec"]:
            labels = each["spec"]["template"]["metadata"]["labels"]
            found[labels["app.kubernetes.io/component"]] = each
    return found, files


def read_guide():
    """Returns the guide's job, and the commands that it runs in the driver's container, without
    what the shell does with files."""
    with open(GUIDE, encoding="utf-8") as f:
        text = f.read()
    job = re.search(r"^cat > job.yaml <<END\n(.*?)^END$", text, re.M | re.S).group(1)
    return job, [shlex.split(command) for command in re.findall(
        r"^kubectl exec (?:-i )?eps-driver-0 -- ([^<\n]*?)(?: < job.yaml)?$", text, re.M)]


def probe(url):
    """Asks as the kubelet does. Returns the code of the answer, or the error."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status
    except OSError as error:
        return str(error)


class RenderedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="eps-rendered-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.rendered, files = render()
        cls.job, cls.commands = read_guide()
        cls.names = ["%s-%d" % (component, i) for component in ("server", "driver", "worker")
                     for i in range(cls.rendered[component]["spec"]["replicas"])]
        hosts = {name: "eps-servers-%s.eps-servers" % name.partition("-")[2]
                 for name in cls.names if name.startswith("server-")}
        cls.pods = pods.Pods(BINARIES, cls.folder, [*cls.names, "test"], hosts)
        cls.addClassCleanup(cls.pods.stop)
        cls.pods.build()
        cls.files = cls.pods.write_config(files)
        cls.pods.make_secrets({role: "eps-%s-tls" % role for role in (
            "server", "driver", "worker", "scheduler", "viewer")})

    def pod_of(self, component):
        found = self.rendered[component]
        return (found if component == "test" else found["spec"]["template"])["spec"]

    def start(self, name):
        component = name.partition("-")[0]
        self.pods.start(name, self.pod_of(component),
                        pods.SLOW if component == "worker" else {})
        self.addCleanup(self.pods.remove, name)

    def assert_probes_answer(self):
        for name in self.names:
            container = self.pod_of(name.partition("-")[0])["containers"][0]
            ports = {p["name"]: p["containerPort"] for p in container.get("ports", [])}
            for key in ("startupProbe", "livenessProbe", "readinessProbe"):
                if key in container:
                    asked = container[key]["httpGet"]
                    url = "http://%s:%d%s" % (
                        self.pods.addresses[name], ports[asked["port"]], asked["path"])
                    podman.wait_for("%s of %s" % (key, name), lambda: probe(url) == 200,
                                    PROBE_SECONDS)

    def up(self):
        """Starts all pods, with new volumes."""
        self.addCleanup(self.pods.podman.run, "volume", "prune", "--force")
        for name in self.names:
            self.start(name)
        self.assert_probes_answer()
        podman.wait_for("a way from the driver to the lead", lambda: self.pods.podman.run(
            "exec", "driver-0", "/usr/bin/eps", "job", "ls", "--json", check=False))

    def eps(self, *arguments, given=None):
        return self.pods.podman.run("exec", *(["--interactive"] if given else []), "driver-0",
                                    "/usr/bin/eps", *arguments, given=given)

    def submit(self, name, **settings):
        job = yaml.safe_load(self.job)
        job["training"].update(settings)
        self.eps("submit", "-f", "-", "--name=" + name, given=yaml.safe_dump(job))

    def wait_for(self, name, what, reached):
        """Waits until a job is as wanted, and returns it. Its lead may be away meanwhile."""
        def look():
            said = self.pods.podman.run("exec", "driver-0", "/usr/bin/eps", "job", "show", name,
                                        "--json", check=False)
            job = json.loads(said or "{}")
            return job if said and reached(job) else None

        try:
            return podman.wait_for("%s of %s" % (what, name), look, seconds=PATIENCE_SECONDS)
        except AssertionError as error:
            raise AssertionError("%s\n%s" % (error, self.pods.logs())) from error

    def wait_for_step(self, name, step):
        return self.wait_for(name, "step %d" % step, lambda job: job["step"] >= step)["step"]

    def assert_succeeds(self, name, **settings):
        """Waits for the end of a job, and compares its outcome with one on this machine."""
        shown = self.wait_for(name, "the end", lambda job: job["exit_code"] is not None)
        self.assertEqual(shown["phase"], "SUCCEEDED", "%s\n%s" % (shown, self.pods.logs()))
        eps = os.path.join(BINARIES, "eps")
        there = os.path.join(self.pods.volume("out-driver-0"), name)
        steps = settings.get("steps", STEPS)
        here = tempfile.mkdtemp(dir=self.folder)
        with open(here + ".yaml", "w", encoding="utf-8") as f:
            f.write(self.job)
        subprocess.run(
            [eps, "train", "--config=" + here + ".yaml", "--servers=2", "--workers=2",
             "--worker.threads=1", "--out=" + here,
             "--model=" + os.path.join(self.files, "model.json"),
             *["--training.%s=%s" % item for item in settings.items()]],
            check=True, stdout=subprocess.DEVNULL, timeout=podman.TIMEOUT_SECONDS)
        self.assertEqual(small_job.outcome(eps, there, steps),
                         small_job.outcome(eps, here, steps))

    def test_the_commands_of_the_guide_work(self):
        self.up()
        self.start("test")
        self.assertEqual(self.pods.exit_code("test"), 0, self.pods.logs())
        said = []
        for command in self.commands[:4]:
            self.assertEqual(command[0], "/usr/bin/eps")
            said.append(self.eps(*command[1:], given=self.job if command[1] == "submit" else None))
        self.assertIn("job first: QUEUED", said[0])
        self.assertRegex(said[1], r"\nfirst +SUCCEEDED +200/200 ")
        self.assertIn("first ", said[2])
        self.assertIn("shard 1 of 2", said[3])
        self.assert_succeeds("first")

    def test_jobs_outlive_a_killed_driver(self):
        self.up()
        self.submit("first", steps=MORE_STEPS)
        self.submit("second", seed=5)
        self.wait_for_step("first", STEPS_BETWEEN_ENDS)
        self.eps("job", "pause", "first", "--wait")
        self.assertEqual(self.commands[4][1:], ["job", "resume", "first"])
        self.eps(*self.commands[4][1:])
        self.wait_for_step("first", 2 * STEPS_BETWEEN_ENDS)
        self.pods.podman.kill_process("driver-0")
        self.assertNotEqual(self.pods.exit_code("driver-0"), 0)
        self.pods.podman.run("start", "driver-0")
        self.assert_succeeds("first", steps=MORE_STEPS)
        self.assert_succeeds("second", seed=5)

    def test_an_upgrade_keeps_the_job(self):
        self.up()
        self.submit("first", steps=MORE_STEPS)
        step = 0
        # Kubernetes replaces the pods of a StatefulSet from the last one to the first one.
        for name in ("server-1", "server-0", "driver-0", "worker-1", "worker-0"):
            step += STEPS_BETWEEN_ENDS
            self.wait_for_step("first", step)
            grace = self.pod_of(name.partition("-")[0])["terminationGracePeriodSeconds"]
            self.pods.podman.run("stop", "--time=%d" % grace, name)
            self.assertEqual(self.pods.exit_code(name), TERMINATED, self.pods.logs())
            self.pods.podman.run("start", name)
            self.assert_probes_answer()
        self.assertLess(self.wait_for_step("first", step), MORE_STEPS, "the upgrade hit the job")
        self.assert_succeeds("first", steps=MORE_STEPS)


if __name__ == "__main__":
    TOOLS, BINARIES = (os.path.abspath(sys.argv.pop(i)) for i in (2, 1))
    unittest.main(verbosity=2)
