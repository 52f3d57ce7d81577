"""Runs the containers of Kubernetes' pods with podman, with the options that their specifications
stand for: user, read-only root, capabilities, memory, environment, arguments and volumes."""

import ipaddress
import json
import os
import subprocess

import podman

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


class Pods:
    """Pods in a network of their own, in which the servers have names. `hosts` has their addresses.

    Call build() first, and stop() last."""

    def __init__(self, binaries, folder, servers):
        self.binaries, self.folder = binaries, folder
        self.hosts = dict.fromkeys(servers)
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
        for i, name in enumerate(self.hosts):
            self.hosts[name] = str(subnet[10 + i])

    def stop(self):
        self.podman.stop()

    def write_config(self, files):
        """Sets the data of the ConfigMap, and writes them as files. Returns their folder."""
        self.config = files
        folder = os.path.join(self.folder, "job")
        os.mkdir(folder, 0o755)
        for name, text in files.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                f.write(text)
        return folder

    def make_secrets(self, secrets):
        """Makes the folders that stand for secrets. `secrets`: {role: name of its secret}."""
        def certs(*arguments):
            subprocess.run([os.path.join(self.binaries, "eps"), "certs", *arguments], check=True,
                           stdout=subprocess.DEVNULL, cwd=self.folder, timeout=60)

        certs("init", "ca")
        for role, secret in secrets.items():
            hosts = ["--hosts=" + ",".join(self.hosts)] if role == "server" else []
            certs("issue", "ca", "--role=" + role, "--out=" + secret, *hosts)
            # A pod's group may read the files of its secret.
            folder = os.path.join(self.folder, secret)
            os.chmod(folder, 0o755)
            for name in os.listdir(folder):
                os.chmod(os.path.join(folder, name), 0o444)

    def start(self, name, spec, index=0, address=None, claims=None):
        """Starts the container of a pod. `claims`: {volume or claim: volume of podman}."""
        container = spec["containers"][0]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
        user = spec["securityContext"]
        options = ["--name=" + name, "--network=" + self.network, "--cap-drop=ALL",
                   "--security-opt=no-new-privileges", "--read-only", "--read-only-tmpfs=false",
                   "--user=%d:%d" % (user["runAsUser"], user["runAsGroup"]),
                   "--memory=" + container["resources"]["limits"]["memory"].rstrip("i")]
        options += ["--ip=" + address] if address else []
        options += ["--add-host=%s:%s" % item for item in self.hosts.items()]
        for variable in container.get("env", []):
            options.append("--env=%s=%s" % (variable["name"], self._value(variable, index)))
        self.podman.run("run", "--detach", *options, *self._mounts(spec, claims or {}),
                        container["image"], *container["args"])

    def _value(self, variable, index):
        if "value" in variable:
            return variable["value"]
        source = variable["valueFrom"]
        if "configMapKeyRef" in source:
            return self.config[source["configMapKeyRef"]["key"]]
        assert source["fieldRef"]["fieldPath"] == INDEX, variable
        return str(index)

    def _mounts(self, spec, claims):
        volumes = {v["name"]: v for v in spec.get("volumes", [])}
        result = []
        for mount in spec["containers"][0].get("volumeMounts", []):
            volume = volumes.get(mount["name"], {})
            if "emptyDir" in volume:
                result.append("--tmpfs=%s:rw,size=64m,mode=1777" % mount["mountPath"])
                continue
            if "configMap" in volume:
                source = os.path.join(self.folder, "job") + ":%s:ro"
            elif "secret" in volume:
                source = os.path.join(self.folder, volume["secret"]["secretName"]) + ":%s:ro"
            else:
                source = claims[mount["name"]] + ":%s"
            result.append("--volume=" + source % mount["mountPath"])
        return result

    def exit_code(self, name):
        """Waits for the end of a container, and returns its exit code."""
        def ended():
            state = self.podman.inspect(name)["State"]
            return state if state["Status"] == "exited" else None
        return podman.wait_for("the end of " + name, ended)["ExitCode"]

    def logs(self, name):
        return self.podman.run("logs", name, check=False)

    def remove(self, name):
        self.podman.run("rm", "--force", "--time=1", name, check=False)

    def volume(self, name):
        """Returns the folder of a volume of podman."""
        return self.podman.run("volume", "inspect", "--format={{.Mountpoint}}", name).strip()
