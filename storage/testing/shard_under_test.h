#ifndef EPS_STORAGE_TESTING_SHARD_UNDER_TEST_H_
#define EPS_STORAGE_TESTING_SHARD_UNDER_TEST_H_

// For tests of every kind of backend: a backend over a job's whole state, gradients for it, and a
// chunk's state that is updated with plain loops. For one thread.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/executor.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/memory_account.h"
#include "compression/codec.h"
#include "optimizer/update_request.h"
#include "storage/requests.h"
#include "storage/state_backend.h"
#include "storage/testing/backend_harness.h"
#include "storage/testing/backends_under_test.h"

namespace eps {

using Gradients = std::vector<std::vector<std::vector<float>>>;  // [use][part][element]

// Returns gradients over many binades, with zeros and denormals, so that sums depend on their
// order.
Gradients GradientsOf(const Chunk& chunk, uint64_t step, uint32_t parts);

// Returns the scalars of update `t`.
StepScalars StepAt(uint64_t t);

// Encodes a gradient as a worker would send it.
std::shared_ptr<const EncodedChunk> OpenGradient(absl::string_view codec_name, const Chunk& chunk,
                                                 const std::vector<float>& values,
                                                 MemoryAccount* account);

// One chunk's state, updated with plain loops over elements.
class PlainState {
 public:
  // `state`: as ReadStateRequest returns it.
  PlainState(const std::string& state, uint64_t elements);

  // Makes the update of RequestOf. Returns the sum of squares.
  double Update(const JobSpec& spec, const Chunk& chunk, const Gradients& gradients,
                const StepScalars& step);

  // Returns the state as ReadStateRequest returns it.
  std::string Bytes() const;
  // The weights, then the fields of the rule.
  const std::vector<std::vector<float>>& arrays() const { return arrays_; }

 private:
  void Step(const JobSpec& spec, double weight_decay, const StepScalars& step, float gradient,
            uint64_t e);
  void StepOfSgd(const OptimizerSpec& o, float weight_decay, const StepScalars& step,
                 float gradient, uint64_t e);

  std::vector<std::vector<float>> arrays_;
};

// A backend over a job's whole state. Owns all that the backend needs.
class ShardUnderTest {
 public:
  // `status` tells whether the backend was made. `memory_limit`: in bytes.
  ShardUnderTest(const BackendUnderTest& kind, const JobSpec& spec, int threads,
                 uint64_t memory_limit = MemoryAccount::kNoLimit);

  const absl::Status& status() const { return status_; }
  const JobSpec& spec() const { return spec_; }
  const ChunkMap& chunks() const { return chunks_; }
  MemoryAccount& account() { return account_; }
  Completions& completions() { return completions_; }
  void DropBackend() { backend_.reset(); }

  // Begins an operation under the next id, and returns the id.
  OpId Submit(Request request);
  // Performs one operation.
  BackendDone Await(Request request) { return completions_.Take(Submit(std::move(request))); }

  void InitializeAll();
  absl::StatusOr<std::string> State(ChunkId chunk, Version version);
  absl::Status Write(ChunkId chunk, Version version, const std::string& state);
  // Encodes a gradient as a worker would send it, charged to `account`.
  std::shared_ptr<const EncodedChunk> Encode(const Chunk& chunk, const std::vector<float>& values,
                                             absl::string_view codec_name = "fp32");

 private:
  const JobSpec spec_;
  const ChunkMap chunks_;
  MemoryAccount account_;
  Completions completions_;
  ThreadPool pool_;
  absl::Status status_;
  std::unique_ptr<StateBackend> backend_;
};

// kRandom merges contributions at random nodes of the tree over parts, as merging workers may do.
enum class Merging { kNone, kRandom };

// Returns the request of a step with its inputs in a scrambled order.
UpdateRequest RequestOf(ShardUnderTest* shard, const Chunk& chunk, const Gradients& gradients,
                        uint64_t step, Merging merging);

}  // namespace eps

#endif  // EPS_STORAGE_TESTING_SHARD_UNDER_TEST_H_
