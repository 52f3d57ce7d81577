#ifndef EPS_CHECKPOINT_STATE_FOLDER_H_
#define EPS_CHECKPOINT_STATE_FOLDER_H_

// The data directories that durable servers leave, read without servers. Only Remove changes
// anything in them: no function promises a term or removes a cut.

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

// Returns whether `path`, or a folder server-K in it, is the data directory of a server.
bool IsStateFolder(const std::string& path);

// Whether StateFolder::Remove removes a job that a server would reopen when it starts.
enum class RemoveServed { kRefuse, kRemove };

// The folders of all servers, locked for the life of the object. Thread-compatible.
class StateFolder {
 public:
  // NotFound unless IsStateFolder(path); FailedPrecondition if a server uses one of the folders.
  static absl::StatusOr<std::unique_ptr<StateFolder>> Open(const std::string& path);

  // Opens the newest cut that all shards of a job have, which servers would recover to after a
  // crash. This object must outlive the result. `job` may be empty if there is only one job.
  // NotFound if there is no such job; FailedPrecondition, with the cuts of each shard, if shards
  // are missing, do not belong together or have no common cut; DataLoss names the damaged file.
  absl::StatusOr<std::unique_ptr<JobState>> OpenCut(std::optional<JobId> job) const;

  // Returns the job that the servers would reopen, if one of them has a cut of it; nullopt if there
  // is none, or if they would open different ones.
  absl::StatusOr<std::optional<JobId>> JobToReopen() const;

  // Reads every byte of all cuts. Adds a line to *report for each server's share of a cut that is
  // whole, and one for each damaged place, with its file. DataLoss if there is any.
  absl::Status Verify(std::string* report) const;

  // Returns text that lists each job with the share of each server, the leftovers of removed jobs,
  // and what was moved to lost+found.
  absl::StatusOr<std::string> Table() const;

  // Removes a job from all servers, or the leftovers of an interrupted removal, and returns the
  // bytes freed. Checks all servers before it changes the first; then removes the job from each
  // catalogue before its folder. NotFound if nothing of the job exists; FailedPrecondition if it is
  // served; other errors as RemoveJob of storage/cuts/job_folders.h.
  absl::StatusOr<uint64_t> Remove(JobId job, RemoveServed served);

  // Removes a folder in lost+found, which is named as in Table(), and returns the bytes freed.
  // NotFound if Table() does not list it.
  absl::StatusOr<uint64_t> RemoveLost(const std::string& path);

 private:
  // A folder below the state folder, and its storage.
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

  // A folder, or a configuration (JobConfigFile), that belongs to no job.
  struct Leftover {
    JobId job;
    std::string path;
    uint64_t bytes = 0;
  };

  // Something in the lost+found of the state folder or of a server.
  struct Lost {
    std::string path;
    uint64_t bytes = 0;
  };

  explicit StateFolder(std::string path) : path_(std::move(path)) {}
  absl::StatusOr<std::vector<JobId>> Jobs() const;
  absl::StatusOr<std::vector<Leftover>> Leftovers(const std::vector<JobId>& jobs) const;
  std::vector<Lost> AllLost() const;
  absl::StatusOr<std::string> ShowJob(JobId job) const;
  static absl::StatusOr<std::string> ShowPart(const Part& part);
  absl::StatusOr<JobId> OnlyJob() const;
  absl::StatusOr<std::vector<Part>> PartsOf(JobId job) const;
  // Returns all parts of the job, by shard.
  absl::StatusOr<std::vector<Part>> WholeJob(JobId job) const;
  static absl::StatusOr<CutId> CommonCut(const std::vector<Part>& shards);

  const std::string path_;
  std::vector<Server> servers_;
};

}  // namespace eps

#endif  // EPS_CHECKPOINT_STATE_FOLDER_H_
