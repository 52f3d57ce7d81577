"""Runs the containers of the rendered chart with podman, as the pods' specifications say, asks the
probes of the servers, and compares the result of the job with that of the same job on this machine.

Arguments: the folder of eps and eps-worker, and the folder of the tools (install_tools.sh)."""

import os
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
STEPS = 200  # of the job in values.yaml


def render():
    """Returns {component: object} of the objects that make pods, and the data of the ConfigMap."""
    text = subprocess.run(
        [os.path.join(TOOLS, "helm"), "template", "eps", CHART, "--kube-version=1.36.3",
         "--set=image.tag=latest"], check=True, stdout=subprocess.PIPE,
        text=True, timeout=60).stdout
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
        count = cls.rendered["server"]["spec"]["replicas"]
        cls.pods = pods.Pods(BINARIES, cls.folder,
                             ["eps-servers-%d.eps-servers" % i for i in range(count)])
        cls.addClassCleanup(cls.pods.stop)
        cls.pods.build()
        cls.job = cls.pods.write_config(files)
        cls.pods.make_secrets({role: "eps-%s-tls" % role
                               for role in ("server", "driver", "worker", "viewer")})

    def pod_of(self, component):
        found = self.rendered[component]
        return (found if component == "test" else found["spec"]["template"])["spec"]

    def start(self, name, component, **options):
        self.pods.start(name, self.pod_of(component), **options)
        self.addCleanup(self.pods.remove, name)

    def assert_ends_well(self, name):
        self.assertEqual(self.pods.exit_code(name), 0, self.pods.logs(name))

    def assert_probes_answer(self):
        container = self.pod_of("server")["containers"][0]
        ports = {p["name"]: p["containerPort"] for p in container["ports"]}
        for address in self.pods.hosts.values():
            for name in ("startupProbe", "livenessProbe", "readinessProbe"):
                asked = container[name]["httpGet"]
                url = "http://%s:%d%s" % (address, ports[asked["port"]], asked["path"])
                podman.wait_for("%s: %s says %s" % (name, url, probe(url)),
                                lambda: probe(url) == 200, seconds=30)

    def test_the_containers_train(self):
        for i, address in enumerate(self.pods.hosts.values()):
            self.start("server-%d" % i, "server", address=address,
                       claims={"state": "state-%d" % i})
        self.assert_probes_answer()
        self.start("test", "test")
        self.assert_ends_well("test")
        self.start("driver", "driver", claims={"out": "out"})
        workers = ["worker-%d" % i for i in range(self.rendered["worker"]["spec"]["completions"])]
        for i, name in enumerate(workers):
            self.start(name, "worker", index=i)
        for name in ["driver", *workers]:
            self.assert_ends_well(name)
        self.assertEqual(small_job.outcome(os.path.join(BINARIES, "eps"),
                                           os.path.join(self.pods.volume("out"), "first"), STEPS),
                         self.outcome_here())

    def outcome_here(self):
        """Returns the outcome of the job on this machine, without containers."""
        out, eps = os.path.join(self.folder, "here"), os.path.join(BINARIES, "eps")
        subprocess.run([eps, "train", "--config=" + os.path.join(self.job, "job.yaml"),
                        "--model=" + os.path.join(self.job, "model.json"), "--servers=2",
                        "--workers=2", "--out=" + out], check=True, stdout=subprocess.DEVNULL,
                       timeout=600)
        return small_job.outcome(eps, out, STEPS)


if __name__ == "__main__":
    TOOLS, BINARIES = (os.path.abspath(sys.argv.pop(i)) for i in (2, 1))
    unittest.main(verbosity=2)
