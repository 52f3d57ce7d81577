#ifndef EPS_CLI_COMMANDS_JOBS_BOARD_H_
#define EPS_CLI_COMMANDS_JOBS_BOARD_H_

// The parts that the commands about jobs on the board share: `eps submit`, `eps job`, `eps driver`.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "eps/v1/scheduler.pb.h"
#include "nlohmann/json.hpp"
#include "wire/scheduler_client.h"

namespace CLI {
class App;
}  // namespace CLI

namespace eps {

// Where the board is, and the certificate to go there with.
struct BoardOptions {
  std::string servers;  // --servers
  SecurityConfig security;
};
// Adds --servers and the flags of the section `security`.
void AddBoardOptions(CLI::App* app, BoardOptions* options);

// Returns the addresses of --servers, or of EPS_SERVERS if that is empty; the first one is the
// lead. InvalidArgument if they are no addresses.
absl::StatusOr<std::vector<std::string>> ServersOfBoard(const std::string& servers);

// Gives this process its certificate and connects to the lead. Unavailable if it does not answer
// within five seconds. Call it once.
absl::StatusOr<std::unique_ptr<SchedulerClient>> ConnectToBoard(const BoardOptions& options);

// Returns a job of the board. NotFound with the nearest name.
absl::StatusOr<v1::Job> FindOnBoard(SchedulerClient* board, const std::string& name);

// Returns a job as a JSON object, and as lines of text for people.
nlohmann::ordered_json BoardJobJson(const v1::Job& job);
std::string BoardJobText(const v1::Job& job);
// Returns one line about a job: name, phase, step, and what is unusual.
std::string BoardJobLine(const v1::Job& job);
// Returns the lines of jobs under a line of headings.
std::string BoardJobTable(const v1::ListJobsReply& board);

// Returns the end of a job as the status of a command: OK if it succeeded or has not ended, else
// its error with its exit code.
absl::Status EndOfBoardJob(const v1::Job& job);

// Reads `job` again until `reached` holds for it, and returns it. A lead that is away for a short
// time is waited for. DeadlineExceeded after `timeout_seconds`, unless that is 0; NotFound if the
// job is removed.
absl::StatusOr<v1::Job> AwaitBoardJob(SchedulerClient* board, const v1::Job& job,
                                      uint64_t timeout_seconds,
                                      const std::function<bool(const v1::Job&)>& reached);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_JOBS_BOARD_H_
