#ifndef EPS_BASE_JOB_JOB_SPEC_H_
#define EPS_BASE_JOB_JOB_SPEC_H_

// The job spec: everything that defines the bits of a training run, and nothing else. Immutable
// once a job exists; every join and every cut checks its SHA-256. It is sent and stored as
// canonical text (docs/formats/job_spec.md), so that a refusal can name the first line that differs
// and any language can write one.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/checksum.h"
#include "base/ids.h"
#include "base/job/keys.h"
#include "base/job/layout.h"
#include "base/job/models/model_family.h"
#include "base/job/models/model_spec.h"
#include "base/job/names.h"
#include "base/job/schedule.h"
#include "base/numerics/loss_scale.h"

namespace eps {

// Raise it whenever the same spec would produce other bits than before.
inline constexpr int kNumericsVersion = 1;

// Bounds of a spec: a server can afford everything below them, and no product of values within them
// overflows uint64.
inline constexpr uint64_t kMaxSpecTextBytes = uint64_t{16} << 20;
inline constexpr uint64_t kMaxElements = uint64_t{1} << 48;  // over all tensors
inline constexpr uint64_t kMaxChunks = uint64_t{1} << 22;
inline constexpr uint64_t kMaxChunkUses = 2 * kMaxChunks;  // chunks, once per stage that uses them

struct JobSpec {
  std::string name;  // tells apart runs of equal settings
  ModelSpec model;
  std::vector<ParameterGroup> groups;
  std::vector<TensorSpec> tensors;
  std::vector<StageSpec> stages;  // in relay order; uses of a tensor are reduced in this order
  uint64_t chunk_elements = 0;    // target size of a chunk; never 0 in a valid spec
  OptimizerSpec optimizer;
  ScheduleSpec schedule;
  TrainingSpec training;
  DataSpec data;
  CodecSpec codecs;
  int numerics_version = kNumericsVersion;

  uint64_t total_elements() const;
  // Whether the tensor keeps its initial values, at every use.
  bool IsFrozen(TensorId tensor) const {
    return groups[tensors[tensor.value()].group.value()].frozen;
  }
  // The lowest stage that uses a tensor that is not frozen: a step's way down ends there. There is
  // one in a valid spec.
  StageId LowestTrainableStage() const;
  uint64_t samples_per_step() const {
    return uint64_t{training.micro_batch_size} * training.micro_batches * training.parts;
  }
  uint64_t tokens_per_step() const { return samples_per_step() * training.seq_len; }

  // Canonical text: "key = value" lines in a fixed order, floats as the shortest decimal that
  // reads back to the same double. Equal specs give equal text and equal text equal specs.
  std::string ToText() const;
  // Accepts only what ToText gives (any deviation is named with its line) and validates it.
  static absl::StatusOr<JobSpec> Parse(absl::string_view text);
  // Every rule a server relies on: sizes within limits, no overflow, ids in range, each tensor
  // used, legal mode. InvalidArgument names the key.
  absl::Status Validate() const;
  Sha256Digest Digest() const;  // of ToText()
  JobId id() const;             // first 8 bytes of Digest(), big-endian
};

// Returns k, so that a loss summed over the rows of a micro-batch and multiplied by 2^-k is its
// mean, at most, multiplied by the loss scale: k = R - scale.log2, where 2^R is the first power of
// two that is not below the number of rows that can count. 0 without a scale; may be negative.
int LossScaleLog2(const JobSpec& spec, const std::optional<LossScale>& scale);

// Returns the most chunks that a valid tensor can make; see ChunkMap::Build.
uint64_t MaxChunksOf(const TensorSpec& tensor, uint64_t chunk_elements);

// "training.seed: 1 there, 2 here": the first line in which two canonical texts differ; empty if
// none does.
std::string FirstDifference(absl::string_view theirs, absl::string_view ours);

}  // namespace eps

#endif  // EPS_BASE_JOB_JOB_SPEC_H_
