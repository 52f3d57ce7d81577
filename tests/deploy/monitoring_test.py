"""Scrapes real servers with Prometheus and makes each alert of deploy/monitoring/rules.yaml fire
once. The times of the rules are shortened, their conditions are not changed.

Arguments: the folder of the programs, and the folder of the tools (install_tools.sh)."""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import processes  # noqa: E402 # pylint: disable=wrong-import-position
import small_job  # noqa: E402 # pylint: disable=wrong-import-position

EPS = TOOLS = None
MONITORING = os.path.join(ROOT, "deploy", "monitoring")
PATIENCE = 180
# The machine decides about these, not the test.
OF_THE_MACHINE = {"EpsDiskFull", "EpsQuantizingIsLate"}


def shortened(text):
    """Returns the rules with times of seconds."""
    text = re.sub(r"\[15m\]", "[8s]", text)
    text = re.sub(r"\[(1h|10m)\]", "[180s]", text)
    return re.sub(r"for: \d+m", "for: 1s", text)


class MonitoringTest(unittest.TestCase):
    fired = set()

    @classmethod
    def setUpClass(cls):
        with open(os.path.join(MONITORING, "rules.yaml"), encoding="utf-8") as f:
            cls.rules = f.read()
        cls.names = re.findall(r"alert: (\w+)", cls.rules)

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="eps-monitoring-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.model, self.data = small_job.write_inputs(self.folder)
        self.processes = []
        self.addCleanup(self.end)
        self.targets = []
        self.start_prometheus()

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def start(self, *command):
        with open(os.path.join(self.folder, "log"), "ab") as f:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=f, stderr=f)
        self.processes.append(process)
        return process

    def start_prometheus(self):
        self.port = processes.reserve_port()
        with open(os.path.join(MONITORING, "prometheus.yaml"), encoding="utf-8") as f:
            config = yaml.safe_load(f)
        config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
        scrape = config["scrape_configs"][0]
        scrape["scrape_timeout"] = "500ms"
        del scrape["static_configs"]
        scrape["file_sd_configs"] = [{"files": [self.folder + "/targets.json"],
                                      "refresh_interval": "1s"}]
        for name, text in (("prometheus.yaml", yaml.safe_dump(config)),
                           ("rules.yaml", shortened(self.rules)), ("targets.json", "[]")):
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as f:
                f.write(text)
        self.start("prometheus", "--config.file=%s/prometheus.yaml" % self.folder,
                   "--storage.tsdb.path=%s/tsdb" % self.folder,
                   "--web.listen-address=127.0.0.1:%d" % self.port)
        self.wait_until("Prometheus answers", self.is_up)

    def is_up(self):
        try:
            return self.ask("/-/ready") is not None
        except OSError:
            return False

    def ask(self, path):
        with urllib.request.urlopen("http://127.0.0.1:%d%s" % (self.port, path),
                                    timeout=30) as answer:
            return answer.read()

    def wait_until(self, what, reached):
        deadline = time.monotonic() + PATIENCE
        while not reached():
            if time.monotonic() > deadline:
                with open(os.path.join(self.folder, "log"), encoding="utf-8",
                          errors="replace") as f:
                    raise AssertionError("%s: not reached in time; firing: %s\n%s" % (
                        what, self.firing(), f.read()[-1500:]))
            time.sleep(0.2)

    def firing(self):
        alerts = json.loads(self.ask("/api/v1/alerts"))["data"]["alerts"]
        return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}

    def value(self, expression):
        query = urllib.parse.urlencode({"query": expression})
        found = json.loads(self.ask("/api/v1/query?" + query))["data"]["result"]
        return float(found[0]["value"][1]) if found else None

    def expect(self, *names):
        for name in names:
            self.wait_until(name, lambda: name in self.firing())
        MonitoringTest.fired.update(names)

    def serve(self, *flags, address=None, scraped=None):
        """Starts a server that Prometheus scrapes. Returns its process, address and HTTP port."""
        address = address or "127.0.0.1:%d" % processes.reserve_port()
        http = scraped or "127.0.0.1:%d" % processes.reserve_port()
        process = self.start(EPS, "serve", "--listen=" + address, "--servers.http=" + http, *flags)
        if http not in self.targets:
            self.targets.append(http)
        path = os.path.join(self.folder, "targets.json")
        with open(path + ".new", "w", encoding="utf-8") as f:
            json.dump([{"targets": self.targets}], f)
        os.rename(path + ".new", path)
        return process, address, http

    def train(self, servers, steps, *flags):
        settings = ["--%s=%s" % item for item in small_job.SETTINGS.items()
                    if not item[0].startswith("storage.")]
        return self.start(EPS, "train", "--servers=" + servers, "--model=" + self.model,
                          "--data=" + self.data, "--out=%s/out" % self.folder, *settings,
                          "--training.steps=%d" % steps, "--worker.count=0", *flags)

    def work(self, servers, *flags):
        return self.start(EPS, "worker", "--servers=" + servers, "--data=" + self.data,
                          "--worker.threads=1", *flags)

    def test_1_a_healthy_job_and_its_accidents(self):
        addresses = ["127.0.0.1:%d" % processes.reserve_port() for _ in range(2)]
        servers = ",".join(addresses)

        def serve(i, http=None):
            return self.serve("--storage.path=%s/state-%d" % (self.folder, i),
                              "--storage.staging=8MiB", "--storage.cut_steps=2",
                              "--servers.peers=" + servers, address=addresses[i], scraped=http)

        serve(0)
        second, _, http = serve(1)
        self.train(servers, 1_000_000, "--storage.kind=dram",
                   "--storage.path=%s/state-0" % self.folder)
        worker = self.work(servers, "--worker.pass_time=5ms")
        self.wait_until("steps", lambda: (self.value("eps_step_current") or 0) > 20)
        deadline = time.monotonic() + 12
        while time.monotonic() < deadline:
            self.assertEqual(self.firing() - OF_THE_MACHINE, set())
            time.sleep(0.5)
        self.assertGreater(self.value("eps_loss"), 0)
        worker.kill()
        self.expect("EpsNoProgress", "EpsNoWorker")
        self.work(servers, "--worker.pass_time=5ms")
        self.wait_until("steps again", lambda: "EpsNoProgress" not in self.firing())
        for _ in range(5):
            terms = self.value("max(changes(eps_term[180s]))")
            second.kill()
            second.wait()
            second = serve(1, http)[0]
            self.wait_until("another term", lambda: self.value(
                "max(changes(eps_term[180s]))") > terms)
        self.expect("EpsRecoversOften")
        second.kill()
        self.expect("EpsServerDown")

    def test_2_a_job_fails(self):
        _, address, _ = self.serve("--servers.worker_timeout=2s")
        self.train(address, 1_000_000, "--training.mode=eager", "--training.clip=none")
        worker = self.work(address)
        self.wait_until("steps", lambda: (self.value("eps_step_current") or 0) > 5)
        worker.kill()
        self.expect("EpsJobFailed")

    def test_3_steps_are_skipped(self):
        _, address, _ = self.serve()
        self.train(address, 40, "--training.nonfinite=skip", "--optimizer.lr=1e6",
                   "--lr_scheduler.name=constant_with_warmup")
        self.work(address, "--worker.pass_time=5ms")
        self.expect("EpsStepsSkipped")

    def test_4_nobody_drives(self):
        _, address, _ = self.serve()
        job = os.path.join(self.folder, "waits.yaml")
        with open(job, "w", encoding="utf-8") as f:
            json.dump({"model": {"path": self.model}, "training": {"steps": 3}}, f)
        subprocess.run([EPS, "submit", "-f", job, "--servers=" + address], check=True,
                       stdout=subprocess.DEVNULL, timeout=60)
        self.expect("EpsNoDriver")

    def test_5_strangers_and_certificates(self):
        def certs(*arguments):
            subprocess.run([EPS, "certs", *arguments], check=True, cwd=self.folder,
                           stdout=subprocess.DEVNULL, timeout=60)

        certs("init", "ca")
        certs("issue", "ca", "--role=server", "--hosts=127.0.0.1", "--days=2", "--out=server")
        certs("issue", "ca", "--role=viewer", "--out=viewer")
        _, address, _ = self.serve("--security.tls=always",
                                   "--security.dir=%s/server" % self.folder)
        self.expect("EpsCertificateEnds")
        self.wait_until("a scrape", lambda: self.value("eps_calls_denied_total") == 0)
        job = os.path.join(self.folder, "denied.yaml")
        with open(job, "w", encoding="utf-8") as f:
            f.write("training: {steps: 3}\n")
        denied = subprocess.run([EPS, "submit", "-f", job, "--servers=" + address,
                                 "--security.tls=always",
                                 "--security.dir=%s/viewer" % self.folder], check=False,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        self.assertEqual(denied.returncode, 77, denied.stdout)
        self.expect("EpsCallsDenied")
        self.serve("--insecure", address="0.0.0.0:%d" % processes.reserve_port())
        self.expect("EpsInsecure")

    def test_6_disks(self):
        small = os.path.join(self.folder, "small")
        os.mkdir(small)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", small], check=True)
        self.addCleanup(subprocess.run, ["umount", "--lazy", small], check=True)
        self.serve("--storage.path=%s/state" % small, "--storage.staging=8MiB")
        self.expect("EpsDiskFull")
        state = os.path.join(self.folder, "state")
        _, address, _ = self.serve("--storage.path=" + state, "--storage.staging=8MiB",
                                   "--storage.cut_steps=2", "--storage.scrub=64MiB")
        self.train(address, 1_000_000, "--storage.kind=dram", "--storage.path=" + state)
        worker = self.work(address, "--worker.pass_time=50ms")
        self.wait_until("cuts", lambda: (self.value("eps_cuts_total") or 0) > 2)
        worker.kill()  # so that no cut replaces the damaged one
        time.sleep(2)
        slots = [path for path in glob.glob(state + "/**/*", recursive=True)
                 if os.path.isfile(path) and "slot" in os.path.basename(path)]
        self.assertTrue(slots, glob.glob(state + "/**/*", recursive=True))
        for path in slots:
            with open(path, "r+b") as f:
                size = os.path.getsize(path)
                for offset in range(0, size, 4096):
                    f.seek(offset)
                    byte = f.read(1)
                    f.seek(offset)
                    f.write(bytes([byte[0] ^ 1]))
                f.flush()
                os.fsync(f.fileno())
        self.expect("EpsDiskDamage")

    def test_7_quantization_is_late(self):
        with open(self.model, "w", encoding="utf-8") as f:
            json.dump({"model_type": "eps-synthetic", "n_layer": 4, "n_embd": 1024, "tied": False},
                      f)
        _, address, _ = self.serve("--servers.threads=1")
        self.train(address, 1_000_000, "--training.chunk_elements=1048576",
                   "--quantization.head_weights=mx9", "--quantization.weights=mx9")
        self.work(address)
        self.expect("EpsQuantizingIsLate")

    def test_8_every_alert_has_fired(self):
        self.assertEqual(sorted(MonitoringTest.fired), sorted(self.names))


class FilesTest(unittest.TestCase):
    def test_promtool_accepts_the_files(self):
        for kind, name in (("rules", "rules.yaml"), ("config", "prometheus.yaml")):
            subprocess.run(["promtool", "check", kind, os.path.join(MONITORING, name)], check=True,
                           stdout=subprocess.DEVNULL, timeout=60)

    def test_expressions_name_metrics_that_exist(self):
        with open(os.path.join(ROOT, "docs", "reference", "metrics.md"), encoding="utf-8") as f:
            known = set(re.findall(r"^\| `(eps_\w+)` \|", f.read(), re.MULTILINE))
        for name in ("rules.yaml", "grafana.json"):
            with open(os.path.join(MONITORING, name), encoding="utf-8") as f:
                named = set(re.findall(r"\beps_\w+", f.read()))
            self.assertGreater(len(named), 5)
            self.assertEqual(named - known, set(), name)

    def test_the_dashboard_is_generated(self):
        made = subprocess.run([sys.executable, os.path.join(MONITORING, "dashboard.py")],
                              stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
        with open(os.path.join(MONITORING, "grafana.json"), encoding="utf-8") as f:
            self.assertEqual(f.read(), made)

    def test_the_dashboard_has_the_types_of_grafana(self):
        with open(os.path.join(MONITORING, "grafana.json"), encoding="utf-8") as f:
            text = f.read()

        def check(given):
            return subprocess.run([os.path.join(TOOLS, "check-dashboard")], input=given, text=True,
                                  stderr=subprocess.PIPE, timeout=60, check=False).stderr

        self.assertEqual(check(text), "")
        self.assertIn("unexpected field 'gridpos'", check(text.replace("gridPos", "gridpos")))
        self.assertIn("legendFormat", check(text.replace('"{{instance}}"', "1")))

    def test_each_alert_has_a_paragraph(self):
        with open(os.path.join(MONITORING, "rules.yaml"), encoding="utf-8") as f:
            names = re.findall(r"alert: (\w+)", f.read())
        with open(os.path.join(ROOT, "docs", "guides", "monitoring.md"), encoding="utf-8") as f:
            page = f.read()
        self.assertEqual([n for n in names if "| `%s` |" % n not in page], [])


if __name__ == "__main__":
    TOOLS, BINARIES = (os.path.abspath(sys.argv.pop(i)) for i in (2, 1))
    EPS = os.path.join(BINARIES, "eps")
    unittest.main(verbosity=2)
