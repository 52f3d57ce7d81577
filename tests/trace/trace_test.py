"""`eps trace` of a job with two servers and two workers.

Argument: the path of eps."""

import collections
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import processes
import small_job

EPS = None
TMP = os.environ.get("TEST_TMPDIR", "/tmp")
PATIENCE = 300
TRACED = 3
MOST_OFFSET_US = 50_000
USAGE, NO_INPUT, UNAVAILABLE, DOES_NOT_FIT, INTERRUPTED = 64, 66, 69, 71, 130

# A complete event of the file; times in nanoseconds.
Span = collections.namedtuple("Span", "process thread name start end step stage chunk")


def read_spans(path):
    """Returns (spans, otherData) of a file."""
    with open(path, encoding="utf-8") as f:
        file = json.load(f)
    names = {e["pid"]: e["args"]["name"] for e in file["traceEvents"]
             if e["ph"] == "M" and e["name"] == "process_name"}
    spans = []
    for e in file["traceEvents"]:
        if e["ph"] != "X":
            continue
        start = round(e["ts"] * 1000)
        args = e["args"]
        spans.append(Span(names[e["pid"]], e["tid"], e["name"], start,
                          start + round(e["dur"] * 1000), args.get("step"), args.get("stage"),
                          args.get("chunk")))
    return spans, file["otherData"]


class TraceTest(unittest.TestCase):
    def setUp(self):
        self.folder = os.path.join(TMP, self._testMethodName)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.model, self.data = small_job.write_inputs(self.folder)
        self.children = []
        self.addCleanup(self.end)
        self.addresses = ["127.0.0.1:%d" % processes.reserve_port() for _ in range(2)]
        for i, address in enumerate(self.addresses):
            self.start("server-%d.log" % i, "serve", "--listen=" + address,
                       "--servers.peers=" + ",".join(self.addresses))
        self.servers = "--servers=" + ",".join(self.addresses)

    def end(self):
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait(PATIENCE)

    def path(self, name):
        return os.path.join(self.folder, name)

    def text_of(self, log):
        with open(self.path(log), encoding="utf-8", errors="replace") as f:
            return f.read()

    def start(self, log, *arguments):
        with open(self.path(log), "ab") as f:
            self.children.append(subprocess.Popen([EPS, *arguments], stdin=subprocess.DEVNULL,
                                                  stdout=f, stderr=f))
        return self.children[-1]

    def run_eps(self, *arguments, code=0):
        done = subprocess.run([EPS, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, code, (arguments, done.stdout))
        return done.stdout

    def trace(self, *arguments, code=0, out="t.json"):
        return self.run_eps("trace", self.servers, "--out=" + self.path(out), *arguments, code=code)

    def wait_until(self, reached, what):
        deadline = time.monotonic() + PATIENCE
        while not reached():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.05)

    def train_arguments(self, out, steps, servers, **settings):
        flags = dict(small_job.SETTINGS, **settings)
        flags.update({"training.steps": steps, "training.parts": 2})
        return ["train", "--model=" + self.model, "--data=" + self.data, "--out=" + self.path(out),
                servers, *("--%s=%s" % item for item in flags.items())]

    def status(self, server):
        done = subprocess.run([EPS, "status", "--json", "--servers=" + self.addresses[server]],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              timeout=PATIENCE, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def begin(self, steps, workers=2):
        """Starts a run whose steps take some time, and waits until it trains."""
        run = self.start("train.log", *self.train_arguments(
            "run", steps, self.servers, **{"worker.pass_time": "10ms"}), "--workers=%d" % workers)
        if workers:
            self.wait_until(lambda: self.status(0).get("step", 0) > 1, "the job does not train")
        else:
            self.wait_until(lambda: all(self.status(i).get("state") == "running" for i in (0, 1)),
                            "there is no job")
        return run

    def test_a_trace_has_whole_steps(self):
        steps = 25
        run = self.begin(steps)
        stages = {}
        for server in (0, 1):
            stages.update({s["stage"]: s["name"] for s in self.status(server)["stage_progress"]})
        text = self.trace("--steps=%d" % TRACED)
        self.assertIn("step %d of %d\n" % (TRACED, TRACED), text)
        self.assertRegex(text, r"t\.json: \d+ spans of 4 processes, %d steps; open it in "
                         r"ui\.perfetto\.dev" % TRACED)
        self.assertFalse(os.path.exists(self.path("t.json.tmp")))
        self.assertEqual(run.wait(PATIENCE), 0, self.text_of("train.log"))
        spans, other = read_spans(self.path("t.json"))
        self.assertEqual(other["dropped_spans"], 0)
        self.check_workers(spans, [stages[i] for i in sorted(stages)])
        self.check_servers(spans)
        self.check_nesting(spans)
        self.check_clocks(spans, other["clocks"])
        self.run_eps(*self.train_arguments("plain", steps, "--servers=2"), "--workers=2")
        self.assertEqual(small_job.outcome(EPS, self.path("run"), steps),
                         small_job.outcome(EPS, self.path("plain"), steps))

    def steps_of(self, spans):
        """Returns the steps that the trace has whole."""
        steps = sorted(s.step for s in spans
                       if s.process.startswith("server 0 ") and s.name == "step")
        self.assertGreaterEqual(len(steps), TRACED)
        return steps[-TRACED:]

    def check_workers(self, spans, stages):
        """Each worker goes up through all stages and down again, in each step."""
        workers = {s.process for s in spans if s.process.startswith("worker ")}
        self.assertEqual(len(workers), 2)
        for worker in workers:
            for step in self.steps_of(spans):
                visits = sorted((s for s in spans if s.process == worker and s.step == step and
                                 s.name in ("forward", "backward")), key=lambda s: s.start)
                # The last stage is visited once, for both passes.
                self.assertEqual([(s.name, s.stage) for s in visits],
                                 [("forward", stage) for stage in stages[:-1]] +
                                 [("backward", stage) for stage in stages[::-1]], (worker, step))
                for name in ("wait for weights", "decode weights", "encode gradient", "flush",
                             "report", "load data"):
                    self.assertTrue([s for s in spans if s.process == worker and s.step == step and
                                     s.name == name], (worker, step, name))

    def check_servers(self, spans):
        """Each server updates and encodes its chunks."""
        owned = []
        for server in ("server 0 ", "server 1 "):
            mine = [s for s in spans if s.process.startswith(server)]
            chunks = {s.chunk for s in mine if s.name == "update"}
            self.assertTrue(chunks)
            owned.append(chunks)
            self.assertEqual({s.chunk for s in mine if s.name == "encode"}, chunks, server)
            for step in self.steps_of(spans):
                for name in ("update", "check", "send"):
                    self.assertEqual({s.chunk for s in mine if s.name == name and s.step == step},
                                     chunks, (server, step, name))
        self.assertFalse(owned[0] & owned[1])

    def check_nesting(self, spans):
        """Spans of one thread nest or are disjoint."""
        threads = collections.defaultdict(list)
        for span in spans:
            threads[span.process, span.thread].append(span)
        for thread in threads.values():
            open_spans = []
            for span in sorted(thread, key=lambda s: (s.start, -s.end)):
                while open_spans and open_spans[-1].end <= span.start:
                    open_spans.pop()
                if open_spans:
                    self.assertLessEqual(span.end, open_spans[-1].end, (span, open_spans[-1]))
                open_spans.append(span)

    def check_clocks(self, spans, clocks):
        """The clocks of one machine agree, and no step begins before the last one is updated."""
        self.assertEqual(sorted(clocks), sorted(self.addresses))
        for clock in clocks.values():
            self.assertLess(abs(clock["ahead_us"]), MOST_OFFSET_US)
        compared = 0
        for step in self.steps_of(spans)[:-1]:
            updated = max(s.end for s in spans if s.name == "update" and s.step == step)
            for begun in (s.end for s in spans if s.name == "begin step" and s.step == step + 1):
                self.assertGreater(begun, updated - 1000 * MOST_OFFSET_US, step)
                compared += 1
        self.assertEqual(compared, 2 * (TRACED - 1))

    def test_interrupted_traces_leave_nothing(self):
        run = self.begin(100_000)
        traces = [self.start("trace-%d.log" % i, "trace", self.servers, "--steps=1000",
                             "--out=" + self.path("t-%d.json" % i)) for i in range(4)]
        self.wait_until(lambda: all("step 1 of 1000\n" in self.text_of("trace-%d.log" % i)
                                    for i in range(4)), "no step of a trace ends")
        self.assertIn("4 of these calls are open", self.trace(code=DOES_NOT_FIT))
        for trace in traces:
            trace.send_signal(signal.SIGINT)
        for i, trace in enumerate(traces):
            self.assertEqual(trace.wait(PATIENCE), INTERRUPTED)
            self.assertIn("interrupted", self.text_of("trace-%d.log" % i))
            self.assertFalse(os.path.exists(self.path("t-%d.json" % i)))
        self.trace("--steps=1")
        self.assertEqual(run.poll(), None)

    def test_errors_say_what_to_change(self):
        self.assertIn("--out", self.run_eps("trace", self.servers, code=USAGE))
        self.assertIn("--steps", self.trace("--steps=0", code=USAGE))
        self.assertIn("--servers", self.run_eps("trace", "--out=" + self.path("t"), code=USAGE))
        nobody = "127.0.0.1:%d" % processes.reserve_port()
        self.assertIn(nobody, self.run_eps("trace", "--servers=" + nobody,
                                           "--out=" + self.path("t"), code=UNAVAILABLE))
        self.wait_until(lambda: self.status(0) and self.status(1), "the servers do not answer")
        self.assertIn("runs no job", self.trace(code=NO_INPUT))
        self.begin(10, workers=0)
        for servers in (self.addresses[::-1], self.addresses[:1]):
            self.assertIn("name all servers of the job, the lead first", self.run_eps(
                "trace", "--servers=" + ",".join(servers), "--out=" + self.path("t"), code=USAGE))
        self.assertIn("0 of 3 steps have ended within 1 s (--timeout)",
                      self.trace("--timeout=1", code=UNAVAILABLE))
        self.assertFalse(os.path.exists(self.path("t.json")))


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
