"""Runs deploy/slurm/eps.sbatch on a real Slurm of one node, and preempts, cancels and breaks jobs.

Arguments: the folder of the programs, and the folder of the tools (not used). Needs root, and
Debian's slurmctld, slurmd, slurm-client and munge (install_tools.sh)."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import podman

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import processes  # noqa: E402 # pylint: disable=wrong-import-position
import small_job  # noqa: E402 # pylint: disable=wrong-import-position

BINARIES = None
SCRIPT = os.path.join(ROOT, "deploy", "slurm", "eps.sbatch")
DATA = os.path.join(ROOT, "docs", "protocol.md")
STEPS = 300
# Jobs of the partition "low" give way to those of "high", and are queued again.
SLURM_CONF = """ClusterName=eps
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
SlurmUser=root
SlurmctldPort={port}
SlurmdPort={node_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=low Nodes={host} Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=30 State=UP
PartitionName=high Nodes={host} PriorityTier=10 PreemptMode=OFF State=UP
"""
JOB = {"data": {"path": [DATA]}, "training": {"steps": STEPS, "parts": 2, "micro_batch_size": 2,
                                              "seq_len": 32},
       "checkpoint": {"save_steps": 100}, "worker": {"threads": 1}}


def run(*arguments, **options):
    return subprocess.run(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=600, **options)


class Slurm:
    """A controller and a node. Call stop()."""

    def __init__(self, folder):
        self.folder = folder
        host = os.uname().nodename.partition(".")[0]
        for name in ("state", "spool"):
            os.makedirs(os.path.join(folder, name))
        path = os.path.join(folder, "slurm.conf")
        with open(path, "w", encoding="utf-8") as f:
            f.write(SLURM_CONF.format(host=host, folder=folder, port=processes.reserve_port(),
                                      node_port=processes.reserve_port()))
        self.environment = {**os.environ, "SLURM_CONF": path}
        if not os.path.exists("/etc/munge/munge.key"):
            run("mungekey", "--create", check=True)
        self.munged = run("munge", "-n").returncode != 0
        if self.munged:
            os.makedirs("/run/munge", exist_ok=True)
            shutil.chown("/run/munge", "munge", "munge")
            run("setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", check=True)
        for daemon in ("slurmctld", "slurmd"):
            run(daemon, env=self.environment, check=True)
        podman.wait_for("an idle node", lambda: "idle" in self.ask("sinfo", "-h", "-o", "%T"))

    def stop(self):
        pids = [os.path.join(self.folder, name + ".pid") for name in ("slurmd", "slurmctld")]
        for path in pids + (["/run/munge/munged.pid"] if self.munged else []):
            with open(path, encoding="utf-8") as f:
                os.kill(int(f.read()), signal.SIGTERM)

    def ask(self, *arguments):
        done = run(*arguments, env=self.environment)
        return done.stdout if done.returncode == 0 else ""


class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="eps-slurm-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.slurm = Slurm(os.path.join(cls.folder, "slurm"))
        cls.addClassCleanup(cls.slurm.stop)
        cls.job_file = os.path.join(cls.folder, "job.yaml")
        with open(cls.job_file, "w", encoding="utf-8") as f:
            json.dump(JOB, f)
        out = os.path.join(cls.folder, "undisturbed")
        run(os.path.join(BINARIES, "eps"), "train", "--config=" + cls.job_file, "--workers=2",
            "--out=" + out, check=True)
        cls.undisturbed = small_job.outcome(os.path.join(BINARIES, "eps"), out, STEPS)

    def submit(self, name, job_file=None):
        """Returns the number of the job and its output folder."""
        out = os.path.join(self.folder, name)
        environment = {**self.slurm.environment, "EPS_BIN": BINARIES,
                       "EPS_PORT": str(processes.reserve_port())}
        done = run("sbatch", "--parsable", "--ntasks=2", "--output=%s.log" % out, SCRIPT,
                   job_file or self.job_file, out, env=environment, check=True)
        return done.stdout.strip(), out

    def log(self, out):
        try:
            with open(out + ".log", encoding="utf-8", errors="replace") as f:
                return f.read()[-3000:]
        except FileNotFoundError:
            return ""

    def shown(self, job, field):
        found = re.search(r"\b%s=(\S+)" % field, self.slurm.ask("scontrol", "show", "job", job))
        return found[1] if found else ""

    def wait_for_state(self, job, out, state):
        def ended():
            now = self.shown(job, "JobState")
            self.assertIn(now, ("PENDING", "RUNNING", "COMPLETING", state), self.log(out))
            return now == state
        podman.wait_for("%s of job %s" % (state, job), ended)

    def wait_for_step(self, out, step):
        def reached():
            try:
                with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
                    return f.read().count("\n") >= step
            except OSError:
                return False
        podman.wait_for("step %d" % step, reached)

    def check(self, out):
        self.assertEqual(small_job.outcome(os.path.join(BINARIES, "eps"), out, STEPS),
                         self.undisturbed, self.log(out))

    def check_next_try(self, job, out):
        """Lets a job that was queued again begin now, not after two minutes, and checks its end."""
        run("scontrol", "update", "JobId=" + job, "StartTime=now", env=self.slurm.environment,
            check=True)
        self.wait_for_state(job, out, "COMPLETED")
        self.check(out)

    def test_a_job_trains(self):
        job, out = self.submit("trains")
        self.wait_for_state(job, out, "COMPLETED")
        self.check(out)
        left = run("pgrep", "-f", "storage.path=" + out).stdout
        self.assertEqual(left, "", "the servers end with the job")

    def test_a_preempted_job_goes_on(self):
        job, out = self.submit("preempted")
        self.wait_for_step(out, 50)
        urgent = run("sbatch", "--parsable", "--partition=high", "--ntasks=2", "--output=/dev/null",
                     "--wrap=sleep 1", env=self.slurm.environment, check=True).stdout.strip()
        podman.wait_for("the preemption", lambda: self.shown(job, "Restarts") == "1")
        self.wait_for_state(urgent, out, "COMPLETED")
        self.check_next_try(job, out)

    def test_a_lost_process_starts_another_try(self):
        job, out = self.submit("lost")
        self.wait_for_step(out, 50)
        run("pkill", "-KILL", "-f", "eps train .*--out=" + out, check=True)
        podman.wait_for("the next try", lambda: self.shown(job, "Restarts") == "1")
        self.check_next_try(job, out)

    def test_a_cancelled_job_stays_cancelled(self):
        job, out = self.submit("cancelled")
        self.wait_for_step(out, 20)
        self.slurm.ask("scancel", job)
        self.wait_for_state(job, out, "CANCELLED")
        self.assertEqual(self.shown(job, "Restarts"), "0")

    def test_a_wrong_key_ends_the_job(self):
        wrong = os.path.join(self.folder, "wrong.yaml")
        with open(wrong, "w", encoding="utf-8") as f:
            json.dump({**JOB, "trainig": {}}, f)
        job, out = self.submit("wrong", wrong)
        self.wait_for_state(job, out, "FAILED")
        self.assertEqual(self.shown(job, "ExitCode"), "64:0", self.log(out))
        self.assertIn("trainig", self.log(out))


if __name__ == "__main__":
    BINARIES = os.path.abspath(sys.argv[1])
    unittest.main(verbosity=2, argv=sys.argv[:1])
