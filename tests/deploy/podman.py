"""A podman of its own for a test: storage, networks and locks in one folder, an API for compose,
and a loop for the health checks, which nothing else runs on a machine without systemd."""

import json
import os
import shutil
import signal
import subprocess
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TIMEOUT_SECONDS = 1800  # ends what hangs; a slow machine is no error
HEALTH_SECONDS = 1


class Podman:
    """Starts the API. Call stop() when all containers are gone."""

    def __init__(self, folder):
        self.folder = folder
        os.makedirs(os.path.join(folder, "networks"))
        self.environment = {**os.environ, **self._write_settings()}
        self.environment["DOCKER_HOST"] = "unix://" + os.path.join(folder, "api.sock")
        with open(os.path.join(folder, "api.log"), "wb") as log:
            self.api = subprocess.Popen(
                ["podman", "system", "service", "--time=0", self.environment["DOCKER_HOST"]],
                env=self.environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT)
        wait_for("the API of podman", lambda: os.path.exists(os.path.join(folder, "api.sock")))
        self.ended = threading.Event()
        self.health = threading.Thread(target=self._check_health)
        self.health.start()

    def _write_settings(self):
        """Writes the configuration files, and returns the variables that name them."""
        def path(name):
            return os.path.join(self.folder, name)
        settings = {
            "CONTAINERS_CONF": """[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "%s"
[network]
network_backend = "netavark"
network_config_dir = "%s"
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
""" % (path("tmp"), path("networks")),
            "CONTAINERS_STORAGE_CONF": """[storage]
driver = "overlay"
graphroot = "%s"
runroot = "%s"
""" % (path("storage"), path("run")),
        }
        for name, text in settings.items():
            with open(path(name), "w", encoding="utf-8") as f:
                f.write(text)
        return {name: path(name) for name in settings}

    def build_images(self, binaries, *options):
        """Builds the images from programs that are built already, and returns what that said."""
        done = subprocess.run(["deploy/build_images.sh", "--binaries=" + binaries, *options],
                              cwd=ROOT, env={**self.environment, "IMAGE_TOOL": "podman"},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=TIMEOUT_SECONDS, check=False)
        if done.returncode != 0:
            raise AssertionError("build_images.sh ended with %d: %s" % (
                done.returncode, done.stdout[-2000:]))
        return done.stdout

    def call(self, *arguments, given=None):
        """Runs podman with a text as its input, and returns how it ended."""
        return subprocess.run(["podman", *arguments], env=self.environment, input=given or "",
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=TIMEOUT_SECONDS, check=False)

    def run(self, *arguments, check=True, given=None):
        """Runs podman, and returns its output."""
        done = self.call(*arguments, given=given)
        if check and done.returncode != 0:
            raise AssertionError("podman %s ended with %d: %s" % (
                " ".join(arguments), done.returncode, (done.stdout + done.stderr)[-2000:]))
        return done.stdout

    def inspect(self, container):
        return json.loads(self.run("container", "inspect", container))[0]

    def kill_process(self, container):
        """Kills the first process of a container as a crash does: podman is not asked."""
        os.kill(self.inspect(container)["State"]["Pid"], signal.SIGKILL)

    def _check_health(self):
        while not self.ended.wait(HEALTH_SECONDS):
            # Each check starts two processes, which take time from the job.
            for container in self.run("ps", "--quiet", "--filter=health=starting",
                                      "--filter=health=unhealthy", check=False).split():
                self.run("healthcheck", "run", container, check=False)

    def stop(self):
        self.ended.set()
        self.health.join()
        self.api.terminate()
        self.api.wait()
        subprocess.run(["podman", "rm", "--all", "--force", "--time=1"], env=self.environment,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
                       timeout=TIMEOUT_SECONDS)
        subprocess.run(["umount", os.path.join(self.folder, "storage", "overlay")],
                       stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def wait_for(what, condition, seconds=TIMEOUT_SECONDS):
    """Waits until the condition returns a true value, and returns it."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError("waited %d s for %s" % (seconds, what))
        time.sleep(0.2)
