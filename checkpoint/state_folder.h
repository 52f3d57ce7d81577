#ifndef EPS_CHECKPOINT_STATE_FOLDER_H_
#define EPS_CHECKPOINT_STATE_FOLDER_H_

// The data directories of a job's servers as durable ones of either kind leave them, looked at
// without servers: nothing in them is changed, no term promised, no cut removed, but by Remove.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/job_state.h"
#include "storage/backends/durable_storage.h"
#include "storage/cuts/catalogue.h"

namespace eps {

// Whether it is the data directory of a server, or there is a folder server-K below that is one.
bool IsStateFolder(const std::string& path);

// Whether StateFolder::Remove removes a job that a server opens again when it is started.
enum class RemoveServed { kRefuse, kRemove };

// Keeps the folders of all servers locked as long as it lives. Thread-compatible.
class StateFolder {
 public:
  // NotFound unless IsStateFolder; FailedPrecondition if a server is using one of the folders.
  static absl::StatusOr<std::unique_ptr<StateFolder>> Open(const std::string& path);

  // The youngest cut that all shards of a job have, as the servers would find it after a crash. The
  // folder outlives the state. `job` may be left out if there is only one. NotFound without such a
  // job; FailedPrecondition if shards are missing or do not belong together, or without a common
  // cut, with what each of them has; DataLoss names the file that is damaged.
  absl::StatusOr<std::unique_ptr<JobState>> OpenCut(std::optional<JobId> job) const;

  // Jobs with what each server has of them, and what removed ones have left, as text.
  absl::StatusOr<std::string> Table() const;

  // Removes a job from all servers, or what an interrupted removal has left of it, and returns how
  // many bytes that frees. All servers are asked before the first one loses anything; then each
  // forgets the job before its folder goes. NotFound if there is nothing of it;
  // FailedPrecondition for one that is served; errors as RemoveJob of storage/cuts/job_folders.h.
  absl::StatusOr<uint64_t> Remove(JobId job, RemoveServed served);

 private:
  struct Server {
    std::string folder;
    std::unique_ptr<DurableStorage> storage;
  };
  // One server's part of a job.
  struct Part {
    const Server* server = nullptr;
    CatalogueJob job;
    std::vector<CatalogueCut> cuts;
  };

  // What is there without a job: folders, and configurations (JobConfigFile).
  struct Leftover {
    JobId job;
    std::string path;
    uint64_t bytes = 0;
  };

  explicit StateFolder(std::string path) : path_(std::move(path)) {}
  absl::StatusOr<std::vector<JobId>> Jobs() const;
  absl::StatusOr<std::vector<Leftover>> Leftovers(const std::vector<JobId>& jobs) const;
  absl::StatusOr<std::string> ShowJob(JobId job) const;
  static absl::StatusOr<std::string> ShowPart(const Part& part);
  absl::StatusOr<JobId> OnlyJob() const;
  absl::StatusOr<std::vector<Part>> PartsOf(JobId job) const;
  // By shard, all of them.
  absl::StatusOr<std::vector<Part>> WholeJob(JobId job) const;
  static absl::StatusOr<CutId> CommonCut(const std::vector<Part>& shards);

  const std::string path_;
  std::vector<Server> servers_;
};

}  // namespace eps

#endif  // EPS_CHECKPOINT_STATE_FOLDER_H_
