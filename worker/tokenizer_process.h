#ifndef EPS_WORKER_TOKENIZER_PROCESS_H_
#define EPS_WORKER_TOKENIZER_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/descriptor.h"
#include "base/machine/python_tools.h"
#include "nlohmann/json.hpp"

namespace eps {

// The tokenizer of a model's folder, in a Python process (python/eps_models/tokens.py) that the
// kernel ends with the thread that started it. Every wait has a limit. Thread-compatible.
class TokenizerProcess {
 public:
  // How long the process may take to start, which loads transformers, and to answer.
  static constexpr std::chrono::seconds kStart{60};
  static constexpr std::chrono::seconds kAnswer{10};

  // Starts a process and waits until it is ready. NotFound without a Python or tokenizer;
  // DeadlineExceeded if it is not ready after `start`; the tool's own reason for other errors.
  static absl::StatusOr<std::unique_ptr<TokenizerProcess>> Start(
      const PythonTools& tools, const std::string& folder, std::chrono::milliseconds start = kStart,
      std::chrono::milliseconds answer = kAnswer);
  ~TokenizerProcess();
  TokenizerProcess(const TokenizerProcess&) = delete;
  TokenizerProcess& operator=(const TokenizerProcess&) = delete;

  // Returns the ids of a prompt, or of the prompt that asks the assistant to answer a message of
  // the user. Bytes that are not UTF-8 count as U+FFFD.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text);
  absl::StatusOr<std::vector<int32_t>> EncodeChat(absl::string_view message);
  absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids);

 private:
  TokenizerProcess(pid_t pid, Descriptor socket, std::chrono::milliseconds answer)
      : pid_(pid), socket_(std::move(socket)), answer_(answer) {}

  // Sends a request and returns the value of `key` in its answer.
  absl::StatusOr<nlohmann::json> Ask(const nlohmann::json& request, const char* key);
  absl::StatusOr<std::vector<int32_t>> AskIds(const nlohmann::json& request);
  // Reads the next line as an object and returns the value of `key`.
  absl::StatusOr<nlohmann::json> ReadAnswer(const char* key, std::chrono::milliseconds limit);
  absl::StatusOr<std::string> ReadLine(std::chrono::milliseconds limit);

  const pid_t pid_;
  const Descriptor socket_;  // its stdin and stdout
  const std::chrono::milliseconds answer_;
  std::string pending_;  // bytes after the last whole line
};

}  // namespace eps

#endif  // EPS_WORKER_TOKENIZER_PROCESS_H_
