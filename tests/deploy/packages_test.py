"""Builds the packages of deploy/packages, installs them on bare machines that have no network, and
trains there: on Debian 12, whose systemd runs the units, and on a minimal Debian 13 and a minimal
Ubuntu 24.04.

Arguments: the folder of the programs, and the folder of the tools (install_tools.sh)."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import podman

sys.path.insert(0, os.path.join(podman.ROOT, "tests"))
import small_job

BINARIES = TOOLS = PACKAGES = None
STEPS = 30
SERVER = "127.0.0.1:50151"  # of /etc/eps/server.yaml
TAR_SERVER = "127.0.0.1:50152"
HOME, VENV = "/var/lib/eps", "/opt/venv"
TEXT = HOME + "/data/text.txt"
SETTINGS = {**small_job.SETTINGS, "training.steps": STEPS}
# The quickstart's model.
QUICKSTART = ["--training.steps=4", "--worker.threads=1"]


def build_packages(folder):
    done = subprocess.run([os.path.join(podman.ROOT, "deploy/packages/build_packages.sh"),
                           "--binaries=" + BINARIES, folder], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600,
                          check=False)
    if done.returncode != 0:
        raise AssertionError("build_packages.sh ended with %d: %s" % (done.returncode,
                                                                     done.stdout[-3000:]))


def setUpModule():
    global PACKAGES
    PACKAGES = tempfile.mkdtemp(prefix="eps-packages-")
    unittest.addModuleCleanup(shutil.rmtree, PACKAGES)
    os.chmod(PACKAGES, 0o755)
    build_packages(PACKAGES)


def package(beginning):
    """Returns the path of the package whose name begins so."""
    return os.path.join(PACKAGES, next(name for name in sorted(os.listdir(PACKAGES))
                                       if name.startswith(beginning)))


def digests(folder):
    found = {}
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as f:
            found[name] = hashlib.sha256(f.read()).hexdigest()
    return found


def train(out, *arguments):
    """Runs `eps train` on this machine, and returns the outcome."""
    program = os.path.join(BINARIES, "eps")
    subprocess.run([program, "train", "--out=" + out, *arguments], check=True, timeout=600,
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    with open(os.path.join(out, "latest"), encoding="utf-8") as f:
        steps = int(f.read().strip().rpartition("-")[2])
    return small_job.outcome(program, out, steps)


class Machine:
    """A container of a root folder. Its network is its own loopback, and a folder of this machine
    is its HOME; what it writes elsewhere goes with it."""

    def __init__(self, pod, release, home, command):
        self.pod, self.release = pod, release
        root = os.path.join(TOOLS, "roots", release)
        if not os.path.isdir(root):
            raise AssertionError("%s is missing: run tests/deploy/install_tools.sh %s roots" % (
                root, TOOLS))
        # systemd needs to mount what a unit sees.
        pod.run("run", "--detach", "--name=" + release, "--network=none", "--systemd=always",
                "--cap-add=SYS_ADMIN", "--volume=%s:%s" % (home, HOME),
                "--volume=%s:/packages:ro" % PACKAGES, "--volume=%s/wheels:/wheels:ro" % TOOLS,
                "--rootfs", root + ":O", *command)

    def run(self, script, check=True):
        """Runs a line of the shell as root, and returns its output."""
        return self.pod.run("exec", self.release, "sh", "-ec", "exec 2>&1; " + script, check=check)

    def start(self, name, user, command):
        """Starts a command, as the shell reads it, as a user."""
        self.pod.run("exec", "--detach", self.release, "sh", "-ec",
                     "exec >/var/log/{0}.log 2>&1; echo $$ >/run/{0}.pid; exec setpriv "
                     "--reuid={1} --regid=$(id -g {1}) --init-groups {2}".format(
                         name, user, command))

    def stop(self, *names):
        for name in names:
            self.run("kill $(cat /run/%s.pid)" % name)
        for name in names:
            podman.wait_for("the end of " + name, lambda name=name: "ended" in self.run(
                "kill -0 $(cat /run/%s.pid) || echo ended" % name))

    def logs(self):
        return self.run("tail -n 30 /var/log/*.log; journalctl --no-pager -n 60 -u 'eps*'",
                        check=False)[-6000:]


class PackagesTest(unittest.TestCase):
    def test_equal_programs_make_equal_packages(self):
        with tempfile.TemporaryDirectory(prefix="eps-packages-") as again:
            build_packages(again)
            self.assertEqual(len(digests(again)), 4)
            self.assertEqual(digests(again), digests(PACKAGES))

    def test_the_train_wheel_wants_our_torch(self):
        with zipfile.ZipFile(package("eps_train-")) as wheel:
            name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
            metadata = wheel.read(name).decode()
        with open(os.path.join(podman.ROOT, "third_party/install/torch_requirements.txt"),
                  encoding="utf-8") as f:
            pinned = re.search(r"^torch==\S+", f.read(), re.MULTILINE)[0]
        self.assertEqual(re.findall(r"^Requires-Dist: (\S+)$", metadata, re.MULTILINE), [pinned])


class OnMachine:
    """Tests that each machine passes. RELEASE names its root, COMMAND its first process; ASK_STATE
    prints "running" as soon as it has started."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="eps-packages-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        os.chmod(cls.folder, 0o755)
        cls.home = os.path.join(cls.folder, "home")
        cls.data = os.path.join(cls.home, "data")
        os.makedirs(cls.data)
        model, text = small_job.write_inputs(cls.data, "gpt2")
        cls.undisturbed = train(os.path.join(cls.folder, "undisturbed"), "--model=" + model,
                                "--data=" + text, *("--%s=%s" % item for item in SETTINGS.items()))
        cls.quickstart = train(os.path.join(cls.folder, "quickstart"), "--data=" + text,
                               *QUICKSTART)
        pod = podman.Podman(os.path.join(cls.folder, "podman"))
        cls.addClassCleanup(pod.stop)
        cls.machine = Machine(pod, cls.RELEASE, cls.home, cls.COMMAND)
        # While systemd starts, it empties /tmp.
        podman.wait_for("the start of " + cls.RELEASE,
                        lambda: "running" in cls.machine.run(cls.ASK_STATE + " || true"))
        # The libraries of GPUs that PyTorch names, too, take 3 GB and are not needed.
        cls.machine.run("python3 -m venv {0}; {0}/bin/pip install --no-index --no-deps "
                        "--no-compile --find-links=/wheels torch nvidia-cuda-runtime "
                        "nvidia-cuda-cupti /packages/eps_train-*.whl".format(VENV))

    def outcome(self, out, steps):
        return small_job.outcome(os.path.join(BINARIES, "eps"), os.path.join(self.home, out), steps)

    def submit(self, eps, server, name, *arguments, **settings):
        """Submits a job of the files in HOME/data, and returns what eps says."""
        sections = {"model": {"path": HOME + "/data/model.json"}, "data": {"path": [TEXT]}}
        for key, value in {**SETTINGS, **settings}.items():
            section, _, rest = key.partition(".")
            if section not in ("worker", "storage"):
                sections.setdefault(section, {})[rest] = value
        with open(os.path.join(self.data, name + ".yaml"), "w", encoding="utf-8") as f:
            json.dump(sections, f)
        return self.machine.run("%s submit -f %s/data/%s.yaml --servers=%s %s || true" % (
            eps, HOME, name, server, " ".join(arguments)))

    def show(self, eps, server, name):
        return json.loads(self.machine.run("%s job show %s --json --servers=%s" % (
            eps, name, server)))

    def start_worker(self, server, user):
        self.machine.start("worker", user, "%s/bin/eps worker --servers=%s --data=%s "
                           "--worker.threads=1 --worker.join_timeout=0" % (VENV, server, TEXT))

    def check_job(self, eps, server, user, jobs):
        """Runs a job through a server and a driver that run already, and compares its outcome."""
        podman.wait_for("an answer of " + server, lambda: "answers" in self.machine.run(
            "%s job ls --servers=%s && echo answers" % (eps, server), check=False))
        self.start_worker(server, user)
        said = self.submit(eps, server, "first", "--wait", "--timeout=240")
        self.assertEqual(self.show(eps, server, "first")["phase"], "SUCCEEDED",
                         said + self.machine.logs())
        self.assertEqual(self.outcome(jobs + "/first", STEPS), self.undisturbed)

    def install_server(self):
        """Installs the package of servers, and returns its files."""
        self.machine.run("dpkg --install /packages/eps-server_*_amd64.deb")
        self.assertRegex(self.machine.run("eps --version"), r"^eps \d")
        return self.machine.run("dpkg --listfiles eps-server").split()

    def check_removal(self, files):
        """Removes the server's package: settings stay until the purge, state stays after it."""
        def left():
            return set(self.machine.run("for file in %s; do if [ -e $file ] && [ ! -d $file ]; "
                                        "then echo $file; fi; done" % " ".join(files)).split())
        self.assertGreater(len(left()), 50)
        self.machine.run("dpkg --remove eps-server")
        self.assertEqual(left(), {"/etc/eps/server.yaml", "/etc/eps/driver.env"})
        self.machine.run("dpkg --purge eps-server")
        self.assertEqual(left(), set())
        self.machine.run("[ ! -e /usr/lib/eps ] && [ ! -e /etc/eps ]")
        self.assertTrue(os.path.isdir(os.path.join(self.home, "jobs", "first")))

    def test_the_train_wheel_trains(self):
        self.machine.run("%s/bin/eps train --data=%s --out=%s/wheel %s" % (
            VENV, TEXT, HOME, " ".join(QUICKSTART)))
        self.assertEqual(self.outcome("wheel", 4), self.quickstart)

    def test_the_train_wheel_has_the_tools(self):
        self.assertIn("megatron", self.machine.run(VENV + "/bin/eps data make --help"))

    def test_torch_may_lie_elsewhere(self):
        self.machine.run("python3 -m venv /opt/other; /opt/other/bin/pip install --no-index "
                         "--no-deps /packages/eps_train-*.whl")
        worker = "/opt/other/bin/eps-worker --version"
        self.assertIn("pip install torch==", self.machine.run(worker + " || true"))
        # A folder that has PyTorch and its libraries, but not eps_train.
        self.machine.run("mkdir /opt/torch; cd %s/lib/python3*/site-packages; "
                         "ln -s $PWD/torch $PWD/nvidia /opt/torch" % VENV)
        said = self.machine.run("PYTHONPATH=/opt/torch " + worker)
        self.assertIn("eps-worker (", said)

    def test_the_client_wheel_imports(self):
        said = self.machine.run(
            "python3 -m venv /opt/client; /opt/client/bin/pip install --quiet --no-index "
            "--find-links=/wheels /packages/eps_client-*.whl; "
            "/opt/client/bin/python -c 'import eps; print(eps.Client)'")
        self.assertIn("<class 'eps.", said)

    def test_the_tar_runs_a_job(self):
        with open(os.path.join(self.home, "eps.tar"), "wb") as f:
            subprocess.run(["zstd", "--decompress", "--stdout", package("eps-0")], stdout=f,
                           check=True, timeout=60)
        self.machine.run("mkdir {0}/tar; chown nobody {0}/tar; cd /srv; tar --extract "
                         "--file={0}/eps.tar".format(HOME))
        eps = self.machine.run("echo /srv/eps-*-linux-amd64/bin/eps").strip()
        self.machine.start("server", "nobody", "%s serve --listen=%s --storage.path=%s/tar/server"
                           % (eps, TAR_SERVER, HOME))
        self.machine.start("driver", "nobody", "%s driver --servers=%s --out=%s/tar/jobs "
                           "--data-root=%s/data" % (eps, TAR_SERVER, HOME, HOME))
        self.check_job(eps, TAR_SERVER, "nobody", "tar/jobs")
        self.machine.stop("driver", "server")


class Debian12Test(OnMachine, unittest.TestCase):
    """A machine whose systemd starts the units."""
    RELEASE, COMMAND = "bookworm", ["/sbin/init"]
    ASK_STATE = "systemctl is-system-running"
    UNITS = ("eps-server", "eps-driver")

    def unit(self, name, field):
        return self.machine.run("systemctl show --property=%s --value %s" % (field, name)).strip()

    def wait_for_job(self, name, reached):
        try:
            podman.wait_for("the job " + name, lambda: reached(self.show("eps", SERVER, name)))
        except AssertionError as error:
            self.fail("%s\n%s" % (error, self.machine.logs()))

    def check_confinement(self, unit):
        """Compares what a process may do with what the unit promises."""
        pid = self.unit(unit, "MainPID")
        status = self.machine.run("cat /proc/%s/status" % pid)
        for line in ("NoNewPrivs:\t1", "CapBnd:\t0000000000000000"):
            self.assertIn(line, status.splitlines(), unit)
        mounts = self.machine.run("cat /proc/%s/mountinfo" % pid)
        self.assertRegex(mounts, r"(?m)^\d+ \d+ \S+ \S+ / ro,", unit)
        self.assertRegex(mounts, r"(?m)^\d+ \d+ \S+ \S+ /tmp rw,", unit)

    def test_the_units_run_a_job(self):
        files = self.install_server()
        units = " ".join(self.UNITS)
        self.assertEqual(self.machine.run("systemctl is-enabled %s || true" % units).split(),
                         ["disabled", "disabled"])
        self.assertEqual(self.machine.run("systemd-analyze verify %s" % " ".join(
            unit + ".service" for unit in self.UNITS)), "")
        self.machine.run("systemctl enable --now " + units)
        for unit in self.UNITS:
            self.check_confinement(unit)
        self.check_job("eps", SERVER, "eps", "jobs")

        # Units that are stopped in the middle of a job have not failed. A worker that comes before
        # the servers have the job ends with the one that is over.
        self.submit("eps", SERVER, "long", **{"training.steps": 100000})
        self.wait_for_job("long", lambda job: job["phase"] == "RUNNING")
        self.start_worker(SERVER, "eps")
        self.wait_for_job("long", lambda job: (job["step"] or 0) > 2)
        for unit in reversed(self.UNITS):
            self.machine.run("systemctl stop " + unit)
            self.assertEqual([self.unit(unit, f) for f in ("Result", "ExecMainStatus")],
                             ["success", "143"], self.machine.logs())
        self.machine.run("systemctl start " + units)
        self.check_removal(files)
        self.assertEqual(self.machine.run(
            "systemctl is-active %s || true; ls /etc/systemd/system/*.wants/eps* || true"
            % units).split()[:2], ["inactive", "inactive"])
        self.assertNotIn("eps-", self.machine.run("ls /etc/systemd/system/*.wants"))


class WithoutSystemd(OnMachine):
    """A container without systemd, in which the commands of the units run."""
    COMMAND, ASK_STATE = ["sleep", "infinity"], "echo running"

    def start_command(self, unit):
        """Starts the command of a unit. Its settings may be variables of a file."""
        lines = self.machine.run("cat /usr/lib/systemd/system/%s.service" % unit)
        command = re.search(r"^ExecStart=(.*)$", lines, re.MULTILINE)[1]
        settings = re.search(r"^EnvironmentFile=(.*)$", lines, re.MULTILINE)
        if settings:
            command = "sh -ac '. %s; exec %s'" % (settings[1], command)
        self.machine.start(unit, "eps", command)

    def test_the_commands_run_a_job(self):
        files = self.install_server()
        self.machine.run("mkdir -p {0}/jobs; chown eps:eps {0} {0}/jobs".format(HOME))
        for unit in ("eps-server", "eps-driver"):
            self.start_command(unit)
        self.check_job("eps", SERVER, "eps", "jobs")
        self.machine.stop("eps-driver", "eps-server")
        self.check_removal(files)


class Debian13Test(WithoutSystemd, unittest.TestCase):
    RELEASE = "trixie"


class Ubuntu2404Test(WithoutSystemd, unittest.TestCase):
    RELEASE = "noble"

    def test_its_python_is_3_12(self):
        self.assertRegex(self.machine.run(VENV + "/bin/python --version"), r"^Python 3\.12\.")


if __name__ == "__main__":
    BINARIES, TOOLS = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    unittest.main(verbosity=2, argv=sys.argv[:1])
