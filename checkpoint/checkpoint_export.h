#ifndef EPS_CHECKPOINT_CHECKPOINT_EXPORT_H_
#define EPS_CHECKPOINT_CHECKPOINT_EXPORT_H_

// Exports a checkpoint as a plain Hugging Face folder: weights, configuration and tokenizer,
// without optimizer state and without eps/. A model with LoRA adapters becomes a folder for peft,
// or is merged.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace eps {

// Settings of an export: folders, the type of the floats, and the size of a file.
struct ExportOptions {
  std::string checkpoint;
  std::string out;
  std::string dtype = "f32";  // f32, bf16 or f16: rounded to the nearest value, ties to even
  uint64_t max_shard_bytes = 5'000'000'000;
  bool merge = false;  // LoRA: W + B A * alpha / r in place of the adapters alone
};

// The size of an export.
struct ExportSummary {
  uint64_t tensors = 0;
  uint64_t elements = 0;
  uint64_t bytes = 0;  // of the tensors
  uint64_t shards = 0;
};

// Puts tensors into shards in the order of the job spec; a tensor larger than a shard gets its own.
// A single shard is model.safetensors; several get an index. `out` appears complete or not at all.
// AlreadyExists if `out` is not empty; InvalidArgument for an unknown dtype, or with the tensor for
// a weight that overflows the dtype; FailedPrecondition if options.merge finds no adapters, or if
// an export of adapters alone would lose another tensor that was trained; other errors as
// CheckpointReader and SafetensorsWriter.
absl::StatusOr<ExportSummary> ExportCheckpoint(const ExportOptions& options);

}  // namespace eps

#endif  // EPS_CHECKPOINT_CHECKPOINT_EXPORT_H_
