#include "storage/csd/process/child.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace eps::csd {
namespace {

// Above the descriptors that the child gets, so that none of them is overwritten while it is set.
constexpr int kAboveLanes = kFirstLane + kLaneCount;
constexpr std::chrono::milliseconds kUsualGrace{2000};

absl::Status SystemError(const char* call, int error) {
  return absl::InternalError(absl::StrCat(call, ": ", std::strerror(error)));
}

// Starts the program with the sockets as its lanes.
absl::StatusOr<pid_t> Spawn(const std::string& program, const std::vector<std::string>& arguments,
                            const std::vector<Descriptor>& lanes) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  int error = 0;
  for (size_t i = 0; i < lanes.size() && error == 0; ++i) {
    error = posix_spawn_file_actions_adddup2(&actions, lanes[i].get(),
                                             kFirstLane + static_cast<int>(i));
  }
  if (error == 0) error = posix_spawn_file_actions_addclosefrom_np(&actions, kAboveLanes);
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  if (error == 0)
    error = posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT) return absl::NotFoundError(absl::StrCat("there is no program ", program));
  if (error != 0) return SystemError(absl::StrCat("starting ", program).c_str(), error);
  return pid;
}

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status)) {
    return absl::StrCat("was ended by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)),
                        ")");
  }
  return absl::StrCat("ended with exit code ", WEXITSTATUS(status));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Child>> Child::Start(const std::string& program,
                                                    const std::vector<std::string>& arguments) {
  std::unique_ptr<Child> child(new Child);
  std::vector<Descriptor> lanes;
  for (Descriptor& own : child->sockets_) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      return SystemError("socketpair", errno);
    }
    own = Descriptor(ends[0]);
    const Descriptor theirs(ends[1]);
    lanes.emplace_back(fcntl(theirs.get(), F_DUPFD_CLOEXEC, kAboveLanes));
    if (!lanes.back().ok()) return SystemError("F_DUPFD_CLOEXEC", errno);
  }
  EPS_ASSIGN_OR_RETURN(child->pid_, Spawn(program, arguments, lanes));
  return child;
}

Child::~Child() {
  if (pid_ > 0) End(kUsualGrace);
}

std::string Child::End(std::chrono::milliseconds grace) {
  const auto deadline = std::chrono::steady_clock::now() + grace;
  for (const Descriptor& socket : sockets_) shutdown(socket.get(), SHUT_RDWR);
  MutexLock lock(&mu_);
  if (!end_.empty()) return end_;
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() >= deadline) {
      kill(pid_, SIGKILL);
      waitpid(pid_, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  end_ = HowItEnded(status);
  return end_;
}

}  // namespace eps::csd
