"""Runs the containers of the rendered chart with podman, as the pods' specifications say, asks the
probes of the servers, and compares the result of the job with that of the same job on this machine.

Arguments: the folder of eps and eps-worker, and the folder of the tools (install_tools.sh)."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

import yaml

import podman

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import small_job  # noqa: E402 # pylint: disable=wrong-import-position

BINARIES = TOOLS = None
CHART = os.path.join(ROOT, "deploy", "helm", "eps")
STEPS = 200  # of the job in values.yaml
SUBNET = "10.89.77"
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


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
        cls.podman = podman.Podman(os.path.join(cls.folder, "podman"))
        cls.addClassCleanup(cls.podman.stop)
        cls.podman.build_images(BINARIES)
        cls.rendered, cls.files = render()
        os.mkdir(os.path.join(cls.folder, "job"), 0o755)
        for name, text in cls.files.items():
            with open(os.path.join(cls.folder, "job", name), "w", encoding="utf-8") as f:
                f.write(text)
        os.chmod(cls.folder, 0o755)
        cls.make_secrets()
        cls.podman.run("network", "create", "--internal", "--subnet=%s.0/24" % SUBNET, "pods")
        count = cls.rendered["server"]["spec"]["replicas"]
        cls.addresses = ["%s.%d" % (SUBNET, 10 + i) for i in range(count)]

    @classmethod
    def make_secrets(cls):
        """Makes the folders that stand for the secrets, as docs/guides/kubernetes.md says."""
        def certs(*arguments):
            subprocess.run([os.path.join(BINARIES, "eps"), "certs", *arguments], check=True,
                           stdout=subprocess.DEVNULL, cwd=cls.folder, timeout=60)

        certs("init", "ca")
        for role in ("server", "driver", "worker", "viewer"):
            hosts = ["--hosts=eps-servers-0.eps-servers,eps-servers-1.eps-servers"]
            certs("issue", "ca", "--role=" + role, "--out=eps-%s-tls" % role,
                  *(hosts if role == "server" else []))
            # A pod's group may read the files of its secret.
            folder = os.path.join(cls.folder, "eps-%s-tls" % role)
            os.chmod(folder, 0o755)
            for name in os.listdir(folder):
                os.chmod(os.path.join(folder, name), 0o444)

    def pod_of(self, component):
        found = self.rendered[component]
        return (found if component == "test" else found["spec"]["template"])["spec"]

    def mounts(self, spec, claims):
        """Returns podman's arguments for the mounts of a pod. `claims`: {volume: volume of podman}.
        """
        volumes = {v["name"]: v for v in spec.get("volumes", [])}
        result = []
        for mount in spec["containers"][0].get("volumeMounts", []):
            volume = volumes.get(mount["name"], {})
            if "emptyDir" in volume:
                result.append("--tmpfs=%s:rw,size=64m,mode=1777" % mount["mountPath"])
            elif "configMap" in volume:
                result.append("--volume=%s:%s:ro" % (os.path.join(self.folder, "job"),
                                                     mount["mountPath"]))
            elif "secret" in volume:
                result.append("--volume=%s:%s:ro" % (
                    os.path.join(self.folder, volume["secret"]["secretName"]),
                    mount["mountPath"]))
            else:
                result.append("--volume=%s:%s" % (claims[mount["name"]], mount["mountPath"]))
        return result

    def start(self, name, component, index=0, address=None, claims=None):
        """Starts the container of a pod with the options that its specification stands for."""
        spec = self.pod_of(component)
        container = spec["containers"][0]
        self.assertEqual(container["securityContext"]["capabilities"], {"drop": ["ALL"]})
        user = spec["securityContext"]
        options = ["--name=" + name, "--network=pods", "--cap-drop=ALL",
                   "--security-opt=no-new-privileges", "--read-only", "--read-only-tmpfs=false",
                   "--user=%d:%d" % (user["runAsUser"], user["runAsGroup"]),
                   "--memory=" + container["resources"]["limits"]["memory"].rstrip("i")]
        options += ["--ip=" + address] if address else []
        options += ["--add-host=eps-servers-%d.eps-servers:%s" % item
                    for item in enumerate(self.addresses)]
        for variable in container.get("env", []):
            value = variable.get("value")
            if value is None:
                self.assertEqual(variable["valueFrom"]["fieldRef"]["fieldPath"], INDEX)
                value = str(index)
            options.append("--env=%s=%s" % (variable["name"], value))
        self.podman.run("run", "--detach", *options, *self.mounts(spec, claims or {}),
                        container["image"], *container["args"])
        self.addCleanup(self.podman.run, "rm", "--force", "--time=1", name, check=False)

    def exit_code(self, name):
        state = podman.wait_for("the end of " + name, lambda: (
            lambda s: s["Status"] == "exited" and s)(self.podman.inspect(name)["State"]))
        return state["ExitCode"]

    def logs(self, name):
        return self.podman.run("logs", name, check=False)

    def assert_probes_answer(self):
        container = self.pod_of("server")["containers"][0]
        ports = {p["name"]: p["containerPort"] for p in container["ports"]}
        for address in self.addresses:
            for name in ("startupProbe", "livenessProbe", "readinessProbe"):
                asked = container[name]["httpGet"]
                url = "http://%s:%d%s" % (address, ports[asked["port"]], asked["path"])
                podman.wait_for("%s: %s says %s" % (name, url, probe(url)),
                                lambda: probe(url) == 200, seconds=30)

    def test_the_containers_train(self):
        for i, address in enumerate(self.addresses):
            self.start("server-%d" % i, "server", address=address,
                       claims={"state": "state-%d" % i})
        self.assert_probes_answer()
        self.start("test", "test")
        self.assertEqual(self.exit_code("test"), 0, self.logs("test"))
        self.start("driver", "driver", claims={"out": "out"})
        workers = ["worker-%d" % i for i in range(self.rendered["worker"]["spec"]["completions"])]
        for i, name in enumerate(workers):
            self.start(name, "worker", index=i)
        for name in ["driver", *workers]:
            self.assertEqual(self.exit_code(name), 0, self.logs(name))
        self.assertEqual(self.outcome(), self.outcome_here())

    def outcome(self):
        volume = json.loads(self.podman.run("volume", "inspect", "out"))[0]["Mountpoint"]
        return small_job.outcome(os.path.join(BINARIES, "eps"), os.path.join(volume, "first"),
                                 STEPS)

    def outcome_here(self):
        """Returns the outcome of the job on this machine, without containers."""
        out, eps = os.path.join(self.folder, "here"), os.path.join(BINARIES, "eps")
        job = os.path.join(self.folder, "job")
        subprocess.run([eps, "train", "--config=" + os.path.join(job, "job.yaml"),
                        "--model=" + os.path.join(job, "model.json"), "--servers=2",
                        "--workers=2", "--out=" + out], check=True, stdout=subprocess.DEVNULL,
                       timeout=600)
        return small_job.outcome(eps, out, STEPS)


if __name__ == "__main__":
    TOOLS, BINARIES = (os.path.abspath(sys.argv.pop(i)) for i in (2, 1))
    unittest.main(verbosity=2)
