"""The Python client (python/eps) with real servers, a driver and a worker.

Argument: the path of eps."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import processes  # noqa: E402 # pylint: disable=wrong-import-position
import small_job  # noqa: E402 # pylint: disable=wrong-import-position
import eps  # noqa: E402 # pylint: disable=wrong-import-position
from eps import Desired, EventKind, Phase  # noqa: E402 # pylint: disable=wrong-import-position

EPS = None
TMP = os.environ.get("TEST_TMPDIR", "/tmp")
PATIENCE = 300
CONFIG = {"training": {"steps": 5}}


class ClientTest(unittest.TestCase):
    def setUp(self):
        self.folder = os.path.join(TMP, self._testMethodName)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.processes = []
        self.addCleanup(self.end)
        self.address = "127.0.0.1:%d" % processes.reserve_port()
        self.server = self.serve()
        self.board = eps.Client(self.address, patience=PATIENCE)
        self.addCleanup(self.board.close)

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()

    def start(self, *arguments):
        with open(os.path.join(self.folder, "log"), "ab") as log:
            process = subprocess.Popen([EPS, *arguments], stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=log, cwd=TMP)
        self.processes.append(process)
        return process

    def serve(self, durable=True):
        state = ["--storage.path=%s/state" % self.folder] if durable else []
        return self.start("serve", "--listen=" + self.address, "--storage.staging=8MiB", *state)

    def restart(self, durable=True):
        self.server.kill()
        self.server.wait()
        self.server = self.serve(durable)

    def watch(self, name=""):
        """Returns a list to which a thread adds the events of a watch, and the thread."""
        events = []
        board = eps.Client([self.address], patience=PATIENCE)
        self.addCleanup(board.close)

        def follow():
            try:
                for event in board.watch(name):
                    events.append(event)
            except (eps.EpsError, ValueError):
                pass  # the client was closed
        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        return events, thread

    def wait_until(self, reached):
        deadline = time.monotonic() + PATIENCE
        while not reached():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def test_a_job_from_submission_to_removal(self):
        job = self.board.submit("a", CONFIG, labels={"team": "nlp"})
        self.assertEqual((job.name, job.phase, job.desired, job.labels, job.exit_code),
                         ("a", Phase.QUEUED, Desired.RUN, {"team": "nlp"}, None))
        self.assertEqual(json.loads(job.config), CONFIG)
        self.assertLess(abs(job.created.timestamp() - time.time()), 60)
        self.assertEqual(self.board.submit("a", CONFIG, labels={"team": "nlp"}), job)
        self.assertEqual(self.board.pause("a").phase, Phase.PAUSED)
        self.assertEqual(self.board.resume("a").phase, Phase.QUEUED)
        for call in (self.board.remove, self.board.checkpoint):
            with self.assertRaises(eps.StateError):
                call("a")
        cancelled = self.board.cancel("a")
        self.assertEqual((cancelled.phase, cancelled.exit_code), (Phase.CANCELLED, 76))
        self.assertTrue(cancelled.ended)
        self.assertEqual(self.board.wait("a"), cancelled)
        self.assertEqual(self.board.jobs(), [cancelled])
        self.board.remove("a")
        self.board.remove("a")
        self.assertEqual(self.board.jobs(), [])

    def test_errors_say_what_is_wrong(self):
        self.assertEqual(self.board.submit("a", "one\ntwo\n", paused=True).phase, Phase.PAUSED)
        with self.assertRaisesRegex(eps.ConflictError, self.address + ".*line 2"):
            self.board.submit("a", "one\n2\n", paused=True)
        with self.assertRaisesRegex(eps.InvalidError, "name"):
            self.board.submit("Not A Name", CONFIG)
        with self.assertRaises(ValueError):
            self.board.submit("empty", "")
        for call in (self.board.get, self.board.pause, self.board.wait, self.board.watch):
            with self.assertRaisesRegex(eps.NotFoundError, '"b"'):
                call("b")
        with self.assertRaisesRegex(TimeoutError, '"a"'):
            self.board.wait("a", timeout=0.3)
        with self.assertRaisesRegex(ValueError, "EPS_SERVERS"):
            eps.Client("")
        self.server.kill()
        with eps.Client(self.address, patience=1) as board:
            with self.assertRaises(ConnectionError):
                board.jobs()

    def test_certificates_open_servers_with_tls(self):
        def certs(*arguments):
            subprocess.run([EPS, "certs", *arguments], check=True, stdout=subprocess.DEVNULL)

        authority = os.path.join(self.folder, "ca")
        certs("init", authority)
        for role in ("server", "scheduler", "worker"):
            certs("issue", authority, "--role=" + role, "--hosts=127.0.0.1",
                  "--out=" + os.path.join(self.folder, role))
        address = "127.0.0.1:%d" % processes.reserve_port()
        self.start("serve", "--listen=" + address, "--security.tls=always",
                   "--security.dir=%s/server" % self.folder)
        with eps.Client(address, PATIENCE, os.path.join(self.folder, "scheduler")) as board:
            self.assertEqual(board.submit("secret", CONFIG).name, "secret")
        variables = {"EPS_SECURITY__DIR": os.path.join(self.folder, "scheduler")}
        with unittest.mock.patch.dict(os.environ, variables), eps.Client(address) as board:
            self.assertEqual([job.name for job in board.jobs()], ["secret"])
        with eps.Client(address, PATIENCE, os.path.join(self.folder, "worker")) as board:
            with self.assertRaisesRegex(eps.EpsError, "role worker may not call"):
                board.jobs()
        with eps.Client(address, patience=1) as board:
            with self.assertRaises(ConnectionError):
                board.jobs()
        with self.assertRaises(OSError):
            eps.Client(address, security_dir=self.folder)

    def test_calls_outlast_a_restart(self):
        self.board.submit("a", CONFIG)
        self.server.kill()
        self.server.wait()
        late = threading.Timer(1, self.restart)
        late.start()
        self.assertEqual(self.board.submit("b", CONFIG).name, "b")
        self.assertEqual([job.name for job in self.board.jobs()], ["a", "b"])
        late.join()

    @unittest.mock.patch.object(eps.client, "_WATCH_SECONDS", 0.1)  # opens it again and again
    def test_a_watch_misses_nothing(self):
        self.board.submit("before", CONFIG)
        events, _ = self.watch()
        self.wait_until(lambda: events)
        for i in range(20):
            self.board.submit("job-%d" % i, CONFIG)
            if i % 2:
                self.board.pause("job-%d" % i)
        self.wait_until(lambda: len(events) >= 31)
        self.assertEqual([event.job.revision for event in events], list(range(1, 32)))
        self.restart()
        self.board.cancel("before")
        self.wait_until(lambda: events[-1].job.ended)
        time.sleep(0.5)
        self.board.remove("before")
        self.wait_until(lambda: events[-1].kind is EventKind.REMOVED)
        self.assertEqual([(event.kind, event.job.name) for event in events[31:]],
                         [(EventKind.PUT, "before"), (EventKind.REMOVED, "before")])

    def test_a_watch_notices_another_board(self):
        self.restart(durable=False)
        self.board.submit("gone", CONFIG)
        self.board.submit("again", CONFIG)
        events, _ = self.watch()
        self.wait_until(lambda: len(events) == 2)
        self.restart(durable=False)
        self.board.submit("again", CONFIG)
        self.wait_until(lambda: len(events) >= 5)
        told = [(event.kind, event.job.name) for event in events[2:]]
        self.assertEqual(sorted(told[:2], key=lambda e: e[1]),
                         [(EventKind.REMOVED, "again"), (EventKind.REMOVED, "gone")])
        self.assertEqual(told[-1], (EventKind.PUT, "again"))
        uids = {event.job.uid for event in events if event.job.name == "again"}
        self.assertEqual(len(uids), 2, "another job of that name")

    def test_a_job_trains_and_is_followed(self):
        model, data = small_job.write_inputs(self.folder)
        self.start("driver", "--servers=" + self.address, "--out=" + self.folder + "/jobs",
                   "--once")
        self.start("worker", "--servers=" + self.address, "--data=" + data, "--worker.threads=1",
                   "--worker.pass_time=10ms")
        self.board.submit("first", {"model": {"path": model}, "data": {"path": data},
                                    "training": {"steps": 60, "seq_len": 16}})
        events, follower = self.watch("first")
        running = self.board.wait("first", PATIENCE, until=lambda job: job.phase is Phase.RUNNING)
        self.assertNotEqual(running.driver, "")
        saved = self.board.checkpoint("first", PATIENCE)
        self.assertGreaterEqual(saved.checkpoint_step, saved.checkpoint_wanted)
        self.assertTrue(os.path.isdir(saved.checkpoint))
        job = self.board.wait("first", timeout=600)
        self.assertEqual((job.phase, job.exit_code, job.error), (Phase.SUCCEEDED, 0, ""))
        self.assertEqual((job.step, job.steps, job.checkpoint_step), (60, 60, 60))
        self.assertTrue(os.path.isdir(job.checkpoint))
        follower.join(PATIENCE)
        self.assertEqual(events[-1].job, job)
        phases = [event.job.phase for event in events]
        self.assertEqual(phases, sorted(phases, key=lambda phase: phase.value))

    def test_the_page_shows_code_that_runs(self):
        with open("docs/guides/python.md", encoding="utf-8") as f:
            code = re.search("```python\n(.*?)```", f.read(), re.S)[1]
        for shown, ours in (("127.0.0.1:50151", self.address), ("200", "4")):
            self.assertIn(shown, code)
            code = code.replace(shown, ours)
        shutil.copy("docs/guides/python.md", os.path.join(TMP, "README.md"))
        self.start("driver", "--servers=" + self.address, "--out=" + self.folder + "/jobs",
                   "--once")
        self.start("worker", "--servers=" + self.address, "--data=README.md", "--worker.threads=1")
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                              timeout=600, check=True).stdout.splitlines()
        # The driver may take the job before the watch opens.
        self.assertRegex(done[0], r"^(QUEUED|STARTING|RUNNING) 0 0\.0$")
        self.assertRegex(done[-2], r"^SUCCEEDED 4 \d")
        self.assertEqual(done[-1], "0 " + self.folder + "/jobs/from-python/checkpoint-4")


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
