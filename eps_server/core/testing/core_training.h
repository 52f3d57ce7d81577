#ifndef EPS_SERVER_CORE_TESTING_CORE_TRAINING_H_
#define EPS_SERVER_CORE_TESTING_CORE_TRAINING_H_

// A job on a CoreCluster and a worker that brings it to its end whatever dies on the way. For
// tests; for one thread.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "compression/codec_table.h"
#include "eps_server/core/testing/core_cluster.h"

namespace eps {

class CoreTraining {
 public:
  static constexpr uint64_t kTokens = 100;

  // What there is to see of a run: equal for all runs of a job.
  struct Outcome {
    std::string
        digest;  // weights and optimizer state, then what the lead has recorded of each step
    // By version and chunk: CRC32C of the weights that a fetch gave. Only of what was fetched.
    std::map<std::pair<uint64_t, uint32_t>, uint32_t> served;
  };

  // `fetches`: the worker fetches the weights of each step, too.
  CoreTraining(const JobSpec& spec, const CoreCluster::Options& options, bool fetches = false);

  CoreCluster& cluster() { return cluster_; }

  // Brings the job to its end; `between` is called all the time, and may kill and restart shards.
  // Internal says where the job stands if it is not there after that many rounds, or failed.
  absl::Status Finish(const std::function<void()>& between, int rounds = 10'000);
  // Imports the initial weights everywhere.
  void Import();
  // BeginStep everywhere, until all have answered or nobody does for a while. What is under way
  // beside it stays under way.
  bool Begin(uint64_t step);

  // REQUIRES Finish. Delivers all that is under way first.
  Outcome End();
  // What was served in two versions, or otherwise than `expected` says; OK if nothing was.
  absl::Status CheckServed(const Outcome& expected) const;

  bool AllUp() const;
  // The worker ends, and another one takes over its parts, without what it knew. Anything that it
  // was about to say is never said.
  void ReplaceWorker() { joined_ = {0, 0}; }

 private:
  std::vector<v1::PartLoss> Losses(uint64_t step) const;
  void Step(const std::function<void()>& between);
  // Asks the lead at which step to begin, where that is not known; false: nobody answers.
  bool Join();
  // Says again, to shards behind the others, what these were told; the status of one that is not.
  v1::StatusReply CatchUp(const std::function<void()>& between);
  // All contributions of a step to that shard, or to all; false: nobody answers.
  bool PushAll(uint64_t step, uint64_t version, const ShardId* only_or_null,
               const std::function<void()>& between);
  void FetchAll(uint64_t version);
  void NoteServed();
  // What the part's residuals of the chunk make of its gradient; false: nobody answers.
  bool ReadResidual(StageId use, uint32_t part, ChunkId chunk, uint64_t version, float* scale);
  std::string Where();

  CoreCluster cluster_;
  const bool fetches_;
  const CodecTable codecs_;
  std::pair<uint64_t, uint64_t> joined_;   // the worker: term, and the step it was given
  uint64_t nonce_ = 0;                     // of that worker
  std::pair<uint64_t, uint64_t> begun_;    // term and step that all shards answered last
  uint64_t version_ = 0;                   // that it reads
  std::pair<uint64_t, uint64_t> fetched_;  // term and step
  std::map<uint64_t, std::pair<uint64_t, uint32_t>> fetching_;  // by tag: version and chunk
  Outcome outcome_;
  absl::Status served_;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TESTING_CORE_TRAINING_H_
