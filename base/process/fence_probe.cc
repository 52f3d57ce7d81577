// Fences itself, then tries to get out in the way that its first argument names, on the thread that
// the second one names; the third is the number of MiB that it may allocate, "strict", or "loading"
// for the fence of code that is loaded. Ends with
// 0 if that worked, with 1 if it was refused, and by a signal if it was killed.

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "base/process/fence.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Returns whether the attempt succeeded.
bool Try(const std::string& way) {
  if (way == "open") return open("/dev/null", O_RDONLY) >= 0;
  if (way == "open_for_writing") return open("/dev/null", O_WRONLY) >= 0;
  if (way == "create") return open("fence_probe_file", O_RDONLY | O_CREAT, 0600) >= 0;
  if (way == "unlink") return unlink("fence_probe_file") == 0;
  if (way == "kill") return kill(getppid(), 0) == 0;
  if (way == "raise") return std::raise(0) == 0;
  if (way == "load") return dlopen("libm.so.6", RTLD_NOW) != nullptr;
  if (way == "map") {
    return mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
           MAP_FAILED;
  }
  if (way == "start_thread") {
    bool ran = false;
    std::thread([&ran] { ran = true; }).join();
    return ran;
  }
  if (way == "socket") return socket(AF_UNIX, SOCK_STREAM, 0) >= 0;
  if (way == "fork") return fork() >= 0;
  if (way == "execve") return execl("/bin/true", "true", nullptr) == 0;
  if (way == "ptrace") return syscall(SYS_ptrace, 0, 0, nullptr, nullptr) >= 0;
  if (way == "memfd") return memfd_create("probe", 0) >= 0;
  if (way == "io_uring") {
    io_uring_params params;
    std::memset(&params, 0, sizeof(params));
    return syscall(SYS_io_uring_setup, 1, &params) >= 0;
  }
  if (way == "read_process") {
    char byte = 0;
    iovec local = {&byte, 1};
    return process_vm_readv(getppid(), &local, 1, &local, 1, 0) >= 0;
  }
  if (way == "map_shared") {
    return mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0) !=
           MAP_FAILED;
  }
  // The memory that a fenced process has left holds the first of them only.
  if (way == "heap_8_MiB") return std::malloc(8 * kMiB) != nullptr;
  if (way == "heap_32_MiB") return std::malloc(32 * kMiB) != nullptr;
  if (way == "write") return write(STDERR_FILENO, ".", 1) == 1;
  std::fprintf(stderr, "unknown way %s\n", way.c_str());
  std::abort();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 64;
  eps::PrepareForFence();
  const std::string way = argv[1];
  eps::FenceOptions options;
  options.kills_mappings = std::string(argv[3]) == "strict";
  if (!options.kills_mappings) options.scratch_bytes = std::strtoull(argv[3], nullptr, 10) * kMiB;
  const bool in_thread = std::string(argv[2]) == "thread";
  // A thread that started before is fenced too.
  int go[2];
  if (pipe(go) != 0) return 70;
  bool got_out = false;
  std::thread thread([&] {
    char byte = 0;
    if (read(go[0], &byte, 1) == 1 && in_thread) got_out = Try(way);
  });
  const absl::Status fenced =
      std::string(argv[3]) == "loading" ? eps::FenceLoading() : eps::FenceProcess(options);
  if (!fenced.ok()) {
    std::fprintf(stderr, "%s\n", fenced.ToString().c_str());
    return 71;
  }
  if (write(go[1], "x", 1) != 1) return 70;
  thread.join();
  if (!in_thread) got_out = Try(way);
  std::_Exit(got_out ? 0 : 1);
}
