#ifndef EPS_CHECKPOINT_CHECKPOINT_EXPORT_H_
#define EPS_CHECKPOINT_CHECKPOINT_EXPORT_H_

// From a checkpoint to a plain Hugging Face folder: weights, configuration and tokenizer, without
// the optimizer's state and without eps/.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace eps {

struct ExportOptions {
  std::string checkpoint;
  std::string out;
  std::string dtype = "f32";  // f32, bf16 or f16: rounded to the nearest value, ties to even
  uint64_t max_shard_bytes = 5'000'000'000;
};

struct ExportSummary {
  uint64_t tensors = 0;
  uint64_t elements = 0;
  uint64_t bytes = 0;  // of the tensors
  uint64_t shards = 0;
};

// Tensors go into shards in the order of the job spec; one that is larger than a shard gets one of
// its own. A single shard is model.safetensors, several come with an index. `out` appears whole or
// not at all. AlreadyExists if there is something in it; InvalidArgument for an unknown dtype, or a
// weight that the dtype could only hold as infinity, with the tensor; else as CheckpointReader and
// SafetensorsWriter.
absl::StatusOr<ExportSummary> ExportCheckpoint(const ExportOptions& options);

}  // namespace eps

#endif  // EPS_CHECKPOINT_CHECKPOINT_EXPORT_H_
