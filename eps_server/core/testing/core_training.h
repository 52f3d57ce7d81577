#ifndef EPS_SERVER_CORE_TESTING_CORE_TRAINING_H_
#define EPS_SERVER_CORE_TESTING_CORE_TRAINING_H_

// A job on a CoreCluster, and a worker that brings it to its end whichever processes die on the
// way. For tests; for one thread.

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

// Owns the cluster and the one worker, which hosts all parts and retries until it is acknowledged.
class CoreTraining {
 public:
  static constexpr uint64_t kTokens = 100;

  // The visible results of a run; they are equal for all runs of a job.
  struct Outcome {
    // Digest of weights and optimizer state, then loss, norm and loss scale of each step that the
    // lead recorded.
    std::string digest;
    // By version and chunk: CRC32C of the weights that a fetch returned. Holds only fetched chunks.
    std::map<std::pair<uint64_t, uint32_t>, uint32_t> served;
  };

  // With `fetches`, the worker also fetches the weights of each step. In a job with
  // training.precision=cmp, gradients overflow where the loss scale is too high for the step.
  CoreTraining(const JobSpec& spec, const CoreCluster::Options& options, bool fetches = false);

  CoreCluster& cluster() { return cluster_; }

  // Brings the job to its end. Calls `between` between all actions; it may kill and restart shards.
  // Internal, with the state of the job, if the job failed or is not done after `rounds` rounds.
  absl::Status Finish(const std::function<void()>& between, int rounds = 10'000);
  // Imports the initial weights into every shard.
  void Import();
  // Sends BeginStep to every shard and delivers until all have answered; returns false if they do
  // not within 1,000 deliveries. Does not drain other deliveries.
  bool Begin(uint64_t step);

  // Reports the losses of all parts in a step. Returns false if the lead does not answer.
  bool ReportLosses(uint64_t step);

  // Delivers everything in flight and returns the results. REQUIRES that Finish returned OK.
  Outcome End();
  // Returns DataLoss with the first chunk that was served with two contents, or not as in
  // `expected`.
  absl::Status CheckServed(const Outcome& expected) const;

  // Returns whether the processes of all shards are up.
  bool AllUp() const;
  // Replaces the worker with a new one, which takes over its parts without its memory. Whatever the
  // old worker was about to send is never sent.
  void ReplaceWorker() { joined_ = {0, 0}; }

 private:
  // Sends the request of all parts about `step` to every shard that has not completed it; a report
  // only to the lead, a probe to all.
  std::vector<StreamId> SendToAll(v1::BeginStepRequest request, uint64_t step = 0);
  // Delivers until all streams are answered. Returns false if they are not.
  bool Await(const std::vector<StreamId>& streams);
  // Learns the open step of every shard. Returns false if one does not answer.
  bool Probe();
  void FetchOldWeights(uint64_t step);
  void Step(const std::function<void()>& between);
  // Joins at the lead unless the worker has joined in this term. Returns false if the lead does not
  // answer.
  bool Join();
  // Repeats contributions to the shards that lag by a step. Returns the status of the furthest
  // shard.
  v1::StatusReply CatchUp(const std::function<void()>& between);
  // Sends all contributions of a step to that shard, or to all if null. Returns false if a residual
  // cannot be read, or the worker was replaced.
  bool PushAll(uint64_t step, uint64_t version, const ShardId* only_or_null,
               const std::function<void()>& between);
  // Fetches all chunks at a version, without waiting for the answers.
  void FetchAll(uint64_t version);
  // Adds the answered fetches to the results.
  void NoteServed();
  // Gives the gradient of a step its loss scale, or makes it overflow.
  void ScaleLoss(uint64_t step, ChunkId chunk, uint32_t part, std::vector<float>* gradient);
  // Reads the part's residual of the chunk and derives the scale of its gradient. Returns false if
  // the fetch fails or is not answered.
  bool ReadResidual(StageId use, uint32_t part, ChunkId chunk, uint64_t version, float* scale);
  // Describes the status of every shard, for messages.
  std::string Where();

  CoreCluster cluster_;
  const bool fetches_;
  const CodecTable codecs_;
  std::pair<uint64_t, uint64_t> joined_;  // by the worker: term and first step; 0 if it has to join
  std::vector<v1::BeginStepReply> open_;  // by shard: the answers to the worker's probes
  uint64_t nonce_ = 1000;                 // names that worker; Disorder has lower ones
  std::pair<uint64_t, uint64_t> begun_;   // term and step of the last BeginStep that all answered
  uint64_t version_ = 0;                  // of the weights that the open step reads
  std::map<uint64_t, int> loss_scale_log2_;  // by step: of BeginStepReply
  std::pair<uint64_t, uint64_t> fetched_;    // term and step of the last FetchAll
  std::map<uint64_t, std::pair<uint64_t, uint32_t>> fetching_;  // by tag: version and chunk
  Outcome outcome_;
  absl::Status served_;  // the first chunk that was served with two contents
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TESTING_CORE_TRAINING_H_
