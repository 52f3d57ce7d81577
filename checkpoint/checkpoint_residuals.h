#ifndef EPS_CHECKPOINT_CHECKPOINT_RESIDUALS_H_
#define EPS_CHECKPOINT_CHECKPOINT_RESIDUALS_H_

// The residuals of sparse gradients (error feedback) in a checkpoint: FP32, one file per part, one
// entry per tensor and stage that uses it. The format does not depend on servers, chunks or codecs
// (docs/formats/checkpoint.md).

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files/safetensors.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "checkpoint/checkpoint_folders.h"
#include "compression/codec_table.h"
#include "wire/control_client.h"

namespace eps {

// A tensor as one stage uses it. Each part has one residual for it.
struct TensorUsePlace {
  std::string name;  // in the files: the tensor's name, or NAME@STAGE if it has several uses
  TensorId tensor;
  StageId use;
};
// Returns all uses of a job's tensors, by tensor, then by stage.
std::vector<TensorUsePlace> UsesOfTensors(const JobSpec& spec);

// Returns the path of a part's file in the checkpoint, such as eps/residual-00000.safetensors.
std::string ResidualFile(uint32_t part);

// Returns the bytes of all these files of a checkpoint, without their headers; 0 if the job keeps
// no residuals. InvalidArgument as CodecTable::Build.
absl::StatusOr<uint64_t> ResidualFilesBytes(const JobSpec& spec, const ChunkMap& chunks);

// Decodes the servers' residuals and writes their values. Thread-compatible.
class ResidualFilesWriter {
 public:
  // Creates the files in `folder`/eps, which must exist, for all tensors whose residuals the job
  // keeps; a job without residuals gets no file. `spec` and `chunks` must outlive the writer.
  // InvalidArgument as CodecTable::Build; other errors as SafetensorsWriter.
  static absl::StatusOr<std::unique_ptr<ResidualFilesWriter>> Create(const std::string& folder,
                                                                     const JobSpec& spec,
                                                                     const ChunkMap& chunks);
  // Writes one residual. DataLoss if the place keeps none or was already written, or if its codec
  // refuses the bytes.
  absl::Status Write(const ResidualPlace& place, const std::string& encoded);
  // Writes zeros for every residual that was not written, then finishes and syncs the files.
  absl::Status Finish();

  const std::vector<std::string>& files() const { return files_; }  // paths in the folder
  uint64_t bytes() const;                                           // sum of all files

 private:
  ResidualFilesWriter(const JobSpec& spec, const ChunkMap& chunks, CodecTable codecs);
  absl::Status WriteFloats(const ResidualPlace& place, const float* elements);

  const JobSpec& spec_;
  const ChunkMap& chunks_;
  const CodecTable codecs_;
  std::vector<std::string> files_;
  std::vector<std::unique_ptr<SafetensorsWriter>> parts_;
  std::map<std::pair<TensorId, StageId>, size_t> entries_;  // place in the files
  std::set<std::tuple<ChunkId, StageId, PartId>> written_;
};

// The residuals of a checkpoint. Immutable, thread-safe.
class ResidualFiles {
 public:
  // Returns null if the checkpoint has no residuals. `spec` is the checkpoint's. DataLoss names a
  // file that is missing or whose tensors are not the job's.
  static absl::StatusOr<std::unique_ptr<ResidualFiles>> Open(const std::string& folder,
                                                             const CheckpointManifest& manifest,
                                                             const JobSpec& spec);

  uint32_t parts() const { return static_cast<uint32_t>(parts_.size()); }
  // The uses that have residuals; equal for every part.
  const std::vector<TensorUsePlace>& tensors() const { return tensors_; }
  // Reads `count` elements of tensors()[tensor] from `first` on.
  absl::Status Read(uint32_t part, size_t tensor, uint64_t first, size_t count, float* out) const;

 private:
  ResidualFiles() = default;

  std::vector<TensorUsePlace> tensors_;
  std::vector<std::unique_ptr<SafetensorsReader>> parts_;
};

// Selects the residuals of a checkpoint that a job can use, and encodes them as its servers keep
// them. Thread-safe after Create.
class ResidualImport {
 public:
  // `from_or_null` holds the residuals of a checkpoint that the job `from_spec` wrote. The job
  // `spec` must have the same tensors. All arguments must outlive the object. InvalidArgument as
  // CodecTable::Build.
  static absl::StatusOr<std::unique_ptr<ResidualImport>> Create(const ResidualFiles* from_or_null,
                                                                const JobSpec& from_spec,
                                                                const JobSpec& spec,
                                                                const ChunkMap& chunks);

  // Says which residuals are dropped, and which key differs; empty if none are.
  const std::string& note() const { return note_; }
  // Returns the places of a chunk that have a residual, by use, then by part.
  std::vector<ResidualPlace> PlacesOf(ChunkId chunk) const;
  // Returns a residual encoded in quantization.residual; empty if it is zero.
  absl::StatusOr<std::string> Read(const ResidualPlace& place) const;

 private:
  ResidualImport(const ResidualFiles* from_or_null, const JobSpec& spec, const ChunkMap& chunks,
                 CodecTable codecs);

  const ResidualFiles* const from_or_null_;
  const JobSpec& spec_;
  const ChunkMap& chunks_;
  const CodecTable codecs_;
  std::string note_;
  std::map<std::pair<TensorId, StageId>, size_t> taken_;  // index in from_or_null_->tensors()
};

}  // namespace eps

#endif  // EPS_CHECKPOINT_CHECKPOINT_RESIDUALS_H_
