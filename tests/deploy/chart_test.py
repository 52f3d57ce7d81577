"""Checks deploy/helm: the values, and the rendered objects against the schemas of Kubernetes and
against each other.

Arguments: the folder of the programs, and the folder of the tools (install_tools.sh)."""

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import unittest

import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CHART = os.path.join(ROOT, "deploy", "helm", "eps")
TOOLS = None
TIMEOUT_SECONDS = 120
KUBERNETES = "1.36.3"
# Values that change each part of the templates.
VARIANTS = {
    "default": [],
    "large": ["--set=servers.replicas=5,workers.replicas=9,data.claim=text,metrics.enabled=true",
              "--set=data.path={/data/a.txt,/data/b.txt},driver.output.claim=results",
              "--set=servers.storage.className=fast,servers.config.storage\\.scrub=8388608",
              "--set=workers.config.worker\\.threads=4,image.pullSecrets[0]=key",
              "--set=tls.issuer.name=ca,tls.issuer.kind=ClusterIssuer,tls.trustDomain=here.org",
              "--set=workers.nodeSelector.kind=cpu,servers.nodeSelector.kind=disk",
              "--set=workers.gpu=true,workers.runtimeClass=nvidia",
              "--set=updater.configMap=my-rule,updater.trusted=true",
              "--set=codec.configMap=my-codec,codec.trusted=true"],
}
# Settings, and a part of the refusal.
REFUSED = [
    (["insecure=acknowledged"], "insecure"),
    (["tls.enabled=false"], "enabled"),
    (["tls.issuer.kind=Secret"], "kind"),
    (["server.replicas=3"], "server"),
    (["servers.replica=3"], "replica"),
    (["servers.replicas=0"], "replicas"),
    (["servers.config.servers\\.thread=2"], "servers.thread"),
    (["servers.config.servers\\.insecure=true"], "servers.insecure"),
    (["servers.stateSize=4GB"], "stateSize"),
    (["servers.stateSize=5Gi"], "two cuts of servers.stateSize=5Gi need at least 10304 MiB"),
    (["workers.resources.limits.cpus=2"], "cpus"),
    (["workers.config.worker\\.join_timeout=1m"], "worker.join_timeout"),
    (["job.name=second"], "job"),
    (["files.a/b=x"], "a/b"),
    (["data.path={/out/first}"], "path"),
    (["networkPolicy.enabled=false"], "networkPolicy"),
    (["workers.gpu=2"], "gpu"),
    (["updater.configMap=my-rule"], "Set updater.trusted=true"),
    (["updater.file=my-rule.so"], "file"),
    (["codec.configMap=my-codec"], "Set codec.trusted=true"),
]


def tool(name, *arguments, code=0, stdin=None):
    done = subprocess.run([os.path.join(TOOLS, name), *arguments], input=stdin, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                          timeout=TIMEOUT_SECONDS)
    if done.returncode != code:
        raise AssertionError("%s %s ended with %d, not %d:\n%s" % (
            name, " ".join(arguments), done.returncode, code, done.stdout[-3000:]))
    return done.stdout


def render(*settings):
    return tool("helm", "template", "eps", CHART, "--kube-version=" + KUBERNETES, *settings)


def objects(*settings):
    """Returns {(kind, name): object}."""
    return {(each["kind"], each["metadata"]["name"]): each
            for each in yaml.safe_load_all(render(*settings))}


def pod_templates(rendered):
    """Returns {name: pod template, or pod} of all objects that make pods."""
    found = {}
    for (kind, name), each in rendered.items():
        if kind == "Pod":
            found[name] = each
        elif "template" in each.get("spec", {}):
            found[name] = each["spec"]["template"]
    return found


class ValuesTest(unittest.TestCase):
    def test_lint_finds_nothing(self):
        for settings in VARIANTS.values():
            tool("helm", "lint", "--strict", CHART, *settings)

    def test_wrong_values_are_refused(self):
        for settings, text in REFUSED:
            with self.subTest(settings=settings):
                said = tool("helm", "template", "eps", CHART, "--kube-version=" + KUBERNETES,
                            *["--set=" + each for each in settings], code=1)
                self.assertIn(text, said)

    def test_every_object_of_the_schema_is_closed(self):
        with open(os.path.join(CHART, "values.schema.json"), encoding="utf-8") as f:
            schema = json.load(f)
        # Maps with names of the user's choice; their values are texts.
        open_maps = {"files", "servers.nodeSelector", "driver.nodeSelector",
                     "workers.nodeSelector"}
        seen = set()

        def walk(node, path):
            if node.get("type") == "object":
                if path in open_maps:
                    seen.add(path)
                    self.assertEqual(node["additionalProperties"], {"type": "string"}, path)
                else:
                    self.assertIs(node["additionalProperties"], False, path)
            for name, child in node.get("properties", {}).items():
                walk(child, (path + "." + name).lstrip("."))

        walk(schema, "")
        self.assertEqual(seen, open_maps)

    def test_the_settings_are_keys_of_the_program(self):
        with open(os.path.join(CHART, "values.schema.json"), encoding="utf-8") as f:
            schema = json.load(f)["properties"]
        with open(os.path.join(ROOT, "docs", "reference", "config.md"), encoding="utf-8") as f:
            keys = set(re.findall(r"^\| `([\w.]+)` \|", f.read(), re.MULTILINE))
        for section in ("servers", "workers"):
            named = set(schema[section]["properties"]["config"]["properties"])
            self.assertEqual(named - keys, set())
        flags = set()
        for each in pod_templates(objects(*VARIANTS["large"])).values():
            for argument in each["spec"]["containers"][0]["args"]:
                flags.update(re.findall(r"^--(\w+[.]\w+)=", argument))
        self.assertGreater(len(flags), 6)
        self.assertEqual(flags - keys, set())

    def test_the_page_of_values_is_generated(self):
        spec = importlib.util.spec_from_file_location(
            "values_page", os.path.join(ROOT, "deploy", "helm", "values_page.py"))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with open(os.path.join(CHART, "README.md"), encoding="utf-8") as f:
            self.assertEqual(f.read(), module.page())


class ObjectsTest(unittest.TestCase):
    def test_objects_follow_the_schemas_of_the_api(self):
        location = os.path.join(TOOLS, "schemas", "{{.ResourceKind}}{{.KindSuffix}}.json")
        for settings in VARIANTS.values():
            # Certificates belong to cert-manager, whose schemas are not here.
            said = tool("kubeconform", "-strict", "-summary", "-schema-location", location,
                        "-skip=Certificate", stdin=render(*settings))
            self.assertRegex(said, r"Valid: 1\d, Invalid: 0, Errors: 0, Skipped: [05]$")
        # The check itself can fail.
        tool("kubeconform", "-strict", "-schema-location", location, code=1,
             stdin=render().replace("podManagementPolicy:", "podManagmentPolicy:"))

    def test_pods_are_restricted(self):
        for settings in VARIANTS.values():
            templates = pod_templates(objects(*settings))
            self.assertEqual(len(templates), 4)
            for name, each in templates.items():
                spec = each["spec"]
                self.assertIs(spec["automountServiceAccountToken"], False, name)
                self.assertEqual(spec["securityContext"], {
                    "runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532,
                    "fsGroup": 65532, "fsGroupChangePolicy": "OnRootMismatch",
                    "seccompProfile": {"type": "RuntimeDefault"}}, name)
                for container in spec["containers"] + spec.get("initContainers", []):
                    self.assertEqual(container["securityContext"], {
                        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]}}, name)
                    self.assertIn("memory", container["resources"]["limits"], name)

    def test_mounts_and_volumes_belong_together(self):
        for settings in VARIANTS.values():
            rendered = objects(*settings)
            for name, each in pod_templates(rendered).items():
                spec = each["spec"]
                made = rendered.get(("StatefulSet", name), {"spec": {}})["spec"]
                volumes = {v["name"] for v in spec.get("volumes", [])} | {
                    v["metadata"]["name"] for v in made.get("volumeClaimTemplates", [])}
                mounts = {m["mountPath"]: m["name"]
                          for m in spec["containers"][0].get("volumeMounts", [])}
                self.assertEqual(set(mounts.values()), volumes, name)
                # A path in an argument is a mount or below one: the root cannot be written.
                said = spec["containers"][0]["args"] + [
                    "=" + e.get("value", "") for e in spec["containers"][0].get("env", [])]
                for path in re.findall(r"=(/[^,\s]+)", " ".join(said)):
                    self.assertTrue(any((path + "/").startswith(m + "/") for m in mounts),
                                    (name, path))

    def test_changed_files_restart_their_readers(self):
        rendered = objects()
        changed = objects("--set=files.text=x")
        self.assertEqual(changed["ConfigMap", "eps-files"]["data"]["text"], "x")
        for name, template in pod_templates(rendered).items():
            reads = [v["configMap"] for v in template["spec"]["volumes"] if "configMap" in v]
            reader = name in ("eps-driver", "eps-workers")
            self.assertEqual(reads, [{"name": "eps-files"}] if reader else [], name)
            self.assertEqual(template != pod_templates(changed)[name], reader, name)

    def test_claims_outlive_the_release(self):
        retained = {"whenDeleted": "Retain", "whenScaled": "Retain"}
        for settings in VARIANTS.values():
            rendered = objects(*settings)
            for name, volume in (("eps-servers", "state"), ("eps-driver", "out")):
                spec = rendered["StatefulSet", name]["spec"]
                self.assertEqual(spec["persistentVolumeClaimRetentionPolicy"], retained, name)
                claims = [c["metadata"]["name"] for c in spec.get("volumeClaimTemplates", [])]
                given = [v["persistentVolumeClaim"]["claimName"]
                         for v in spec["template"]["spec"]["volumes"] if v["name"] == volume]
                self.assertEqual((claims, given), (
                    ([], ["results"]) if settings and name == "eps-driver" else ([volume], [])))

    def test_each_worker_has_a_rank(self):
        for settings, replicas in zip(VARIANTS.values(), (2, 9)):
            spec = objects(*settings)["StatefulSet", "eps-workers"]["spec"]
            self.assertEqual(spec["replicas"], replicas)
            self.assertEqual(spec["template"]["spec"]["containers"][0]["env"], [
                {"name": "RANK", "valueFrom": {"fieldRef": {
                    "fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}}},
                {"name": "WORLD_SIZE", "value": str(replicas)}])

    def test_only_workers_take_gpus(self):
        for settings in VARIANTS.values():
            for name, each in pod_templates(objects(*settings)).items():
                spec, gpu = each["spec"], bool(settings) and name == "eps-workers"
                container = spec["containers"][0]
                self.assertEqual(container["image"].startswith("eps-worker-cuda:"), gpu, name)
                self.assertEqual("--worker.device=cuda" in container["args"], gpu, name)
                self.assertEqual(container["resources"]["limits"].get("nvidia.com/gpu"),
                                 1 if gpu else None, name)
                self.assertEqual(spec.get("runtimeClassName"), "nvidia" if gpu else None, name)
                self.assertEqual(spec.get("tolerations"), [
                    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
                                 if gpu else None, name)

    def test_jobs_read_below_the_claim(self):
        for settings, roots in zip(VARIANTS.values(), (["/etc/eps"], ["/etc/eps", "/data"])):
            rendered = pod_templates(objects(*settings))
            arguments = {name: each["spec"]["containers"][0]["args"]
                         for name, each in rendered.items()}
            self.assertEqual([a for a in arguments["eps-driver"] if "--data-root" in a],
                             ["--data-root=" + root for root in roots])
            self.assertEqual([a for a in arguments["eps-workers"] if "--data" in a],
                             ["--data.path=/data/a.txt,/data/b.txt"] if settings else [])

    def test_probes_ask_the_port_that_is_served(self):
        for settings in VARIANTS.values():
            rendered = pod_templates(objects(*settings))
            for pod, flags, asked in (
                    ("eps-servers", {"--listen=": "grpc", "--servers.http=": "http"},
                     {"startupProbe": "/startupz", "livenessProbe": "/healthz",
                      "readinessProbe": "/readyz"}),
                    ("eps-workers", {"--worker.http=": "http"}, {"livenessProbe": "/healthz"})):
                container = rendered[pod]["spec"]["containers"][0]
                ports = {p["name"]: p["containerPort"] for p in container["ports"]}
                self.assertEqual(set(ports), set(flags.values()))
                for flag, name in flags.items():
                    served = [a.rpartition(":")[2] for a in container["args"] if a.startswith(flag)]
                    self.assertEqual(served, [str(ports[name])])
                paths = {name: container[name]["httpGet"] for name in container if "Probe" in name}
                self.assertEqual(paths, {name: {"path": path, "port": "http"}
                                         for name, path in asked.items()})

    def test_each_pod_has_the_certificate_of_its_role(self):
        with open(os.path.join(ROOT, "proto", "eps", "v1", "access.proto"), encoding="utf-8") as f:
            known = {role.lower() for role in re.findall(r"^  ROLE_(\w+) = ", f.read(), re.M)}
        roles = {"eps-servers": "server", "eps-driver": "driver", "eps-workers": "worker",
                 "eps-test": "viewer"}
        self.assertLessEqual(set(roles.values()), known)
        for settings in VARIANTS.values():
            rendered = objects(*settings)
            certificates = {each["spec"]["secretName"]: each["spec"]
                            for (kind, _), each in rendered.items() if kind == "Certificate"}
            domain = "here.org" if certificates else "eps"
            self.assertEqual(len(certificates), 5 if settings else 0)
            for name, template in pod_templates(rendered).items():
                spec = template["spec"]
                volumes = {v["name"]: v for v in spec["volumes"]}
                mounts = {m["mountPath"]: m["name"] for m in spec["containers"][0]["volumeMounts"]}
                arguments = spec["containers"][0]["args"]
                folder = next(a.partition("=")[2] for a in arguments
                              if a.startswith("--security.dir="))
                secret = volumes[mounts[folder]]["secret"]
                self.assertEqual(secret, {"secretName": "eps-%s-tls" % roles[name],
                                          "defaultMode": 0o440})
                self.assertIn("--security.trust_domain=" + domain, arguments)
                self.assertFalse([a for a in arguments if "insecure" in a or "security.tls" in a])
                if certificates:
                    made = certificates[secret["secretName"]]
                    self.assertEqual(made["uris"],
                                     ["spiffe://%s/eps/%s" % (domain, roles[name])])
                    self.assertEqual(made["issuerRef"], {"name": "ca", "kind": "ClusterIssuer"})
                    hosts = ["eps-servers-%d.eps-servers" % i for i in range(5)]
                    self.assertEqual(made.get("dnsNames", []),
                                     hosts if name == "eps-servers" else [])

    def test_people_are_schedulers_in_the_driver(self):
        for settings, domain in zip(VARIANTS.values(), ("eps", "here.org")):
            rendered = objects(*settings)
            spec = pod_templates(rendered)["eps-driver"]["spec"]
            container = spec["containers"][0]
            variables = {e["name"]: e["value"] for e in container["env"]}
            self.assertEqual(variables["EPS_SECURITY__TRUST_DOMAIN"], domain)
            mount = next(m for m in container["volumeMounts"]
                         if m["mountPath"] == variables["EPS_SECURITY__DIR"])
            volume = next(v for v in spec["volumes"] if v["name"] == mount["name"])
            self.assertEqual(volume["secret"], {"secretName": "eps-scheduler-tls",
                                                "defaultMode": 0o440})
            if settings:
                made = rendered["Certificate", "eps-scheduler"]["spec"]
                self.assertEqual((made["secretName"], made["uris"]), (
                    "eps-scheduler-tls", ["spiffe://here.org/eps/scheduler"]))

    def test_a_start_has_time_for_the_state(self):
        for state, rate, seconds in [("4Gi", "100Mi", 142), ("1Ti", "1Gi", 2108),
                                     ("1Mi", "1Gi", 61)]:
            probe = objects("--set=servers.stateSize=%s,servers.diskRate=%s" % (state, rate),
                            "--set=servers.storage.size=3Ti")["StatefulSet", "eps-servers"]["spec"][
                                "template"]["spec"]["containers"][0]["startupProbe"]
            self.assertEqual(probe["failureThreshold"], math.ceil(seconds / 5))
            self.assertEqual(probe["periodSeconds"], 5)

    def test_a_stop_has_time_for_a_cut(self):
        server = objects("--set=servers.drainTimeout=100")["StatefulSet", "eps-servers"]["spec"][
            "template"]["spec"]
        self.assertEqual(server["terminationGracePeriodSeconds"], 115)
        self.assertIn("--servers.drain_timeout=100s", server["containers"][0]["args"])
        source = os.path.join(ROOT, "cli", "launch", "service", "driven_job.cc")
        with open(source, encoding="utf-8") as f:
            patience = re.search(r"seconds kInterruptPatience\{(\d+)\}", f.read())
        driver = objects()["StatefulSet", "eps-driver"]["spec"]["template"]["spec"]
        self.assertGreaterEqual(driver["terminationGracePeriodSeconds"],
                                int(patience.group(1)) + 15)

    def test_everybody_knows_the_same_servers(self):
        rendered = objects(*VARIANTS["large"])
        servers = rendered["StatefulSet", "eps-servers"]["spec"]
        service = rendered["Service", "eps-servers"]
        self.assertEqual(servers["serviceName"], service["metadata"]["name"])
        self.assertEqual(service["spec"]["clusterIP"], "None")
        self.assertIs(service["spec"]["publishNotReadyAddresses"], True)
        expected = ",".join("eps-servers-%d.eps-servers:50151" % i
                            for i in range(servers["replicas"]))
        named = []
        for each in pod_templates(rendered).values():
            container = each["spec"]["containers"][0]
            said = container["args"] + [e.get("value", "") for e in container.get("env", [])]
            named += [text.rpartition("=")[2] for text in said if ":50151," in text]
        self.assertEqual(named, [expected] * 4)


def selects(selector, labels):
    """Returns whether a label selector with In expressions selects a pod."""
    return all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items()) and all(
        labels.get(e["key"]) in e["values"] for e in selector.get("matchExpressions", []))


class NetworkTest(unittest.TestCase):
    """Evaluates the network policies as the API defines them."""

    @classmethod
    def setUpClass(cls):
        cls.rendered = objects(*VARIANTS["large"])
        cls.policies = [o["spec"] for (kind, _), o in cls.rendered.items()
                        if kind == "NetworkPolicy"]
        cls.pods = {t["metadata"]["labels"]["app.kubernetes.io/component"]: t["metadata"]["labels"]
                    for t in pod_templates(cls.rendered).values()}
        cls.pods["stranger"] = {"app.kubernetes.io/name": "other"}
        cls.pods["other release"] = {"app.kubernetes.io/name": "eps",
                                     "app.kubernetes.io/instance": "second",
                                     "app.kubernetes.io/component": "worker"}

    def allows(self, direction, pod, peer, port):
        policies = [p for p in self.policies if direction in p["policyTypes"] and
                    selects(p["podSelector"], self.pods[pod])]
        if not policies:
            return True
        rules, peers = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
        return any(
            any(p["port"] == port for p in rule["ports"]) and
            any("podSelector" in side and "namespaceSelector" not in side and
                selects(side["podSelector"], self.pods[peer]) for side in rule[peers])
            for policy in policies for rule in policy.get(rules, []))

    def test_only_the_needed_calls_are_allowed(self):
        callers = {"server", "driver", "worker", "test"}
        for client in self.pods:
            for server in self.pods:
                for port in (50151, 9464, 80):
                    allowed = (self.allows("Egress", client, server, port) and
                               self.allows("Ingress", server, client, port))
                    foreign = {client, server} <= {"stranger", "other release"}
                    self.assertEqual(
                        allowed, foreign or (client in callers and server == "server" and
                                             port == 50151), (client, server, port))

    def test_names_are_looked_up_in_the_system_only(self):
        ports = {}
        for policy in self.policies:
            for rule in policy.get("egress", []):
                for side in rule["to"]:
                    key = json.dumps(side.get("namespaceSelector") or side.get("ipBlock") or "pods")
                    ports.setdefault(key, set()).update(p["port"] for p in rule["ports"])
        self.assertEqual(sorted(ports.values(), key=sorted), [{53}, {53}, {50151}])

    def test_metrics_are_for_one_namespace(self):
        plain = [o["spec"] for (kind, _), o in objects().items() if kind == "NetworkPolicy"]
        for policies, expected in [(plain, set()), (self.policies, {"server", "worker"})]:
            open_to = [(policy, side, rule["ports"])
                       for policy in policies for rule in policy.get("ingress", [])
                       for side in rule["from"] if "namespaceSelector" in side]
            for _, side, ports in open_to:
                self.assertEqual(side, {"namespaceSelector": {"matchLabels": {
                    "kubernetes.io/metadata.name": "monitoring"}}})
                self.assertEqual([p["port"] for p in ports], [9464])
            self.assertEqual({component for component, labels in self.pods.items()
                              if any(selects(p["podSelector"], labels) for p, _, _ in open_to)},
                             expected)


if __name__ == "__main__":
    TOOLS, _ = (os.path.abspath(sys.argv.pop(i)) for i in (2, 1))
    unittest.main(verbosity=2)
