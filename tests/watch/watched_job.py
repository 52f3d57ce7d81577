"""Servers, a worker, a driver and `eps dashboard`, for tests that look at them."""

import json
import os
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import processes  # noqa: E402 # pylint: disable=wrong-import-position
import small_job  # noqa: E402 # pylint: disable=wrong-import-position

PATIENCE = 300


class WatchedJob:
    """Starts two servers and `eps dashboard`. Call end() at last."""

    def __init__(self, eps, folder):
        self.eps, self.folder = eps, folder
        self.model, self.data = small_job.write_inputs(folder)
        self.processes = []
        self.addresses = ["127.0.0.1:%d" % processes.reserve_port() for _ in range(2)]
        self.servers = [self.serve(i) for i in range(2)]
        self.worker_http = ""
        self.url = self.dashboard()

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def start(self, log, *arguments):
        with open(os.path.join(self.folder, log), "ab") as f:
            process = subprocess.Popen([self.eps, *arguments], stdin=subprocess.DEVNULL, stdout=f,
                                       stderr=f)
        self.processes.append(process)
        return process

    def text_of(self, log):
        with open(os.path.join(self.folder, log), encoding="utf-8", errors="replace") as f:
            return f.read()

    def line_of(self, log, prefix):
        """Waits for a line of a log and returns it without its prefix."""
        def found():
            return [line[len(prefix):] for line in self.text_of(log).splitlines()
                    if line.startswith(prefix)]
        self.wait_until(found)
        return found()[0]

    def serve(self, index, *flags):
        return self.start("server-%d.log" % index, "serve", "--listen=" + self.addresses[index],
                          "--servers.peers=" + ",".join(self.addresses),
                          "--storage.path=%s/state-%d" % (self.folder, index),
                          "--storage.staging=8MiB", "--storage.cut_steps=2", *flags)

    def dashboard(self):
        self.start("dashboard.log", "dashboard", "--listen=127.0.0.1:0",
                   "--servers=" + ",".join(self.addresses))
        return self.line_of("dashboard.log", "eps dashboard: ").split()[0]

    def submit(self, name, steps, **settings):
        sections = {"model": {"path": self.model}, "data": {"path": self.data}}
        for key, value in dict(small_job.SETTINGS, **settings).items():
            section, key = key.split(".")
            if section not in ("worker", "storage"):
                sections.setdefault(section, {})[key] = value
        sections["training"]["steps"] = steps
        path = os.path.join(self.folder, name + ".yaml")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(sections, f)
        subprocess.run([self.eps, "submit", "-f", path, "--name=" + name,
                        "--servers=" + ",".join(self.addresses)], check=True, timeout=PATIENCE,
                       stdout=subprocess.DEVNULL)

    def drive(self, pass_time):
        """Starts a driver and a worker; a step takes about eight times `pass_time`."""
        servers = "--servers=" + ",".join(self.addresses)
        self.start("driver.log", "driver", servers, "--out=" + self.folder + "/jobs",
                   "--data-root=" + self.folder)
        self.worker_http = "127.0.0.1:%d" % processes.reserve_port()
        return self.start("worker.log", "worker", servers, "--data=" + self.data,
                          "--worker.threads=1", "--worker.stay=true",
                          "--worker.http=" + self.worker_http, "--worker.pass_time=" + pass_time)

    def ask(self, path, **headers):
        request = urllib.request.Request(self.url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.headers, answer.read().decode()

    def state(self):
        return json.loads(self.ask("/api/state")[1])

    def wait_until(self, reached):
        deadline = time.monotonic() + PATIENCE
        while not reached():
            if time.monotonic() > deadline:
                raise AssertionError("not reached in time")
            time.sleep(0.05)
