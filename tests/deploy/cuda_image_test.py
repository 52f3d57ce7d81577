"""Builds the image of workers for NVIDIA's GPUs, and runs it without one: what it finds, what it
refuses, and a run on the CPU, whose result is that of the other image. A driver without devices
stands in for NVIDIA's; with it the worker loads the CUDA half of LibTorch from the image.

Arguments: the folder of the programs, and the folder of the tools
(install_tools.sh). Needs third_party/.libtorch_cuda (third_party/install/setup_torch_cuda.sh)."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import compose
import podman

BINARIES = TOOLS = None
IMAGE = "eps-worker-cuda"
LIBTORCH = os.path.join(compose.ROOT, "third_party", ".libtorch_cuda")
INVALID = 65
# It names no device, whatever it is asked.
DRIVER = """
int cuInit(unsigned flags) { return 100; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
"""
# Where runtimes and device plugins put the driver.
DRIVER_FOLDERS = ("/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/local/nvidia/lib64")
# In the place of deploy/compose/gpu.yaml, which needs devices.
ON_CPUS = """
services:
  worker-0: {image: eps-worker-cuda:latest}
  worker-1: {image: eps-worker-cuda:latest}
"""


class CudaImageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="eps-cuda-image-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.podman = podman.Podman(os.path.join(cls.folder, "podman"))
        cls.addClassCleanup(cls.podman.stop)
        cls.podman.build_images(BINARIES, "--cuda")
        cls.driver = os.path.join(cls.folder, "libcuda.so.1")
        subprocess.run(["cc", "-shared", "-fPIC", "-xc", "-o", cls.driver, "-"], input=DRIVER,
                       text=True, check=True, timeout=60)

    def worker(self, *arguments, driver_in=None):
        """Runs a worker as restricted as that of the compose file, and returns how it ended."""
        options = ["--rm", "--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL",
                   "--security-opt=no-new-privileges", "--network=none"]
        if driver_in:
            options.append("--volume=%s:%s/libcuda.so.1:ro" % (self.driver, driver_in))
        return self.podman.call("run", *options, IMAGE, *arguments)

    def assert_refused(self, said, *arguments, **environment):
        """Checks that a build ends with an error that contains a text."""
        done = subprocess.run(
            [os.path.join(compose.ROOT, "deploy", "build_images.sh"), "--cuda", *arguments],
            env={**self.podman.environment, "IMAGE_TOOL": "podman", **environment}, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False,
            timeout=podman.TIMEOUT_SECONDS)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(said, done.stderr)

    def test_the_image_holds_what_a_gpu_needs(self):
        image = json.loads(self.podman.run("image", "inspect", IMAGE))[0]
        self.assertEqual(image["Config"]["User"], "65532:65532")
        variables = dict(each.split("=", 1) for each in image["Config"]["Env"])
        self.assertEqual(variables["NVIDIA_DRIVER_CAPABILITIES"], "compute,utility")
        self.assertEqual(variables["NVIDIA_VISIBLE_DEVICES"], "all")
        mount = self.podman.run("image", "mount", IMAGE).strip()
        names = {folder: os.listdir(os.path.join(mount, folder))
                 for folder in ("usr/bin", "usr/lib")}
        self.podman.run("image", "unmount", IMAGE)
        self.assertEqual(sorted(names["usr/bin"]), ["eps-worker", "libeps_cuda.so"])
        lacking = {name for name in os.listdir(LIBTORCH) if ".so" in name} - set(names["usr/lib"])
        self.assertEqual(lacking, set())
        self.assertFalse([each for each in names["usr/lib"] if each.startswith("libcuda.so")],
                         "the driver is part of the machine")
        print("%s: %.1f GB" % (IMAGE, image["Size"] / 1e9), file=sys.stderr)

    def test_a_missing_cuda_library_fails_the_build(self):
        empty = tempfile.mkdtemp(dir=self.folder)
        self.assert_refused("%s has no libtorch_cuda.so" % empty, "--binaries=" + BINARIES,
                            LIBTORCH_CUDA_HOME=empty)
        for name in ("eps", "eps-worker"):
            os.symlink(os.path.join(BINARIES, name), os.path.join(empty, name))
        self.assert_refused("%s holds no program libeps_cuda.so" % empty, "--binaries=" + empty)

    def test_a_missing_nvidia_library_fails_the_build(self):
        folder = tempfile.mkdtemp(dir=self.folder)
        for name in os.listdir(LIBTORCH):
            os.symlink(os.path.join(LIBTORCH, name), os.path.join(folder, name))
        os.remove(os.path.join(folder, "libcublas.so.13"))
        self.assert_refused("lacks libraries: libcublas.so.13", "--binaries=" + BINARIES,
                            "--tag=incomplete", LIBTORCH_CUDA_HOME=folder)
        self.assertFalse(self.podman.run("images", "--quiet", IMAGE + ":incomplete"))

    def test_a_machine_without_gpu_is_named(self):
        done = self.worker("--version")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^eps-worker .*libtorch 2\.\d+\.\d+ cpu ")
        self.assertIn("cuda: not used: no NVIDIA driver: libcuda.so.1:", done.stdout)
        done = self.worker("worker", "--servers=127.0.0.1:1", "--worker.device=cuda")
        self.assertEqual(done.returncode, INVALID, done.stderr)
        self.assertIn("worker.device is cuda, but CUDA is not available: no NVIDIA driver",
                      done.stderr)

    def test_a_driver_makes_it_load_cuda(self):
        for folder in DRIVER_FOLDERS:
            with self.subTest(folder=folder):
                done = self.worker("--version", driver_in=folder)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("cuda: not used: the driver has no device", done.stdout)
        done = self.worker("worker", "--servers=127.0.0.1:1", "--worker.device=cuda",
                           driver_in=DRIVER_FOLDERS[0])
        self.assertEqual(done.returncode, INVALID, done.stderr)
        self.assertIn("worker.device is cuda, but there are 0 CUDA devices", done.stderr)

    def test_trains_on_cpus_like_the_other_image(self):
        file = os.path.join(self.folder, "on_cpus.yaml")
        with open(file, "w", encoding="utf-8") as f:
            f.write(ON_CPUS)
        project = compose.Compose(TOOLS, BINARIES, self.podman, self.folder,
                                  (compose.COMPOSE_FILE, file))
        self.addCleanup(project.down)
        project.up()
        used = {self.podman.inspect(project.containers()[name])["ImageName"]
                for name in ("worker-0", "worker-1")}
        self.assertEqual(used, {"localhost/%s:latest" % IMAGE})
        project.wait_for_the_end()
        self.assertEqual(project.result(), compose.train_here(BINARIES, self.folder))


if __name__ == "__main__":
    TOOLS, BINARIES = (os.path.abspath(sys.argv.pop(i)) for i in (2, 1))
    if not os.path.exists(os.path.join(LIBTORCH, "libtorch_cuda.so")):
        sys.exit("%s has no libtorch_cuda.so; run third_party/install/setup_torch_cuda.sh" %
                 LIBTORCH)
    unittest.main(verbosity=2)
