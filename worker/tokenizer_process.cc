#include "worker/tokenizer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

extern char** environ;

namespace eps {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;

constexpr char kModule[] = "eps_models.tokens";

// The words and variables of a process, as exec takes them.
class Strings {
 public:
  explicit Strings(std::vector<std::string> texts) : texts_(std::move(texts)) {
    for (std::string& text : texts_) pointers_.push_back(text.data());
    pointers_.push_back(nullptr);
  }
  char* const* get() const { return pointers_.data(); }

 private:
  std::vector<std::string> texts_;
  std::vector<char*> pointers_;
};

// Returns this process's variables with those of `tools` instead.
std::vector<std::string> EnvironmentFor(const PythonTools& tools) {
  std::vector<std::string> variables = tools.environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const absl::string_view name =
        absl::string_view(*variable).substr(0, absl::string_view(*variable).find('=') + 1);
    const bool replaced =
        std::any_of(tools.environment.begin(), tools.environment.end(),
                    [&](const std::string& other) { return absl::StartsWith(other, name); });
    if (!replaced) variables.push_back(*variable);
  }
  return variables;
}

// Runs in the child: only calls that are safe after a fork.
[[noreturn]] void BecomeTool(const char* interpreter, char* const* words, char* const* variables,
                             int socket, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it ended before the call
  dup2(socket, STDIN_FILENO);
  dup2(socket, STDOUT_FILENO);
  execvpe(interpreter, words, variables);
  _exit(127);
}

std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenizerProcess>> TokenizerProcess::Start(
    const PythonTools& tools, const std::string& folder, std::chrono::milliseconds start,
    std::chrono::milliseconds answer) {
  // A socket, because a write to a process that has ended then fails without a signal.
  std::array<int, 2> ends;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return absl::InternalError(absl::StrCat("cannot make a socket: ", std::strerror(errno)));
  }
  Descriptor ours(ends[0]), theirs(ends[1]);
  const Strings words({tools.interpreter, "-m", kModule, folder});
  const Strings variables(EnvironmentFor(tools));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    return absl::InternalError(absl::StrCat("cannot start a process: ", std::strerror(errno)));
  }
  if (pid == 0) {
    BecomeTool(tools.interpreter.c_str(), words.get(), variables.get(), theirs.get(), parent);
  }
  theirs = Descriptor();
  std::unique_ptr<TokenizerProcess> process(new TokenizerProcess(pid, std::move(ours), answer));
  EPS_RETURN_IF_ERROR(process->ReadAnswer("ready", start).status());
  return process;
}

TokenizerProcess::~TokenizerProcess() {
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

absl::StatusOr<std::string> TokenizerProcess::ReadLine(std::chrono::milliseconds limit) {
  const auto deadline = steady_clock::now() + limit;
  for (;;) {
    const size_t end = pending_.find('\n');
    if (end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - steady_clock::now());
    pollfd wait = {socket_.get(), POLLIN, 0};
    const int ready = poll(&wait, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      return absl::DeadlineExceededError(
          absl::StrCat("the tokenizer's process has not answered for ", limit.count(),
                       " ms; use --prompt-ids to do without it"));
    }
    std::array<char, 4096> block;
    const ssize_t count = read(socket_.get(), block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      return absl::UnavailableError(
          "the tokenizer's process ended; its messages are above, or use --prompt-ids");
    }
    pending_.append(block.data(), static_cast<size_t>(count));
  }
}

absl::StatusOr<json> TokenizerProcess::ReadAnswer(const char* key,
                                                  std::chrono::milliseconds limit) {
  EPS_ASSIGN_OR_RETURN(const std::string line, ReadLine(limit));
  json answer = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (answer.is_object() && answer.contains(key)) return std::move(answer[key]);
  const std::string reason =
      answer.is_object() && answer.contains("error")
          ? Dump(answer["error"])
          : absl::StrCat("an answer without ", key, ": ", line.substr(0, 200));
  return absl::InvalidArgumentError(absl::StrCat("the tokenizer of --model: ", reason));
}

absl::StatusOr<json> TokenizerProcess::Ask(const json& request, const char* key) {
  const std::string line = Dump(request) + "\n";
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t count = send(socket_.get(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return absl::UnavailableError(
          absl::StrCat("the tokenizer's process ended: ", std::strerror(errno)));
    }
    sent += static_cast<size_t>(count);
  }
  return ReadAnswer(key, answer_);
}

absl::StatusOr<std::vector<int32_t>> TokenizerProcess::AskIds(const json& request) {
  EPS_ASSIGN_OR_RETURN(const json ids, Ask(request, "ids"));
  std::vector<int32_t> result;
  for (const json& id : ids) {
    if (!id.is_number_integer()) {
      return absl::InternalError("the tokenizer's process answered with something else than ids");
    }
    result.push_back(id.get<int32_t>());
  }
  return result;
}

absl::StatusOr<std::vector<int32_t>> TokenizerProcess::Encode(absl::string_view text) {
  return AskIds({{"encode", std::string(text)}});
}

absl::StatusOr<std::vector<int32_t>> TokenizerProcess::EncodeChat(absl::string_view message) {
  const json user = {{"role", "user"}, {"content", std::string(message)}};
  return AskIds({{"chat", json::array({user})}});
}

absl::StatusOr<std::string> TokenizerProcess::Decode(const std::vector<int32_t>& ids) {
  EPS_ASSIGN_OR_RETURN(const json text, Ask({{"decode", ids}}, "text"));
  if (!text.is_string()) {
    return absl::InternalError("the tokenizer's process answered with something else than text");
  }
  return text.get<std::string>();
}

}  // namespace eps
