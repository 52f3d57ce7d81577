"""An API server of Kubernetes with its etcd, for tests: real validation and storage, and no
controllers, so no pods are made. The programs are those of install_tools.sh."""

import json
import os
import subprocess
import sys

import yaml

import podman

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import processes  # noqa: E402 # pylint: disable=wrong-import-position

TIMEOUT_SECONDS = 600
TOKEN = "test"


class ApiServer:
    """Starts both programs and waits until they answer. Call stop() at the end."""

    def __init__(self, folder, tools):
        self.folder, self.tools, self.processes, self.port = folder, tools, [], None
        os.makedirs(folder)
        self.environment = {
            **os.environ, "KUBECONFIG": self.path("kubeconfig"), "HELM_CACHE_HOME": folder,
            "HELM_CONFIG_HOME": folder, "HELM_DATA_HOME": folder}
        try:
            self._start_all()
            podman.wait_for("the API server", self._is_ready, seconds=TIMEOUT_SECONDS)
        except BaseException:
            self.stop()
            raise

    def _start_all(self):
        store = self._start_etcd()
        self.port = processes.reserve_port()
        self._write_identities()
        self._start(
            "kube-apiserver", os.path.join(self.tools, "kube-apiserver"), "--etcd-servers=" + store,
            "--secure-port=%d" % self.port, "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
            "--cert-dir=" + self.path("certificates"), "--service-cluster-ip-range=10.0.0.0/24",
            "--token-auth-file=" + self.path("tokens"), "--authorization-mode=RBAC",
            "--watch-cache=false", "--service-account-issuer=https://127.0.0.1",
            "--service-account-key-file=" + self.path("accounts.key"),
            "--service-account-signing-key-file=" + self.path("accounts.key"),
            # Else another refusal of privileged pods hides that of Pod Security.
            "--allow-privileged=true",
            # No controller makes the account that it demands of each pod.
            "--disable-admission-plugins=ServiceAccount")

    def path(self, name):
        return os.path.join(self.folder, name)

    def _start(self, name, *command):
        with open(self.path(name + ".log"), "wb") as log:
            self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                                   stderr=subprocess.STDOUT))

    def _start_etcd(self):
        """Returns its address."""
        clients, peers = ("http://127.0.0.1:%d" % processes.reserve_port() for _ in range(2))
        self._start("etcd", "etcd", "--data-dir=" + self.path("etcd"), "--unsafe-no-fsync",
                    "--listen-client-urls=" + clients, "--advertise-client-urls=" + clients,
                    "--listen-peer-urls=" + peers, "--initial-advertise-peer-urls=" + peers,
                    "--initial-cluster=default=" + peers)
        return clients

    def _write_identities(self):
        subprocess.run(["openssl", "genrsa", "-out", self.path("accounts.key"), "2048"], check=True,
                       stderr=subprocess.DEVNULL, timeout=60)
        with open(self.path("tokens"), "w", encoding="utf-8") as f:
            f.write('%s,admin,admin,"system:masters"\n' % TOKEN)
        with open(self.path("kubeconfig"), "w", encoding="utf-8") as f:
            yaml.safe_dump({
                "apiVersion": "v1", "kind": "Config", "current-context": "test",
                "clusters": [{"name": "test", "cluster": {
                    "server": "https://127.0.0.1:%d" % self.port,
                    "insecure-skip-tls-verify": True}}],
                "users": [{"name": "test", "user": {"token": TOKEN}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            }, f)

    def _is_ready(self):
        for process in self.processes:
            if process.poll() is not None:
                raise AssertionError("%s ended with %d:\n%s" % (
                    process.args[0], process.returncode, self.log(process)))
        return self._run("kubectl", ["get", "--raw=/readyz"]).returncode == 0

    def log(self, process):
        with open(self.path(os.path.basename(process.args[0]) + ".log"), encoding="utf-8",
                  errors="replace") as f:
            return f.read()[-3000:]

    def _run(self, name, arguments, given=""):
        return subprocess.run([os.path.join(self.tools, name), *arguments], input=given, text=True,
                              env=self.environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False, timeout=TIMEOUT_SECONDS)

    def run(self, name, *arguments, given="", refused=False):
        """Runs kubectl or helm, and returns what it says."""
        done = self._run(name, arguments, given)
        if (done.returncode != 0) != refused:
            raise AssertionError("%s %s ended with %d:\n%s" % (
                name, " ".join(arguments), done.returncode, done.stdout[-4000:]))
        return done.stdout

    def create(self, given, namespace, refused=False):
        """Has the API check objects strictly, and stores nothing."""
        return self.run("kubectl", "create", "--dry-run=server", "--validate=strict",
                        "--namespace=" + namespace, "--filename=-", given=given, refused=refused)

    def get(self, kind, name, namespace):
        return json.loads(self.run("kubectl", "get", kind, name, "--namespace=" + namespace,
                                   "--output=json"))

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
