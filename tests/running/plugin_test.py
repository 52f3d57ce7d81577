"""Jobs whose optimizer is a plug-in updater that `eps updater new` wrote and `make` built: it
trains inside storage devices with the bits of memory, through kills, and every process refuses
another file, or one that it does not trust.

Argument: the path of eps."""

import os
import shutil
import signal
import subprocess

import runs  # finds the modules of tests/
import processes
import small_job
from runs import TMP, TIMEOUT_SECONDS

STEPS = 80
SETTINGS = dict(small_job.SETTINGS, **{
    "training.steps": STEPS, "servers.addresses": 2, "storage.cut_steps": 2,
    "optimizer.name": "plugin", "optimizer.plugin_parameters": "alpha=0.9"})


class PluginTest(runs.RunTest):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP)
        cls.updaters = {name: runs.build_plugin(cls.program, "updater", name)
                        for name in ("one", "two")}

    def command(self, out, **settings):
        train = ["train", "--model=" + self.model, "--data=" + self.text, "--overwrite",
                 "--out=" + os.path.join(TMP, out)]
        return runs.with_settings(train, SETTINGS,
                                  {"optimizer.plugin": self.updaters["one"], **settings})

    def in_devices(self, out, state, **settings):
        shutil.rmtree(os.path.join(TMP, state), ignore_errors=True)
        return self.command(out, **{"storage.kind": "csd", "storage.csd.devices": 2,
                                    "storage.path": os.path.join(TMP, state),
                                    "storage.csd.dram": "4MiB", **settings})

    def test_trains_in_devices_through_kills(self):
        memory, out = os.path.join(TMP, "memory"), os.path.join(TMP, "devices")
        self.eps(*self.command("memory", **{"storage.kind": "dram",
                                            "servers.trust_plugins": "true"}))
        with open(os.path.join(TMP, "run.log"), "w+", encoding="utf-8") as log:
            process = self.begin(self.in_devices("devices", "state"), log)
            self.wait_for_step(process, out, 10)
            os.kill(processes.devices_of(process.pid)["device 1"], signal.SIGKILL)
            self.wait_for_restarts(process, log.name, 1)
            self.wait_for_step(process, out, 25)
            os.kill(processes.servers_of(process.pid)[1], signal.SIGKILL)
            code = process.wait(timeout=TIMEOUT_SECONDS)
            log.seek(0)
            said = log.read()
        self.assertEqual(code, 0, said)
        self.assertEqual(said.count("note: restarting server"), 2, said)
        self.assertEqual(self.outcome(out, STEPS), self.outcome(memory, STEPS))
        # The tools that read the state of a job run no code of its updater.
        said = self.eps("state", "verify", os.path.join(TMP, "state"))
        self.assertEqual(said.count("ok: "), len(said.splitlines()), said)

    def test_every_tier_gives_the_same_bits(self):
        outcomes = []
        for kind in ("nvme", "dram"):
            shutil.rmtree(os.path.join(TMP, "tier-" + kind), ignore_errors=True)
            self.eps(*self.command(kind, **{
                "storage.kind": kind, "training.steps": 8, "servers.trust_plugins": "true",
                "storage.path": os.path.join(TMP, "tier-" + kind)}))
            outcomes.append(self.outcome(os.path.join(TMP, kind), 8))
        self.eps(*self.in_devices("csd", "tier-csd", **{"training.steps": 8}))
        outcomes.append(self.outcome(os.path.join(TMP, "csd"), 8))
        self.assertEqual(outcomes[0], outcomes[1])
        self.assertEqual(outcomes[0], outcomes[2])

    def test_servers_refuse_what_they_do_not_trust(self):
        said = self.eps(*self.command("refused", **{"storage.kind": "dram"}), code=65)
        self.assertRegex(said, "optimizer.plugin: the updater one with SHA-256 [0-9a-f]{64} is not "
                               "loaded here; none is loaded. Use storage.kind=csd")
        self.assertIn("servers.trust_plugins=true", said)

    def test_devices_refuse_another_file(self):
        """A server whose machine has another file says both digests."""
        state = os.path.join(TMP, "other-state")
        shutil.rmtree(state, ignore_errors=True)
        with open(os.path.join(TMP, "serve.log"), "w+", encoding="utf-8") as log:
            server = self.begin(["serve", "--storage.kind=csd", "--storage.csd.devices=1",
                                 "--storage.path=" + state,
                                 "--optimizer.plugin=" + self.updaters["two"]], log)
            try:
                address = self.wait_for_address(server, log.name)
                said = self.eps(*self.command("other", **{
                    "servers.addresses": address, "storage.kind": "csd"}), code=65)
            finally:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait(timeout=TIMEOUT_SECONDS)
        digests = [subprocess.run(["sha256sum", self.updaters[name]], check=True, text=True,
                                  stdout=subprocess.PIPE).stdout.split()[0]
                   for name in ("one", "two")]
        self.assertIn(self.updaters["two"] + ": the job needs the updater with SHA-256 %s, and "
                      "this file has %s" % tuple(digests), said)

    def test_a_submitted_job_trains_with_the_drivers_updater(self):
        """The job names no file: driver and servers have one, beside which other jobs run."""
        self.eps(*self.command("undisturbed", **{"storage.kind": "dram", "training.steps": 8,
                                                 "servers.trust_plugins": "true"}))
        state, jobs = os.path.join(TMP, "board-state"), os.path.join(TMP, "jobs")
        for folder in (state, jobs):
            shutil.rmtree(folder, ignore_errors=True)
        plugin = "--optimizer.plugin=" + self.updaters["one"]
        with open(os.path.join(TMP, "board.log"), "w+", encoding="utf-8") as log:
            server = self.begin(["serve", "--storage.kind=csd", "--storage.csd.dram=4MiB",
                                 "--storage.staging=8MiB", "--storage.path=" + state, plugin], log)
            address = "--servers=" + self.wait_for_address(server, log.name)
            worker = self.begin(["worker", address, "--data=" + self.text, "--worker.threads=1",
                                 "--worker.stay"], log)
            try:
                for name in ("plugin", "adamw"):
                    job = os.path.join(TMP, name + ".yaml")
                    with open(job, "w", encoding="utf-8") as f:
                        f.write(self.job_text(name))
                    self.eps("submit", "-f", job, address)
                    self.eps("driver", "--once", address, "--out=" + jobs, "--data-root=" + TMP,
                             plugin)
            finally:
                for process in (worker, server):
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(timeout=TIMEOUT_SECONDS)
        self.assertEqual(self.outcome(os.path.join(jobs, "plugin"), 8),
                         self.outcome(os.path.join(TMP, "undisturbed"), 8))

    def job_text(self, optimizer):
        """Returns a job of eight steps with this optimizer."""
        settings = {key: value for key, value in SETTINGS.items() if key[:10] != "optimizer."}
        settings.update({"training.steps": 8, "optimizer.name": optimizer})
        if optimizer == "plugin":
            key = "optimizer.plugin_parameters"
            settings[key] = SETTINGS[key]
        return runs.job_text(self.model, self.text, settings)

    def test_a_fence_ends_what_does_more(self):
        """One updater opens a file in a step. Others make one as soon as they are loaded: wherever
        that is, or in a device alone."""
        loop = "  for (size_t i = 0; i < n; ++i) {\n    const float g ="
        reads = runs.build_plugin(self.program, "updater", "reads", (
            loop, '  if (open("/etc/passwd", O_RDONLY) < 0) return;\n' + loop))
        entry, made = '__attribute__((visibility("default")))', os.path.join(TMP, "made")
        writes = {name: runs.build_plugin(self.program, "updater", name, (
            entry, '#include <string.h>\n'
            '__attribute__((constructor)) static void make_file(int argc, char** argv) {\n'
            '  if (argc == 0 || strstr(argv[0], "%s") == NULL) return;\n'
            '  if (open("%s", O_CREAT | O_WRONLY, 0600) < 0) return;\n}\n%s' % (
                program, made, entry)))
                  for name, program in (("writes", "eps"), ("writes_in_a_device", "eps-csd"))}
        said = self.eps(*self.in_devices("fenced", "fenced-state", **{
            "optimizer.plugin": reads, "storage.max_restarts": 0}), code=69)
        with open(os.path.join(TMP, "fenced", "logs", "server-0.log"), encoding="utf-8") as log:
            self.assertRegex(log.read() + said, r"device csd-\d .* was ended by signal 31 ")
        for name, code in (("writes", 64), ("writes_in_a_device", 69)):
            said = self.eps(*self.in_devices("fenced", "fenced-state", **{
                "optimizer.plugin": writes[name], "storage.max_restarts": 0}), code=code)
            self.assertIn("signal 31", said)
            self.assertFalse(os.path.exists(made))

    def test_parameters_are_checked(self):
        def refused(code=64, **settings):
            return self.eps(*self.command("refused", **settings), code=code)
        wrong = {"optimizer.plugin_parameters": "alpha=2"}
        self.assertIn("optimizer.plugin_parameters: alpha: expected a number from",
                      refused(**wrong))
        wrong = {"optimizer.plugin_parameters": "beta=0.5"}
        self.assertIn('one has no parameter "beta"; it has alpha, eps', refused(**wrong))
        self.assertIn("set optimizer.name=plugin", refused(**{"optimizer.name": "adamw"}))
        self.assertIn("cannot be loaded", refused(**{"optimizer.plugin": self.text}))
        missing = os.path.join(TMP, "missing.so")
        self.assertIn(missing, refused(code=66, **{"optimizer.plugin": missing}))


if __name__ == "__main__":
    runs.main()
