"""Weights and gradients in memory that servers and workers share: the bits are those of messages,
also after kills; room is given back; and where memory cannot be shared, worker.transport decides.

Argument: the path of eps."""

import json
import os
import pathlib
import shutil
import signal
import subprocess

import runs  # finds the modules of tests/
import processes
import small_job
from runs import TMP, TIMEOUT_SECONDS

STEPS = 12
SETTINGS = dict(small_job.SETTINGS, **{
    "training.steps": STEPS, "servers.addresses": 2, "worker.count": 2,
    "servers.shm_folder": os.path.join(TMP, "sockets")})
SHARED = "%s travel in shared memory"
MESSAGES = "%s travel in messages, because memory is not shared"


class SharedMemoryTest(runs.RunTest):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP)

    def command(self, out, **settings):
        train = ["train", "--model=" + self.model, "--data=" + self.text, "--overwrite",
                 "--out=" + os.path.join(TMP, out)]
        return runs.with_settings(train, SETTINGS, settings)

    def train(self, out, **settings):
        """Trains; returns what the workers logged, and the outcome of the run."""
        self.eps(*self.command(out, **settings))
        return self.logged(out), self.outcome(os.path.join(TMP, out), STEPS)

    def logged(self, out):
        """Returns what all workers of a run logged."""
        logs = sorted(pathlib.Path(TMP, out, "logs").glob("worker-*"))
        return "".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)

    def expected(self):
        """Returns the outcome of a run whose payloads travel in messages."""
        said, outcome = self.train("messages", worker__transport="grpc")
        self.assertNotIn("shared memory", said)
        return outcome

    def test_transports_give_the_same_bits(self):
        expected = self.expected()
        for transport in ("shm", "auto"):
            with self.subTest(transport=transport):
                said, outcome = self.train(transport, worker__transport=transport)
                for payload in ("weights", "gradients"):
                    self.assertEqual(said.count(SHARED % payload), 4, said)  # 2 servers, 2 workers
                self.assertEqual(outcome, expected)
        # Sockets of servers that have ended are not left.
        self.assertEqual(os.listdir(SETTINGS["servers.shm_folder"]), [])

    def test_small_segments_change_no_bit(self):
        # Less than a stage: most payloads find no room, and some do.
        said, outcome = self.train("small", worker__transport="shm", servers__shm_weights="12KiB",
                                   servers__shm_gradients="12KiB")
        self.assertIn(SHARED % "weights", said)
        self.assertEqual(outcome, self.expected())

    def kill(self, out, victim):
        """Trains with durable servers and kills a process of the run in the middle of steps."""
        state = os.path.join(TMP, out + "-state")
        shutil.rmtree(state, ignore_errors=True)
        path = os.path.join(TMP, out + ".log")
        with open(path, "w", encoding="utf-8") as log:
            process = self.begin(self.command(
                out, worker__transport="shm", worker__pass_time="5ms", storage__kind="dram",
                storage__path=state, storage__log="contributions", storage__max_restarts=100), log)
            for step in (3, 6):
                self.wait_for_step(process, os.path.join(TMP, out), step)
                os.kill(victim(process.pid)[1], signal.SIGKILL)
            code = process.wait(timeout=TIMEOUT_SECONDS)
        with open(path, encoding="utf-8") as log:
            self.assertEqual(code, 0, log.read())
        logged = self.logged(out)
        self.assertGreater(logged.count(SHARED % "weights"), 4, logged)  # also after the kills
        return self.outcome(os.path.join(TMP, out), STEPS)

    def test_killed_servers_change_no_bit(self):
        self.assertEqual(self.kill("servers", processes.servers_of), self.expected())

    def test_killed_workers_change_no_bit(self):
        self.assertEqual(self.kill("workers", processes.workers_of), self.expected())

    def serve(self, name, *arguments):
        """Starts a server of its own. Returns its process and its address."""
        path = os.path.join(TMP, name + ".log")
        with open(path, "w", encoding="utf-8") as log:
            server = self.begin(["serve", *arguments], log)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        return server, self.wait_for_address(server, path)

    def memory(self, address):
        """Returns {kind: live bytes} of a server."""
        for line in self.eps("status", "--servers=" + address, "--json").splitlines():
            memory = json.loads(line)["memory"]
            return {kind: use["live_bytes"] for kind, use in memory.items()}
        raise AssertionError("no status")

    def test_room_is_given_back(self):
        folder = os.path.join(TMP, "given-back")
        _, address = self.serve("given-back", "--servers.shm_folder=" + folder)
        self.train("given-back", worker__transport="shm", servers__addresses=address)
        # The workers have ended: the server knows it as soon as it looks.
        deadline = runs.time.monotonic() + TIMEOUT_SECONDS
        while True:
            live = self.memory(address)
            if live["fetch"] == 0 and live["contribution"] == 0:
                return
            self.assertLess(runs.time.monotonic(), deadline, live)
            runs.time.sleep(0.01)

    def test_a_missing_socket_is_a_reason(self):
        folder = os.path.join(TMP, "missing")
        server, address = self.serve("missing", "--servers.shm_folder=" + folder)
        for name in os.listdir(folder):
            os.remove(os.path.join(folder, name))
        said = self.eps(*self.command("refused", worker__transport="shm",
                                      servers__addresses=address), code=65)
        self.assertIn("shares no memory for weights: cannot connect to socket " + folder, said)
        self.assertIn("set worker.transport to auto or grpc", said)
        server.kill()
        _, address = self.serve("missing", "--servers.shm_folder=" + folder)
        for name in os.listdir(folder):
            os.remove(os.path.join(folder, name))
        said, outcome = self.train("auto", worker__transport="auto", servers__addresses=address)
        self.assertIn(MESSAGES % "weights", said)
        self.assertEqual(outcome, self.expected())

    def test_servers_may_share_nothing(self):
        said = self.eps(*self.command("none", worker__transport="shm", servers__shm_weights=0),
                        code=65)
        self.assertIn("it offers none (servers.shm_weights, servers.shm_gradients)", said)
        said = subprocess.run([self.program, *self.command("wrong", worker__transport="tcp")],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT, timeout=TIMEOUT_SECONDS, check=False)
        self.assertEqual(said.returncode, 64, said.stdout)
        self.assertIn("worker.transport: expected auto, shm or grpc, found \"tcp\"", said.stdout)


if __name__ == "__main__":
    runs.main()
