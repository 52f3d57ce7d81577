"""Runs the containers of Kubernetes' pods with podman, with the options that their specifications
stand for: user, read-only root, capabilities, memory, environment, arguments and volumes."""

import ipaddress
import json
import os
import subprocess

import podman

# Fields of a pod that hold its index: of an Indexed Job, and of a StatefulSet.
INDEXES = ("metadata.annotations['batch.kubernetes.io/job-completion-index']",
           "metadata.labels['apps.kubernetes.io/pod-index']")
FIRST_ADDRESS = 10
# A worker's environment in which a step takes about 150 ms, so that containers end in the middle of
# a job.
SLOW = {"EPS_WORKER__PASS_TIME": "10ms"}


class Pods:
    """Pods in a network of their own. A pod's name ends with its index, if it has one.

    `addresses` has an address for each name; a container has the same one whenever it starts.
    `hosts`: {pod: name by which the others know it}. Call build() first, and stop() last."""

    def __init__(self, binaries, folder, names, hosts):
        self.binaries, self.folder, self.hosts = binaries, folder, hosts
        self.addresses = dict.fromkeys(names)
        self.config = {}
        # All podmans of a machine keep the addresses that are taken by the network's name.
        self.network = "pods-" + os.path.basename(folder)
        os.chmod(folder, 0o755)
        self.podman = podman.Podman(os.path.join(folder, "podman"))

    def build(self):
        """Builds the images and the network, once."""
        self.podman.build_images(self.binaries)
        self.podman.run("network", "create", "--internal", self.network)
        subnet = ipaddress.ip_network(json.loads(
            self.podman.run("network", "inspect", self.network))[0]["subnets"][0]["subnet"])
        for number, name in enumerate(self.addresses, FIRST_ADDRESS):
            self.addresses[name] = str(subnet[number])

    def stop(self):
        self.podman.stop()

    def write_config(self, files):
        """Sets the data of the ConfigMap, and makes the folder that stands for it, with the links
        that the kubelet makes. Returns the folder."""
        self.config = files
        folder = os.path.join(self.folder, "config")
        os.makedirs(os.path.join(folder, "..version"))
        os.symlink("..version", os.path.join(folder, "..data"))
        for name, text in files.items():
            with open(os.path.join(folder, "..version", name), "w", encoding="utf-8") as f:
                f.write(text)
            os.symlink(os.path.join("..data", name), os.path.join(folder, name))
        return folder

    def make_secrets(self, secrets):
        """Makes the folders that stand for secrets. `secrets`: {role: name of its secret}."""
        def certs(*arguments):
            subprocess.run([os.path.join(self.binaries, "eps"), "certs", *arguments], check=True,
                           stdout=subprocess.DEVNULL, cwd=self.folder, timeout=60)

        certs("init", "ca")
        for role, secret in secrets.items():
            hosts = ["--hosts=" + ",".join(self.hosts.values())] if role == "server" else []
            certs("issue", "ca", "--role=" + role, "--out=" + secret, *hosts)
            # A pod's group may read the files of its secret.
            folder = os.path.join(self.folder, secret)
            os.chmod(folder, 0o755)
            for name in os.listdir(folder):
                os.chmod(os.path.join(folder, name), 0o444)

    def start(self, name, spec, environment=None):
        """Starts the container of a pod. `environment` is added to that of the specification."""
        container = spec["containers"][0]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
        user, address = spec["securityContext"], self.addresses[name]
        options = ["--name=" + name, "--network=" + self.network, "--cap-drop=ALL",
                   "--security-opt=no-new-privileges", "--read-only", "--read-only-tmpfs=false",
                   "--user=%d:%d" % (user["runAsUser"], user["runAsGroup"]),
                   "--memory=" + container["resources"]["limits"]["memory"].rstrip("i"),
                   # With a new MAC address, the others would not reach it when it starts again.
                   "--ip=" + address, "--mac-address=02:00:00:00:00:%02x" % (
                       int(address.rpartition(".")[2]))]
        options += ["--add-host=%s:%s" % (host, self.addresses[each])
                    for each, host in self.hosts.items()]
        variables = {each["name"]: self._value(each, name) for each in container.get("env", [])}
        options += ["--env=%s=%s" % item for item in {**variables, **(environment or {})}.items()]
        self.podman.run("run", "--detach", *options, *self._mounts(spec, name),
                        container["image"], *container["args"])

    def _value(self, variable, pod):
        if "value" in variable:
            return variable["value"]
        source = variable["valueFrom"]
        if "configMapKeyRef" in source:
            return self.config[source["configMapKeyRef"]["key"]]
        assert source["fieldRef"]["fieldPath"] in INDEXES, variable
        return pod.rpartition("-")[2]

    def _mounts(self, spec, pod):
        volumes = {v["name"]: v for v in spec.get("volumes", [])}
        result = []
        for mount in spec["containers"][0].get("volumeMounts", []):
            volume = volumes.get(mount["name"], {})
            if "emptyDir" in volume:
                result.append("--tmpfs=%s:rw,size=64m,mode=1777" % mount["mountPath"])
                continue
            if "configMap" in volume:
                source = os.path.join(self.folder, "config") + ":%s:ro"
            elif "secret" in volume:
                source = os.path.join(self.folder, volume["secret"]["secretName"]) + ":%s:ro"
            elif "persistentVolumeClaim" in volume:
                source = volume["persistentVolumeClaim"]["claimName"] + ":%s"
            else:
                # Made from a template of claims, which Kubernetes names after the pod.
                source = "%s-%s:%%s" % (mount["name"], pod)
            result.append("--volume=" + source % mount["mountPath"])
        return result

    def exit_code(self, name):
        """Waits for the end of a container, and returns its exit code."""
        def ended():
            state = self.podman.inspect(name)["State"]
            return state if state["Status"] == "exited" else None
        return podman.wait_for("the end of " + name, ended)["ExitCode"]

    def logs(self):
        """Returns what the containers said, with times."""
        said = []
        for name in self.podman.run("ps", "--all", "--format={{.Names}}").split():
            done = subprocess.run(["podman", "logs", "--timestamps", name],
                                  env=self.podman.environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
            said.append("== %s: %s\n%s" % (name, self.podman.inspect(name)["State"]["Status"],
                                           done.stdout))
        return "\n".join(said)

    def remove(self, name):
        """Removes a container, if it is there. On a busy machine its end may take a second try."""
        podman.wait_for("the removal of " + name, lambda: self.podman.call(
            "rm", "--force", "--ignore", "--time=1", name).returncode == 0)

    def volume(self, name):
        """Returns the folder of a volume of podman."""
        return self.podman.run("volume", "inspect", "--format={{.Mountpoint}}", name).strip()
