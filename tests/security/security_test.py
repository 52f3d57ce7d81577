"""Servers, a driver and a worker that know each other by certificates: a job trains over TLS as it
does without it, and whoever has no certificate, or one of another role, is refused.

Argument: the path of eps."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import processes
import small_job

EPS = None
TMP = os.environ.get("TEST_TMPDIR", "/tmp")
TIMEOUT_SECONDS = 600
STEPS = 10
USAGE, NO_INPUT, UNAVAILABLE, NOT_ALLOWED = 64, 66, 69, 77
SETTINGS = dict({key: value for key, value in small_job.SETTINGS.items()
                 if not key.startswith(("worker.", "storage."))},
                **{"training.steps": STEPS, "training.clip": "exact"})


class SecurityTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = os.path.join(TMP, "security")
        shutil.rmtree(cls.folder, ignore_errors=True)
        os.makedirs(cls.folder)
        cls.model, cls.data = small_job.write_inputs(cls.folder)
        cls.call("certs", "cluster", cls.folder, "--hosts=127.0.0.1")

    def setUp(self):
        self.children = []
        self.addCleanup(self.end)
        self.addresses = ["127.0.0.1:%d" % processes.reserve_port() for _ in range(2)]

    def end(self):
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait()

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder, name)

    @classmethod
    def security(cls, role):
        return ["--security.dir=" + cls.path(role), "--security.tls=always"]

    @classmethod
    def call(cls, *arguments, code=0):
        done = subprocess.run([EPS, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_SECONDS)
        if done.returncode != code:
            raise AssertionError("%s: %d, %s" % (arguments, done.returncode, done.stdout))
        return done.stdout

    def start(self, log, *arguments):
        with open(self.path(log), "a", encoding="utf-8") as f:
            self.children.append(subprocess.Popen([EPS, *arguments], stdin=subprocess.DEVNULL,
                                                  stdout=f, stderr=subprocess.STDOUT, cwd=TMP))
        return self.children[-1]

    def serve(self, *arguments):
        for i, address in enumerate(self.addresses):
            self.start("server-%d.log" % i, "serve", "--listen=" + address,
                       "--storage.path=%s-%d" % (self.path(self._testMethodName), i),
                       "--storage.staging=8MiB",
                       *self.security("server"), *arguments)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        for address in self.addresses:
            while True:
                try:
                    socket.create_connection(address.split(":"), 1).close()
                    break
                except OSError:
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.05)

    def work(self, log, *arguments):
        self.start(log, "worker", "--servers=" + self.addresses[0], "--data=" + self.data,
                   "--worker.threads=1", *arguments)

    def write_job(self):
        sections = {"model": {"path": self.model}, "data": {"path": self.data}}
        for key, value in SETTINGS.items():
            section, name = key.split(".")
            sections.setdefault(section, {})[name] = value
        with open(self.path("job.yaml"), "w", encoding="utf-8") as f:
            json.dump(sections, f)

    def token(self, keys, role, job):
        path = self.path("token-%s-%s" % (role, job))
        self.call("certs", "token", keys, "--job=" + job, "--role=" + role, "--out=" + path)
        return "--security.token=" + path

    @classmethod
    def undisturbed(cls):
        """Returns the outcome of the job when it runs alone, without certificates."""
        out = cls.path("plain")
        if not os.path.exists(out):
            cls.call("train", "--out=" + out, "--model=" + cls.model, "--data=" + cls.data,
                     "--servers.addresses=2", "--worker.threads=1",
                     *("--%s=%s" % item for item in SETTINGS.items()))
        return small_job.outcome(EPS, out, STEPS)

    def on_board(self, role, *arguments, code=0):
        return self.call(*arguments, "--servers=" + self.addresses[0], *self.security(role),
                         code=code)

    def test_certificates_are_issued_for_the_same_authority(self):
        folder = self.path("again")
        self.call("certs", "cluster", folder, "--hosts=a")
        with open(folder + "/ca/ca.crt", encoding="ascii") as f:
            authority = f.read()
        with open(folder + "/server/tls.crt", encoding="ascii") as f:
            first = f.read()
        self.call("certs", "cluster", folder, "--hosts=a,b")
        with open(folder + "/ca/ca.crt", encoding="ascii") as f:
            self.assertEqual(f.read(), authority)
        with open(folder + "/server/tls.crt", encoding="ascii") as f:
            self.assertNotEqual(f.read(), first)
        said = self.call("certs", "issue", folder + "/ca", "--role=server", "--out=" + folder,
                         code=USAGE)
        self.assertIn("--hosts", said)
        self.assertIn("worker", self.call("certs", "issue", folder + "/ca", "--role=boss",
                                          "--out=" + folder, code=USAGE))
        self.call("certs", "init", folder + "/ca", code=USAGE)

    def test_a_job_trains_over_tls(self):
        self.serve()
        self.start("driver.log", "driver", "--servers=" + ",".join(self.addresses),
                   "--out=" + self.path("jobs"), *self.security("driver"))
        self.work("worker.log", *self.security("worker"))
        self.write_job()
        submit = ("submit", "-f", self.path("job.yaml"), "--name=job")
        for role in ("viewer", "worker"):
            said = self.on_board(role, *submit, code=NOT_ALLOWED)
            self.assertIn("role %s may not call" % role, said)
        self.assertEqual(json.loads(self.on_board("viewer", "job", "ls", "--json"))["jobs"], [])
        self.on_board("scheduler", *submit, "--wait", "--timeout=600")
        job = json.loads(self.on_board("viewer", "job", "show", "job", "--json"))
        self.assertEqual((job["phase"], job["exit_code"]), ("SUCCEEDED", 0))
        self.assertEqual(small_job.outcome(EPS, self.path("jobs/job"), STEPS), self.undisturbed())

    def test_a_token_serves_its_job_only(self):
        keys = self.path("keys")
        self.call("certs", "token-key", keys)
        self.serve("--security.token_keys=" + keys, "--security.tokens=required")
        everywhere = {role: self.token(keys, role, "all") for role in ("driver", "scheduler")}
        said = self.on_board("scheduler", "job", "ls", code=NOT_ALLOWED)
        self.assertIn("requires a token", said)
        self.start("driver.log", "driver", "--servers=" + ",".join(self.addresses),
                   "--out=" + self.path("tokens"), *self.security("driver"), everywhere["driver"])
        self.write_job()
        uids = {}
        for name in ("job", "other"):
            said = self.on_board("scheduler", "submit", "-f", self.path("job.yaml"),
                                 "--name=" + name, "--json", *(["--paused"] * (name == "other")),
                                 everywhere["scheduler"])
            uids[name] = json.loads(said)["uid"]
        # A process of the other job sees nothing of this one, and waits.
        self.work("other.log", *self.security("worker"), self.token(keys, "worker", uids["other"]))
        viewer = self.token(keys, "viewer", uids["other"])
        listed = json.loads(self.on_board("viewer", "job", "ls", "--json", viewer))["jobs"]
        self.assertEqual([job["name"] for job in listed], ["other"])
        self.on_board("viewer", "job", "show", "job", viewer, code=NO_INPUT)
        scheduler = self.token(keys, "scheduler", uids["other"])
        said = self.on_board("scheduler", "job", "pause", "job", scheduler, code=NO_INPUT)
        self.assertIn('there is no job "job"', said)
        said = self.on_board("scheduler", "submit", "-f", self.path("job.yaml"), "--name=third",
                             scheduler, code=NOT_ALLOWED)
        self.assertIn("this token serves the job with uid " + uids["other"], said)
        # The key is replaced: the tokens of both are valid.
        self.call("certs", "token-key", keys)
        self.work("worker.log", *self.security("worker"), self.token(keys, "worker", uids["job"]))
        self.on_board("scheduler", "job", "watch", "job", everywhere["scheduler"])
        self.assertEqual(small_job.outcome(EPS, self.path("tokens/job"), STEPS),
                         self.undisturbed())
        with open(self.path("other.log"), encoding="utf-8") as f:
            self.assertNotIn("joined", f.read())
        # Servers that start again know whose job they have.
        self.end()
        self.children.clear()
        self.serve("--security.token_keys=" + keys, "--security.tokens=required")
        self.assertIn("idle", self.on_board("viewer", "status", viewer))
        own = self.token(keys, "viewer", uids["job"])
        self.assertNotIn("idle", self.on_board("viewer", "status", own))

    def test_certificates_name_their_only_job(self):
        self.serve()
        self.write_job()
        self.call("certs", "issue", self.path("ca"), "--role=scheduler", "--job=job",
                  "--out=" + self.path("scheduler-of-job"))
        submit = ("submit", "-f", self.path("job.yaml"), "--paused")
        said = self.on_board("scheduler-of-job", *submit, "--name=other", code=NOT_ALLOWED)
        self.assertIn("this certificate serves job job only", said)
        self.on_board("scheduler-of-job", *submit, "--name=job")
        self.on_board("scheduler-of-job", "job", "cancel", "job")
        said = self.call("certs", "issue", self.path("ca"), "--role=server", "--job=job",
                         "--hosts=a", "--out=" + self.path("x"), code=USAGE)
        self.assertIn("--job", said)

    def test_connections_end_and_the_job_goes_on(self):
        settings = dict(SETTINGS, **{"training.steps": 40})
        outcomes = []
        for name, tls in (("still", ()), ("moving", ("--security.tls=always",
                                                     "--security.connection_age=1s"))):
            out = self.path(name)
            self.call("train", "--out=" + out, "--model=" + self.model, "--data=" + self.data,
                      "--servers.addresses=2", "--worker.threads=1", *tls,
                      *("--%s=%s" % item for item in settings.items()))
            outcomes.append(small_job.outcome(EPS, out, settings["training.steps"]))
        self.assertEqual(outcomes[0], outcomes[1])

    def test_a_run_has_certificates_of_its_own(self):
        outcomes = []
        for tls in ("auto", "always"):
            out = self.path("run-" + tls)
            said = self.call("train", "--out=" + out, "--model=" + self.model,
                             "--data=" + self.data, "--workers=2", "--training.parts=2",
                             "--worker.threads=1", "--security.tls=" + tls,
                             *("--%s=%s" % item for item in SETTINGS.items()))
            outcomes.append(small_job.outcome(EPS, out, STEPS))
        self.assertEqual(outcomes[0], outcomes[1])
        folder = re.search(r"^tls: .*--security.dir=(\S+)/driver\)$", said, re.MULTILINE)[1]
        self.assertFalse(os.path.exists(folder), "it goes with the run")

    def test_plaintext_gets_no_answer(self):
        self.serve()
        said = self.call("status", "--servers=" + self.addresses[0], code=UNAVAILABLE)
        self.assertIn("security.dir", said)
        host, port = self.addresses[0].split(":")
        with socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as client:
            client.settimeout(TIMEOUT_SECONDS)
            client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            answer = b""
            try:
                for got in iter(lambda: client.recv(4096), b""):
                    answer += got
            except ConnectionResetError:
                pass
            # At most an alert of TLS (RFC 8446, section 6): 0x15, no application data.
            self.assertIn(answer[:1], (b"", b"\x15"))
            self.assertLessEqual(len(answer), 7)

    def test_silent_strangers_are_disconnected(self):
        self.serve()
        host, port = self.addresses[0].split(":")
        with socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as silent:
            silent.sendall(b"\x16\x03\x01\x02\x00")  # the beginning of a ClientHello
            silent.settimeout(TIMEOUT_SECONDS)
            self.assertEqual(silent.recv(4096), b"")
        self.assertIn("idle", self.on_board("viewer", "status"))

    def test_sigterm_reaches_the_server(self):
        # No thread that reads certificates again takes the signal.
        self.serve()
        for server in self.children:
            server.send_signal(signal.SIGTERM)
        self.assertEqual([server.wait(timeout=TIMEOUT_SECONDS) for server in self.children], [0, 0])

    def test_open_addresses_need_a_certificate(self):
        said = self.call("serve", "--listen=0.0.0.0:0", code=NOT_ALLOWED)
        self.assertIn("security.dir", said)
        said = self.call("serve", "--listen=127.0.0.1:0", "--security.tls=always", code=USAGE)
        self.assertIn("security.dir", said)
        said = self.call("serve", "--security.dir=" + self.path("nothing"), code=NO_INPUT)
        self.assertIn("tls.key", said)
        # With one it listens everywhere, over TLS.
        port = processes.reserve_port()
        self.start("open.log", "serve", "--listen=0.0.0.0:%d" % port,
                   "--security.dir=" + self.path("server"))
        self.addresses = ["127.0.0.1:%d" % port]
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                self.assertIn("idle", self.on_board("viewer", "status"))
                break
            except AssertionError:
                self.assertLess(time.monotonic(), deadline)


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop())
    unittest.main(verbosity=2)
