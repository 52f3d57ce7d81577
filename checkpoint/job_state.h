#ifndef EPS_CHECKPOINT_JOB_STATE_H_
#define EPS_CHECKPOINT_JOB_STATE_H_

// A job at a border, wherever it is kept, and the two ways to keep it: as a checkpoint folder
// (docs/formats/checkpoint.md), and as a state folder, the data directories of some number of
// servers (docs/durability.md). No server or worker is needed.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "wire/control_client.h"
#include "base/job/chunk_map.h"
#include "base/job/job_spec.h"
#include "storage/cuts/cut.h"

namespace eps {

// What a job state says beside tensors.
struct JobStateHead {
  JobSpec spec;
  CutBorder border;
  Term promised;         // no earlier term may be served
  uint32_t servers = 0;  // that it was kept by; 0: not known
  std::string config;    // as YAML (eps config print); empty: not known
  // v1::StepRecord messages of the steps up to the border, as the lead has them; none if not known.
  std::vector<std::string> records;
};

// Where to read a job at a border from. What is read was checked to the last byte; DataLoss names
// the file that is damaged. Immutable; thread-compatible.
class JobState {
 public:
  virtual ~JobState() = default;
  const JobStateHead& head() const { return head_; }
  const ChunkMap& chunks() const { return chunks_; }
  // Ascending: the chunks of one of `servers` servers.
  std::vector<ChunkId> ChunksOf(ShardId shard, uint32_t servers) const;

  virtual absl::StatusOr<ChunkState> ReadChunk(ChunkId chunk) const = 0;
  // What sparse gradients left out of some chunks (ascending).
  virtual absl::StatusOr<std::vector<CutResidual>> ReadResiduals(
      const std::vector<ChunkId>& chunks) const = 0;
  // What of it is not there; empty: all of it is.
  virtual std::string note() const { return ""; }

 protected:
  explicit JobState(JobStateHead head)
      : head_(std::move(head)), chunks_(ChunkMap::Build(head_.spec)) {}

 private:
  const JobStateHead head_;
  const ChunkMap chunks_;
};

// Of a checkpoint folder, all of whose sums are checked first. Errors as CheckpointReader::Open.
absl::StatusOr<std::unique_ptr<JobState>> OpenCheckpointState(const std::string& folder);

// Writes `root`/checkpoint-<step> with all that the head has, and returns its path. Errors as
// CheckpointWriter.
absl::StatusOr<std::string> SaveCheckpoint(const JobState& state, const std::string& root);

// What WriteStateFolder is going to write.
struct StatePlan {
  struct Server {
    std::string folder;
    uint64_t chunks = 0;
    uint64_t bytes = 0;
  };
  std::vector<Server> servers;
  uint64_t bytes = 0;
  uint64_t free_bytes = 0;  // on the disk of the folder
};
// AlreadyExists if there is something at `out`.
absl::Status CheckIsNew(const std::string& out);
// Looks, and writes nothing. Errors as CheckIsNew; InvalidArgument if a server would hold nothing.
absl::StatusOr<StatePlan> PlanStateFolder(const JobState& state, uint32_t servers,
                                          const std::string& out);
// ResourceExhausted if it does not fit, with both figures.
absl::Status CheckFits(const StatePlan& plan, const std::string& out);

// The state as that of `servers` servers with one cut, from which `eps train` goes on with the same
// bits. `out` appears whole or not at all; memory holds some chunks, and what sparse gradients left
// out at one server. Errors as PlanStateFolder and CheckFits, which it calls, and as
// DurableStorage's.
absl::Status WriteStateFolder(const JobState& state, uint32_t servers, const std::string& out);

// Where `eps train` keeps the configuration of a job beside its servers' data directories.
std::string JobConfigFile(const std::string& state_folder, JobId job);

// eps/step_records.bin: each record behind its length in 4 bytes, little-endian.
inline constexpr char kRecordsFile[] = "eps/step_records.bin";
std::string JoinRecords(const std::vector<std::string>& records);
// DataLoss with the offset of what is not a record.
absl::StatusOr<std::vector<std::string>> SplitRecords(absl::string_view text);

}  // namespace eps

#endif  // EPS_CHECKPOINT_JOB_STATE_H_
