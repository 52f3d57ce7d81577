#ifndef EPS_CLI_MEASURE_WORKER_ANSWER_H_
#define EPS_CLI_MEASURE_WORKER_ANSWER_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace eps {

// Runs eps-worker, the program beside this one, with a command that measures ("calibrate", "step")
// and its arguments, and returns the object that it prints. NotFound without the program;
// DeadlineExceeded after `timeout`; else the program's failure, with the end of its log in
// `folder`.
absl::StatusOr<nlohmann::json> AskWorker(const std::string& command,
                                         const std::vector<std::string>& arguments,
                                         const std::string& folder, std::chrono::minutes timeout);

}  // namespace eps

#endif  // EPS_CLI_MEASURE_WORKER_ANSWER_H_
