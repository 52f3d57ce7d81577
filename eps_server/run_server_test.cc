// Tests RunServer in a process of its own: its output and its exit codes.

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>

#include "base/testing/test_specs.h"
#include "eps_server/rpc/testing/test_client.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr int kTimeoutMs = 20'000;
constexpr char kServe[] = "eps_server/shell/testing/serve_for_test";

// A process that runs serve_for_test. The destructor kills it.
class ServeProcess {
 public:
  explicit ServeProcess(const std::string& listen) {
    int out[2];
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::string program = kServe;
    std::string address = listen;
    char* argv[] = {program.data(), address.data(), nullptr};
    EXPECT_EQ(posix_spawn(&pid_, kServe, &actions, nullptr, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    out_ = out[0];
  }
  ~ServeProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(out_);
  }

  // Returns the next line of its output; empty at the end of the output or after the timeout.
  std::string Line() {
    std::string line;
    char c = 0;
    pollfd poll_fd{out_, POLLIN, 0};
    while (poll(&poll_fd, 1, kTimeoutMs) > 0 && read(out_, &c, 1) == 1 && c != '\n') line += c;
    return line;
  }
  void Signal(int signal) { kill(pid_, signal); }
  // Returns its exit code, minus the number of the signal that ended it, or -1000 after the
  // timeout.
  int Wait() {
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

 private:
  pid_t pid_ = 0;
  int out_ = -1;
};

constexpr char kListening[] = "eps serve: listening on ";

std::string AddressIn(const std::string& line) {
  EXPECT_EQ(line.find(kListening), 0u) << line;
  return line.substr(sizeof(kListening) - 1);
}

TEST(RunServer, PrintsAddressAndExitsZeroOnSigterm) {
  ServeProcess process("127.0.0.1:0");
  const std::string address = AddressIn(process.Line());
  // A job and a stream that would stay open forever.
  TestClient client(address);
  const JobSpec spec = TinySyntheticSpec();
  ASSERT_TRUE(client.CreateJob(spec, {address}).ok());
  auto context = NewContext();
  auto push = client.data().Push(context.get());
  ASSERT_TRUE(client.Initialize(spec).ok());
  const auto start = std::chrono::steady_clock::now();
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
  v1::PushReply reply;
  EXPECT_FALSE(push->Read(&reply));
  EXPECT_EQ(push->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(RunServer, ExitsWith130OnSigint) {
  ServeProcess process("127.0.0.1:0");
  AddressIn(process.Line());
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(), 130);
}

TEST(RunServer, MapsErrorsToExitCodes) {
  ServeProcess first("127.0.0.1:0");
  const std::string address = AddressIn(first.Line());
  ServeProcess taken(address);
  EXPECT_EQ(taken.Line(), "");
  EXPECT_EQ(taken.Wait(), 69) << "unavailable";
  ServeProcess open_to_all("0.0.0.0:0");
  EXPECT_EQ(open_to_all.Wait(), 77) << "not allowed";
  ServeProcess nonsense("nonsense");
  EXPECT_EQ(nonsense.Wait(), 64) << "usage";
}

}  // namespace
}  // namespace eps
