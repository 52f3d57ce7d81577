#include "eps_server/rpc/testing/serve_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "base/check.h"

namespace eps {
namespace {

constexpr int kTimeoutMs = 20'000;
constexpr char kServe[] = "eps_server/shell/testing/serve_for_test";
constexpr char kListening[] = "eps serve: listening on ";

}  // namespace

ServeProcess::ServeProcess(const std::string& listen, const std::vector<std::string>& arguments) {
  int out[2];
  EPS_CHECK(pipe2(out, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  std::vector<std::string> words = {kServe, listen};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  EPS_CHECK(posix_spawn(&pid_, kServe, &actions, nullptr, argv.data(), environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  out_ = out[0];
}

ServeProcess::~ServeProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(out_);
}

std::string ServeProcess::Line() {
  std::string line;
  char c = 0;
  pollfd poll_fd{out_, POLLIN, 0};
  while (poll(&poll_fd, 1, kTimeoutMs) > 0 && read(out_, &c, 1) == 1 && c != '\n') line += c;
  return line;
}

std::string ServeProcess::Address() {
  const std::string line = Line();
  EPS_CHECK_MSG(line.find(kListening) == 0, "the first line is \"" << line << "\"");
  return line.substr(sizeof(kListening) - 1);
}

void ServeProcess::Signal(int signal) { kill(pid_, signal); }

int ServeProcess::Wait() {
  // The pipe closes when the process ends.
  char c = 0;
  pollfd poll_fd{out_, POLLIN, 0};
  do {
    if (poll(&poll_fd, 1, kTimeoutMs) <= 0) return -1000;
  } while (read(out_, &c, 1) == 1);
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void ServeProcess::ResetPeak() {
  std::ofstream("/proc/" + std::to_string(pid_) + "/clear_refs") << "5";
}

uint64_t ServeProcess::MemoryOf(const std::string& key) const {
  std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
  for (std::string word; status >> word;) {
    uint64_t kib = 0;
    if (word == key && status >> kib) return kib << 10;
  }
  EPS_CHECK_MSG(false, "the server has ended");
  return 0;
}

}  // namespace eps
