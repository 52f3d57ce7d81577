"""Checks deploy/jobset/eps-train.yaml against the schemas of JobSet and Kubernetes and against
itself, and runs its containers with podman: a set that loses a server, and the one after it.

Arguments: the folder of the programs, and the folder of the tools (install_tools.sh)."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

import podman
import pods

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import small_job  # noqa: E402 # pylint: disable=wrong-import-position

BINARIES = TOOLS = None
FILE = os.path.join(ROOT, "deploy", "jobset", "eps-train.yaml")
CHART = os.path.join(ROOT, "deploy", "helm", "eps")
STEPS = 200
ROLES = ("server", "driver", "worker")
PORT = 50151


def read():
    """Returns {kind: object} of the file."""
    with open(FILE, encoding="utf-8") as f:
        return {each["kind"]: each for each in yaml.safe_load_all(f)}


def jobs(jobset):
    """Returns {name of a replicated job: specification of its Job}."""
    return {each["name"]: each["template"]["spec"] for each in jobset["spec"]["replicatedJobs"]}


def pod_of(jobset, role):
    return jobs(jobset)[role]["template"]["spec"]


def server_names(jobset):
    """Returns the names that JobSet gives to the servers."""
    name, subdomain = jobset["metadata"]["name"], jobset["spec"]["network"]["subdomain"]
    return ["%s-server-0-%d.%s" % (name, i, subdomain)
            for i in range(jobs(jobset)["server"]["completions"])]


def action(job, code, disrupted=False):
    """Returns what Kubernetes does after such an end of a pod: Ignore, Count or FailJob."""
    for rule in job["podFailurePolicy"]["rules"]:
        if "onExitCodes" in rule:
            matches = code in rule["onExitCodes"]["values"]
        else:
            assert rule["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}], rule
            matches = disrupted
        if matches:
            return rule["action"]
    return "Count"


def kubeconform(text, code=0):
    locations = ["-schema-location=%s/%s/{{.ResourceKind}}{{.KindSuffix}}.json" % (TOOLS, name)
                 for name in ("schemas", "jobset-schemas")]
    done = subprocess.run([os.path.join(TOOLS, "kubeconform"), "-strict", "-summary", *locations],
                          input=text, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False, timeout=120)
    if done.returncode != code:
        raise AssertionError("kubeconform ended with %d, not %d:\n%s" % (
            done.returncode, code, done.stdout[-3000:]))
    return done.stdout


class FileTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.objects = read()
        cls.jobset = cls.objects["JobSet"]

    def test_objects_follow_the_schemas(self):
        with open(FILE, encoding="utf-8") as f:
            text = f.read()
        self.assertIn("Valid: 4, Invalid: 0, Errors: 0, Skipped: 0", kubeconform(text))
        kubeconform(text.replace("restartStrategy:", "restartStrategie:"), code=1)
        kubeconform(text.replace("BlockingRecreate", "Blocking"), code=1)

    def test_its_jobs_follow_the_schemas(self):
        made = [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
                for name, spec in jobs(self.jobset).items()]
        said = kubeconform("\n---\n".join(json.dumps(each) for each in made))
        self.assertIn("Valid: 3, Invalid: 0, Errors: 0, Skipped: 0", said)

    def test_pods_are_as_restricted_as_the_chart(self):
        rendered = subprocess.run(
            [os.path.join(TOOLS, "helm"), "template", "eps", CHART, "--kube-version=1.36.3"],
            check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout
        charts = next(each for each in yaml.safe_load_all(rendered)
                      if each["kind"] == "StatefulSet")["spec"]["template"]["spec"]
        for role in ROLES:
            spec = pod_of(self.jobset, role)
            for field in ("securityContext", "automountServiceAccountToken", "enableServiceLinks"):
                self.assertEqual(spec[field], charts[field], role)
            container, = spec["containers"]
            self.assertEqual(container["securityContext"],
                             charts["containers"][0]["securityContext"], role)
            self.assertIn("memory", container["resources"]["limits"], role)
            self.assertIn("cpu", container["resources"]["requests"], role + ": for a queue")
            self.assertEqual(spec["restartPolicy"], "Never", role)

    def test_each_pod_has_its_certificate(self):
        for role in ROLES:
            spec = pod_of(self.jobset, role)
            container = spec["containers"][0]
            self.assertIn("--security.dir=/etc/eps-tls", container["args"])
            self.assertFalse([a for a in container["args"] if "insecure" in a or ".tls" in a])
            mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
            volumes = {v["name"]: v for v in spec["volumes"]}
            self.assertEqual(set(mounts.values()), set(volumes), role)
            self.assertEqual(volumes[mounts["/etc/eps-tls"]]["secret"], {
                "secretName": "eps-train-%s-tls" % role, "defaultMode": 0o440})

    def test_everybody_knows_the_servers(self):
        names = server_names(self.jobset)
        config = self.objects["ConfigMap"]
        self.assertEqual(config["data"]["servers"],
                         ",".join("%s:%d" % (name, PORT) for name in names))
        for role in ROLES:
            known = {each["name"]: each["valueFrom"] for each in
                     pod_of(self.jobset, role)["containers"][0]["env"] if "valueFrom" in each}
            self.assertEqual(
                known["EPS_SERVERS__PEERS" if role == "server" else "EPS_SERVERS"],
                {"configMapKeyRef": {"name": config["metadata"]["name"], "key": "servers"}}, role)
        with open(os.path.join(ROOT, "docs", "guides", "jobset.md"), encoding="utf-8") as f:
            self.assertIn("--hosts=%s\n" % ",".join(names), f.read())

    def test_as_many_workers_as_their_world(self):
        worker = jobs(self.jobset)["worker"]
        world = [each["value"] for each in worker["template"]["spec"]["containers"][0]["env"]
                 if each["name"] == "WORLD_SIZE"]
        self.assertEqual(world, [str(worker["completions"])])
        for job in jobs(self.jobset).values():
            self.assertEqual(job["completions"], job["parallelism"])
            self.assertEqual(job["completionMode"], "Indexed")

    def test_exit_codes_decide_what_happens(self):
        spec = self.jobset["spec"]
        self.assertEqual(spec["successPolicy"],
                         {"operator": "All", "targetReplicatedJobs": ["driver"]})
        policy = spec["failurePolicy"]
        self.assertEqual((policy["maxRestarts"], policy["restartStrategy"]),
                         (10, "BlockingRecreate"))
        self.assertEqual([(r["action"], r["onJobFailureReasons"]) for r in policy["rules"]],
                         [("FailJobSet", ["PodFailurePolicy"])])
        for role, job in jobs(self.jobset).items():
            for code in (64, 65, 66, 71, 76, 77):
                # A worker ends with 65 when a server is lost.
                self.assertEqual(action(job, code), "Count" if (role, code) == ("worker", 65)
                                 else "FailJob", (role, code))
            for code in (1, 69, 70, 74, 137, 139):
                self.assertEqual(action(job, code), "Count", (role, code))
            self.assertEqual(action(job, 143), "Ignore", role)
            self.assertEqual(action(job, 66, disrupted=True), "Ignore", role)
            # After one lost server or driver, the set starts again.
            self.assertEqual(job["backoffLimit"] == 0, role != "worker", role)

    def test_only_calls_of_servers_are_allowed(self):
        policy = self.objects["NetworkPolicy"]["spec"]
        own = {"podSelector": {"matchLabels": {
            "jobset.sigs.k8s.io/jobset-name": self.jobset["metadata"]["name"]}}}
        self.assertEqual(policy["podSelector"], own["podSelector"])
        self.assertEqual(sorted(policy["policyTypes"]), ["Egress", "Ingress"])
        servers = [{"protocol": "TCP", "port": PORT}]
        self.assertEqual(policy["ingress"], [{"from": [own], "ports": servers}])
        self.assertEqual(policy["egress"][0], {"to": [own], "ports": servers})
        self.assertEqual({p["port"] for p in policy["egress"][1]["ports"]}, {53})
        self.assertEqual(len(policy["egress"]), 2)


class SetTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="eps-jobset-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        objects = read()
        cls.jobset = objects["JobSet"]
        hosts = {"server-%d" % i: host for i, host in enumerate(server_names(cls.jobset))}
        cls.workers = ["worker-%d" % i for i in range(jobs(cls.jobset)["worker"]["completions"])]
        cls.names = [*hosts, "driver", *cls.workers]
        cls.pods = pods.Pods(BINARIES, cls.folder, cls.names, hosts)
        cls.addClassCleanup(cls.pods.stop)
        cls.pods.build()
        cls.job = cls.pods.write_config(objects["ConfigMap"]["data"])
        cls.pods.make_secrets({role: "eps-train-%s-tls" % role for role in ROLES})

    def start_set(self):
        """Starts all containers of the set, as the Jobs of a restarted set do."""
        for name in self.names:
            self.pods.start(name, pod_of(self.jobset, name.partition("-")[0]),
                            pods.SLOW if name in self.workers else {})
            self.addCleanup(self.pods.remove, name)

    def end_set(self):
        for name in reversed(self.names):
            self.pods.remove(name)

    def output(self):
        return os.path.join(self.pods.volume("eps-train-out"), "run")

    def steps(self):
        """Returns the number of steps in metrics.jsonl."""
        try:
            with open(os.path.join(self.output(), "metrics.jsonl"), encoding="utf-8") as f:
                return f.read().count("\n")
        except OSError:
            return 0

    def wait_for_step(self, step):
        def reached():
            self.assertEqual(self.pods.podman.inspect("driver")["State"]["Status"], "running",
                             self.pods.logs())
            return self.steps() >= step
        podman.wait_for("step %d" % step, reached)

    def test_a_set_continues_after_a_lost_server(self):
        self.start_set()
        self.wait_for_step(60)
        self.pods.podman.kill_process("server-1")
        code = self.pods.exit_code("server-1")
        self.assertEqual(code, 137)
        self.assertLess(self.steps(), STEPS, "the kill hit the run")
        server = jobs(self.jobset)["server"]
        self.assertEqual((action(server, code), server["backoffLimit"]), ("Count", 0))
        # The set starts again: all pods are deleted before the first new one (BlockingRecreate).
        self.end_set()
        self.start_set()
        for name in ("driver", *self.workers):
            self.assertEqual(self.pods.exit_code(name), 0, self.pods.logs())
        self.assertRegex(self.pods.logs(), r"resume: /out/run/checkpoint-\d+, step \d")
        self.assertEqual(small_job.outcome(os.path.join(BINARIES, "eps"), self.output(), STEPS),
                         self.outcome_here())

    def outcome_here(self):
        """Returns the outcome of the job on this machine, undisturbed."""
        out, eps = os.path.join(self.folder, "here"), os.path.join(BINARIES, "eps")
        subprocess.run([eps, "train", "--config=" + os.path.join(self.job, "job.yaml"),
                        "--model=" + os.path.join(self.job, "model.json"), "--servers=2",
                        "--workers=2", "--worker.threads=1", "--out=" + out], check=True,
                       stdout=subprocess.DEVNULL, timeout=podman.TIMEOUT_SECONDS)
        return small_job.outcome(eps, out, STEPS)


if __name__ == "__main__":
    TOOLS, BINARIES = (os.path.abspath(sys.argv.pop(i)) for i in (2, 1))
    unittest.main(verbosity=2)
