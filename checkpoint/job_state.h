#ifndef EPS_CHECKPOINT_JOB_STATE_H_
#define EPS_CHECKPOINT_JOB_STATE_H_

// A job at a border, and the two forms in which it is stored: a checkpoint folder
// (docs/formats/checkpoint.md) and a state folder, the data directories of some number of servers
// (docs/durability.md). Needs no server or worker.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "checkpoint/checkpoint.h"
#include "storage/cuts/cut.h"
#include "wire/control_client.h"

namespace eps {

// A job's state without its tensors.
struct JobStateHead {
  JobSpec spec;
  CutBorder border;
  Term promised;         // servers must not serve an earlier term
  uint32_t servers = 0;  // that stored the state; 0 if unknown
  std::string config;    // YAML (eps config print); empty if unknown
  // The lead's v1::StepRecord messages of the steps up to the border; empty if unknown.
  std::vector<std::string> records;
};

// A job at a border, to read from. Everything read is checked to the last byte; DataLoss names the
// damaged file. Immutable; thread-compatible.
class JobState {
 public:
  virtual ~JobState() = default;
  const JobStateHead& head() const { return head_; }
  const ChunkMap& chunks() const { return chunks_; }
  // Returns the chunks of one of `servers` servers, in ascending order.
  std::vector<ChunkId> ChunksOf(ShardId shard, uint32_t servers) const;

  virtual absl::StatusOr<ChunkState> ReadChunk(ChunkId chunk) const = 0;
  // Returns the residuals of sparse gradients of some chunks, which must be in ascending order.
  virtual absl::StatusOr<std::vector<CutResidual>> ReadResiduals(
      const std::vector<ChunkId>& chunks) const = 0;
  // Says which part of the state is missing; empty if none is.
  virtual std::string note() const { return ""; }

 protected:
  explicit JobState(JobStateHead head)
      : head_(std::move(head)), chunks_(ChunkMap::Build(head_.spec)) {}

 private:
  const JobStateHead head_;
  const ChunkMap chunks_;
};

// Opens a checkpoint folder after checking all its checksums. Errors as CheckpointReader::Open.
absl::StatusOr<std::unique_ptr<JobState>> OpenCheckpointState(const std::string& folder);

// Returns the files of a checkpoint that hold no tensors, with everything in the head. DataLoss if
// a record is damaged.
absl::StatusOr<SmallFiles> FilesOf(const JobStateHead& head);

// Writes `root`/checkpoint-<step> with everything in the head, and returns its path. Errors as
// CheckpointWriter.
absl::StatusOr<std::string> SaveCheckpoint(const JobState& state, const std::string& root);

// The files that WriteStateFolder would write.
struct StatePlan {
  // One folder of the plan.
  struct Server {
    std::string folder;
    uint64_t chunks = 0;
    uint64_t bytes = 0;
  };
  std::vector<Server> servers;
  uint64_t bytes = 0;
  uint64_t free_bytes = 0;  // on the disk of the folder
};
// AlreadyExists if `out` exists.
absl::Status CheckIsNew(const std::string& out);
// Plans a state folder and writes nothing. Errors as CheckIsNew; InvalidArgument if a server would
// hold nothing.
absl::StatusOr<StatePlan> PlanStateFolder(const JobState& state, uint32_t servers,
                                          const std::string& out);
// ResourceExhausted, with both figures, if the plan does not fit on the disk.
absl::Status CheckFits(const StatePlan& plan, const std::string& out);

// Writes the state as `servers` servers with one cut would have it; `eps train` goes on from it
// with the same bits. `out` appears complete or not at all. Some chunks and the residuals of one
// server are in memory at a time. Errors as PlanStateFolder and CheckFits, which it calls, and as
// DurableStorage.
absl::Status WriteStateFolder(const JobState& state, uint32_t servers, const std::string& out);

// Returns the path where `eps train` keeps a job's configuration, next to its servers' data
// directories.
std::string JobConfigFile(const std::string& state_folder, JobId job);

// eps/step_records.bin holds each record after its length in 4 bytes, little-endian.
inline constexpr char kRecordsFile[] = "eps/step_records.bin";
std::string JoinRecords(const std::vector<std::string>& records);
// DataLoss names the offset of bytes that are not a record.
absl::StatusOr<std::vector<std::string>> SplitRecords(absl::string_view text);

}  // namespace eps

#endif  // EPS_CHECKPOINT_JOB_STATE_H_
