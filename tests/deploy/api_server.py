"""A Kubernetes API server with its etcd, for one test. No controller runs, so no pod is made."""

import datetime
import json
import os
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request

START_SECONDS = 120
TOKEN = "test"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class ApiServer:
    """Starts both programs. Call stop() to end them."""

    def __init__(self, tools, folder):
        self.folder = folder
        self.children = []
        self.port, etcd, peer = free_port(), free_port(), free_port()
        self._start("etcd", ["etcd", "--data-dir=" + self.path("etcd"), "--unsafe-no-fsync",
                             "--listen-client-urls=http://127.0.0.1:%d" % etcd,
                             "--advertise-client-urls=http://127.0.0.1:%d" % etcd,
                             "--listen-peer-urls=http://127.0.0.1:%d" % peer])
        self.write("tokens.csv", "%s,admin,1,system:masters\n" % TOKEN)
        subprocess.run(["openssl", "genrsa", "-out", self.path("key.pem"), "2048"], check=True,
                       stderr=subprocess.DEVNULL, timeout=60)
        self._start("kube-apiserver", [
            os.path.join(tools, "kube-apiserver"), "--etcd-servers=http://127.0.0.1:%d" % etcd,
            "--secure-port=%d" % self.port, "--bind-address=127.0.0.1",
            "--cert-dir=" + self.path("certificates"),
            "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC",
            "--token-auth-file=" + self.path("tokens.csv"),
            "--service-account-issuer=https://127.0.0.1", "--allow-privileged=true",
            "--service-account-key-file=" + self.path("key.pem"),
            "--service-account-signing-key-file=" + self.path("key.pem"),
            # Controllers that are not here make the service accounts.
            "--disable-admission-plugins=ServiceAccount"])
        self.kubeconfig = self.path("kubeconfig")
        self.write("kubeconfig", json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {
                "server": "https://127.0.0.1:%d" % self.port, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}]}))
        self._wait()

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)

    def _start(self, name, command):
        with open(self.path(name + ".log"), "wb") as log:
            self.children.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                                  stderr=subprocess.STDOUT))

    def _wait(self):
        begun = datetime.datetime.now()
        while True:
            try:
                return self.request("GET", "/readyz", text=True)
            except (AssertionError, OSError) as error:
                if (datetime.datetime.now() - begun).total_seconds() > START_SECONDS or any(
                        child.poll() is not None for child in self.children):
                    self.stop()
                    with open(self.path("kube-apiserver.log"), encoding="utf-8") as f:
                        raise AssertionError(f.read()[-3000:]) from error
                time.sleep(0.5)

    def request(self, method, path, body=None, text=False):
        """Calls the API, and returns the object of its answer."""
        request = urllib.request.Request(
            "https://127.0.0.1:%d%s" % (self.port, path), method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": "Bearer " + TOKEN, "Content-Type": "application/json"})
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        try:
            with urllib.request.urlopen(request, timeout=60, context=context) as reply:
                answer = reply.read().decode()
        except urllib.error.HTTPError as error:
            raise AssertionError("%s %s: %s" % (method, path, error.read().decode())) from error
        return answer if text else json.loads(answer)

    def stop(self):
        for child in reversed(self.children):
            child.terminate()
        for child in self.children:
            child.wait()
