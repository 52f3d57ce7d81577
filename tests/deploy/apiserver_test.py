"""Installs, upgrades, rolls back and removes the chart on a real API server of Kubernetes, which
checks each object and each pod as that of a cluster does. There are no controllers: no pod runs.

Arguments: the folder of the programs, and the folder of the tools (install_tools.sh)."""

import copy
import json
import os
import shutil
import sys
import tempfile
import unittest

import yaml

import apiserver
import chart_test

TOOLS = None
STATEFUL_SETS = ("eps-servers", "eps-driver", "eps-workers")
SERVER = "eps-servers-%d.eps-servers:50151"
# The former settings, and the defaults of the chart that is new (docs/guides/kubernetes.md).
KEEP = "--reset-then-reuse-values"


def weakened(pod):
    """Yields pods that differ from a restricted one in one field, with its name."""
    def variant(path, value):
        result = copy.deepcopy(pod)
        node = result["spec"]
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value
        return ".".join(str(key) for key in path), result

    container = ("containers", 0, "securityContext")
    yield variant(("hostNetwork",), True)
    yield variant(("securityContext", "runAsNonRoot"), False)
    yield variant(("securityContext", "runAsUser"), 0)
    yield variant(("securityContext", "seccompProfile"), {"type": "Unconfined"})
    yield variant((*container, "allowPrivilegeEscalation"), True)
    yield variant((*container, "capabilities"), {"drop": ["CHOWN"]})
    yield variant(container, {"privileged": True})
    yield variant(("volumes",), pod["spec"]["volumes"] + [{"name": "host",
                                                           "hostPath": {"path": "/"}}])


class ApiServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="eps-apiserver-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.api = apiserver.ApiServer(os.path.join(cls.folder, "cluster"), TOOLS)
        cls.addClassCleanup(cls.api.stop)
        cls.install_certificates()
        # The one of chart_test.VARIANTS.
        cls.api.run("kubectl", "create", "--filename=-", given=yaml.safe_dump({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia",
            "metadata": {"name": "nvidia"}}))

    @classmethod
    def install_certificates(cls):
        """Has the API know the Certificates of cert-manager."""
        path = os.path.join(TOOLS, "cert-manager", "crd-certificates.yaml")
        with open(path, encoding="utf-8") as f:
            definition = yaml.safe_load(f)
        del definition["metadata"]["labels"]  # templates of its chart
        cls.api.run("kubectl", "create", "--filename=-", given=yaml.safe_dump(definition))
        cls.api.run("kubectl", "wait", "--for=condition=Established", "--timeout=60s",
                    "crd/certificates.cert-manager.io")

    def setUp(self):
        self.namespace = self._testMethodName.replace("_", "-")
        self.api.run("kubectl", "create", "namespace", self.namespace)
        # As the guide's cluster: pods that are not restricted are refused.
        self.api.run("kubectl", "label", "namespace", self.namespace,
                     "pod-security.kubernetes.io/enforce=restricted")

    def helm(self, command, *arguments, refused=False, chart=chart_test.CHART):
        chart = [chart] if command in ("install", "upgrade") else []
        return self.api.run("helm", command, "eps", *chart, "--namespace=" + self.namespace,
                            *arguments, refused=refused)

    def get(self, kind, name):
        return self.api.get(kind, name, self.namespace)

    def state(self):
        """Returns the number of servers, the images, and the servers that the pods call."""
        sets = [self.get("statefulset", name)["spec"] for name in STATEFUL_SETS]
        containers = [each["template"]["spec"]["containers"][0] for each in sets]
        environment = {e["name"]: e.get("value") for e in containers[1]["env"]}
        called = {argument.partition("=")[2]
                  for argument in containers[0]["args"] + containers[2]["args"]
                  if argument.startswith(("--servers=", "--servers.peers="))}
        return (sets[0]["replicas"], [each["image"] for each in containers],
                called | {environment["EPS_SERVERS"]})

    def expected(self, servers, tag):
        return (servers, ["eps-server:" + tag, "eps-server:" + tag, "eps-worker:" + tag],
                {",".join(SERVER % i for i in range(servers))})

    def objects_left(self):
        kinds = "statefulset,service,configmap,poddisruptionbudget,networkpolicy,certificate"
        listed = json.loads(self.api.run(
            "kubectl", "get", kinds, "--namespace=" + self.namespace, "--output=json",
            "--selector=app.kubernetes.io/instance=eps"))
        return [each["metadata"]["name"] for each in listed["items"]]

    def test_install_upgrade_rollback_uninstall(self):
        said = self.helm("install")
        self.assertIn("exec -i eps-driver-0 -- /usr/bin/eps submit -f - --name=first", said)
        self.assertEqual(self.state(), self.expected(2, "0.1.0"))
        for name in ("eps-servers", "eps-driver"):
            self.assertEqual(
                self.get("statefulset", name)["spec"]["persistentVolumeClaimRetentionPolicy"],
                {"whenDeleted": "Retain", "whenScaled": "Retain"})
        self.helm("upgrade", KEEP, "--set=image.tag=0.1.1")
        self.assertEqual(self.state(), self.expected(2, "0.1.1"))
        self.helm("upgrade", KEEP, "--set=servers.replicas=3")
        self.assertEqual(self.state(), self.expected(3, "0.1.1"))
        self.helm("rollback", "2")
        self.assertEqual(self.state(), self.expected(2, "0.1.1"))
        self.helm("rollback", "1")
        self.assertEqual(self.state(), self.expected(2, "0.1.0"))
        self.helm("uninstall")
        self.assertEqual(self.objects_left(), [])

    def test_every_setting_can_be_upgraded(self):
        self.helm("install")
        for value in ("files.text=x", "workers.replicas=4", "metrics.enabled=true",
                      "data.claim=text,data.path={/data/a}", "servers.drainTimeout=60",
                      "servers.storage.kind=nvme", "servers.config.storage\\.scrub=0",
                      "workers.config.worker\\.threads=2", "workers.nodeSelector.kind=cpu",
                      "workers.gpu=true", "workers.runtimeClass=nvidia",
                      "driver.resources.limits.memory=1Gi", "tls.trustDomain=here.org"):
            self.helm("upgrade", KEEP, "--set=" + value)

    def test_an_upgrade_knows_new_values(self):
        older = os.path.join(tempfile.mkdtemp(), "eps")
        self.addCleanup(shutil.rmtree, os.path.dirname(older))
        shutil.copytree(chart_test.CHART, older)
        path = os.path.join(older, "values.yaml")
        with open(path, encoding="utf-8") as f:
            values = yaml.safe_load(f)
        del values["workers"]["gpu"], values["image"]["cudaWorker"]
        with open(path, "w", encoding="utf-8") as f:
            yaml.safe_dump(values, f)
        self.helm("install", "--set=image.registry=here/", chart=older)
        self.assertEqual(self.state()[1][2], "here/eps-worker:0.1.0")
        self.helm("upgrade", KEEP, "--set=workers.gpu=true")
        self.assertEqual(self.state()[1][2], "here/eps-worker-cuda:0.1.0")

    def test_fewer_servers_need_shrink(self):
        self.helm("install", "--set=servers.replicas=3")
        said = self.helm("upgrade", "--set=servers.replicas=2", refused=True)
        self.assertIn("servers.replicas is 2, and 3 servers are installed", said)
        self.assertEqual(self.state()[0], 3)
        self.helm("upgrade", "--set=servers.replicas=2,servers.shrink=true")
        self.assertEqual(self.state(), self.expected(2, "0.1.0"))

    def test_volumes_keep_their_size(self):
        self.helm("install")
        for value in ("servers.storage.size=20Gi", "driver.output.size=20Gi",
                      "driver.output.claim=other"):
            said = self.helm("upgrade", "--set=" + value, refused=True)
            self.assertIn("updates to statefulset spec for fields other than", said)
        self.helm("upgrade", "--set=image.tag=0.1.1")
        self.assertEqual(self.state(), self.expected(2, "0.1.1"))

    def test_objects_are_accepted_strictly(self):
        for settings in chart_test.VARIANTS.values():
            self.helm("install", "--dry-run=server", *settings)
            rendered = chart_test.render(*settings)
            said = self.api.create(rendered, self.namespace)
            self.assertEqual(said.count("created (server dry run)"),
                             len(chart_test.objects(*settings)), said)
        for right, wrong in (("podManagementPolicy:", "podManagmentPolicy:"),
                             ("fieldPath: metadata.labels[", "fieldPath: metadata.tags["),
                             ("privateKey:", "privateKeys:")):
            self.assertIn(right, rendered)
            self.api.create(rendered.replace(right, wrong), self.namespace, refused=True)

    def test_pods_are_restricted(self):
        for settings in chart_test.VARIANTS.values():
            for name, template in chart_test.pod_templates(chart_test.objects(*settings)).items():
                pod = {"apiVersion": "v1", "kind": "Pod", "spec": copy.deepcopy(template["spec"]),
                       "metadata": {**template["metadata"], "name": "pod"}}
                made = {v["name"] for v in pod["spec"]["volumes"]}
                # The controller of a StatefulSet adds the volumes of its claims.
                pod["spec"]["volumes"] += [
                    {"name": each, "persistentVolumeClaim": {"claimName": each}}
                    for each in sorted({m["name"] for m in pod["spec"]["containers"][0][
                        "volumeMounts"]} - made)]
                self.api.create(yaml.safe_dump(pod), self.namespace)
                for field, worse in weakened(pod):
                    with self.subTest(pod=name, field=field):
                        said = self.api.create(yaml.safe_dump(worse), self.namespace, refused=True)
                        self.assertIn("violates PodSecurity \"restricted:latest\"", said)

    def test_certificates_are_accepted(self):
        self.helm("install", "--set=tls.issuer.name=ca,tls.issuer.kind=ClusterIssuer")
        for role in ("server", "driver", "worker", "scheduler", "viewer"):
            made = self.get("certificate", "eps-" + role)["spec"]
            self.assertEqual(made["uris"], ["spiffe://eps/eps/" + role])
            self.assertEqual(made["secretName"], "eps-%s-tls" % role)
        rendered = chart_test.render("--set=tls.issuer.name=ca")
        for right, wrong in (("server auth", "serve auth"), ("algorithm: ECDSA", "algorithm: DH")):
            self.assertIn(right, rendered)
            said = self.api.create(rendered.replace(right, wrong), self.namespace, refused=True)
            self.assertIn("Unsupported value", said)


if __name__ == "__main__":
    TOOLS, _ = (os.path.abspath(sys.argv.pop(i)) for i in (2, 1))
    chart_test.TOOLS = TOOLS
    unittest.main(verbosity=2)
