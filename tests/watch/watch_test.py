"""`eps dashboard`, `eps top` and the HTTP port of servers, beside a job on the board.

Argument: the path of eps."""

import json
import os
import shutil
import signal
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import watched_job
from watched_job import processes

EPS = None
TMP = os.environ.get("TEST_TMPDIR", "/tmp")
STEPS = 100
NOT_ALLOWED, USAGE = 77, 64


class WatchTest(unittest.TestCase):
    def setUp(self):
        self.folder = os.path.join(TMP, self._testMethodName)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.job = watched_job.WatchedJob(EPS, self.folder)
        self.addCleanup(self.job.end)

    def event_of(self, text):
        return [e for e in self.job.state()["events"] if text in e["text"]]

    def lead(self):
        return self.job.state()["servers"][0]

    def run_eps(self, *arguments, code=0):
        done = subprocess.run([EPS, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=watched_job.PATIENCE, check=False)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def test_the_page_follows_a_job(self):
        self.job.wait_until(lambda: all(s["seen"] for s in self.job.state()["servers"]))
        # With exact clipping, all layers would be updated together at the end of the step.
        self.job.submit("first", STEPS, **{"training.clip": "lagged"})
        self.job.drive("10ms")
        self.job.wait_until(lambda: self.lead().get("state") == "running" and
                            self.job.state()["jobs"])
        state = self.job.state()
        self.assertEqual([s["address"] for s in state["servers"]], self.job.addresses)
        self.assertEqual([s["error"] for s in state["servers"]], ["", ""])
        self.assertEqual([j["name"] for j in state["jobs"]], ["first"])
        self.job.wait_until(lambda: self.job.state()["job_name"] == "first")
        for server in state["servers"]:
            layers = [p["name"] for p in server["stage_progress"]]
            self.assertEqual(len(layers), len(set(layers)))
            for progress in server["stage_progress"]:
                self.assertGreater(progress["chunks"], 0)
                self.assertLessEqual(progress["updated"], progress["chunks"])
        # In a step the layers are updated one after the other: some look sees that.
        self.job.wait_until(self.some_layers_are_ahead)
        self.job.wait_until(lambda: self.job.state()["jobs"][0]["phase"] == "SUCCEEDED")
        self.job.wait_until(lambda: self.event_of("first: RUNNING → SUCCEEDED"))
        self.assertTrue(self.event_of(" was created"))
        self.compare_steps()

    def some_layers_are_ahead(self):
        status = json.loads(self.run_eps("status", "--json", "--servers=" + self.job.addresses[0]))
        return len({p["updated"] == p["chunks"] for p in status["stage_progress"]}) == 2

    def curve(self):
        return json.loads(self.job.ask("/api/steps?job=0&after=0")[1])

    def compare_steps(self):
        """The curve has the figures that the driver wrote."""
        self.job.wait_until(lambda: len(self.curve()["points"]) == STEPS)
        with open(os.path.join(self.folder, "jobs", "first", "metrics.jsonl"),
                  encoding="utf-8") as f:
            log = [json.loads(line) for line in f]
        steps = self.curve()
        self.assertEqual(steps["job"], self.job.state()["jobs"][0]["job"])
        self.assertEqual([(p["step"], p["loss"], p["grad_norm"], p["lr"], p["tokens"])
                          for p in steps["points"]],
                         [(r["step"], r["loss"], r["grad_norm"], r["lr"], r["tokens"])
                          for r in log])
        middle = steps["points"][10]["serial"]
        rest = json.loads(self.job.ask("/api/steps?job=%s&after=%d" % (steps["job"], middle))[1])
        self.assertEqual(rest["points"], steps["points"][11:])

    def test_a_dead_server_is_shown(self):
        self.job.wait_until(lambda: all(s["seen"] for s in self.job.state()["servers"]))
        self.job.servers[1].kill()
        self.job.servers[1].wait()
        self.job.wait_until(lambda: self.job.state()["servers"][1]["error"])
        self.assertEqual(self.job.state()["servers"][0]["error"], "")
        self.assertTrue(self.event_of(self.job.addresses[1] + ": the server does not answer"))
        self.assertIn("the server does not answer", self.run_eps(
            "top", "--once", "--servers=" + ",".join(self.job.addresses)))
        self.job.serve(1)
        self.job.wait_until(lambda: self.event_of(self.job.addresses[1] + ": the process was"))
        self.assertEqual(self.job.state()["servers"][1]["error"], "")

    def test_top_prints_the_job(self):
        self.job.submit("first", STEPS)
        self.job.drive("0ms")
        self.job.wait_until(lambda: "SUCCEEDED" in [j["phase"] for j in self.job.state()["jobs"]])
        text = self.run_eps("top", "--servers=" + ",".join(self.job.addresses))
        self.assertRegex(text, r"^job first  done  step 100 of 100  ")
        for part in [*self.job.addresses, "jobs on the board", "layers with the least slack"]:
            self.assertIn(part, text)
        self.assertNotIn("\x1b", text)
        self.assertIn("--servers", self.run_eps("top", code=USAGE))
        self.job.wait_until(self.worker_waits_for_the_next_job)
        with urllib.request.urlopen("http://%s/metrics" % self.job.worker_http,
                                    timeout=60) as answer:
            metrics = answer.read().decode()
        self.assertIn("\neps_worker_steps_total %d\n" % STEPS, metrics)
        self.assertNotIn("\neps_worker_fetched_bytes_total 0\n", metrics)

    def worker_waits_for_the_next_job(self):
        try:
            urllib.request.urlopen("http://%s/readyz" % self.job.worker_http, timeout=60).close()
            return False
        except urllib.error.HTTPError as error:
            return error.code == 503

    def test_the_page_is_for_this_machine(self):
        headers, page = self.job.ask("/")
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertIn("<title>EPS</title>", page)
        for path, kind in (("/page.js", "text/javascript"), ("/page.css", "text/css"),
                           ("/api/state", "application/json")):
            self.assertTrue(self.job.ask(path)[0]["Content-Type"].startswith(kind), path)
        for host in ("localhost", "localhost:1", "127.0.0.1", "[::1]:80"):
            self.job.ask("/api/state", Host=host)
        for host in ("example.org", "127.0.0.1.example.org:80", "10.0.0.1", ""):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                self.job.ask("/api/state", Host=host)
            self.assertEqual(refused.exception.code, 403, host)
        with self.assertRaises(urllib.error.HTTPError) as refused:
            self.job.ask("/api/state/../../etc/passwd")
        self.assertEqual(refused.exception.code, 404)
        servers = "--servers=" + self.job.addresses[0]
        self.assertIn("forward the port", self.run_eps("dashboard", servers, "--listen=0.0.0.0:0",
                                                       code=NOT_ALLOWED))
        self.job.processes[-1].send_signal(signal.SIGTERM)
        self.assertEqual(self.job.processes[-1].wait(watched_job.PATIENCE), 0)

    def test_servers_answer_probes(self):
        http = "127.0.0.1:%d" % processes.reserve_port()
        self.job.addresses.append("127.0.0.1:%d" % processes.reserve_port())
        server = self.job.serve(2, "--servers.http=0.0.0.0:" + http.partition(":")[2])
        self.job.line_of("server-2.log", "eps serve: listening on")
        for path in ("/healthz", "/startupz", "/readyz"):
            with urllib.request.urlopen("http://" + http + path, timeout=60) as answer:
                self.assertEqual((answer.status, answer.read()), (200, b"ok\n"))
        with urllib.request.urlopen("http://" + http + "/metrics", timeout=60) as answer:
            self.assertIn(b"\neps_memory_limit_bytes ", answer.read())
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(watched_job.PATIENCE), 0)


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
