#ifndef EPS_CHECKPOINT_CHECKPOINT_RESIDUALS_H_
#define EPS_CHECKPOINT_CHECKPOINT_RESIDUALS_H_

// What sparse gradients left out (error feedback), as a checkpoint holds it: FP32, a file per part,
// per tensor and use by a stage, so that neither servers nor chunks nor codecs show in it
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
#include "checkpoint/checkpoint_folders.h"
#include "wire/control_client.h"
#include "base/files/safetensors.h"
#include "compression/codec_table.h"
#include "base/job/chunk_map.h"
#include "base/job/job_spec.h"

namespace eps {

// A tensor as one stage uses it: what a part's residual belongs to.
struct TensorUsePlace {
  std::string name;  // in the files: the tensor's; of one with several uses NAME@STAGE
  TensorId tensor;
  StageId use;
};
// All of a job, by tensor, then by stage.
std::vector<TensorUsePlace> UsesOfTensors(const JobSpec& spec);

// A part's file by its path in the checkpoint: eps/residual-00000.safetensors.
std::string ResidualFile(uint32_t part);

// Writes what the servers' residuals stand for. Thread-compatible.
class ResidualFilesWriter {
 public:
  // Creates the files in `folder`/eps, which is there, of all tensors for which the job keeps
  // residuals: none if it keeps none. `spec` and `chunks` outlive the writer. InvalidArgument as
  // CodecTable::Build, else as SafetensorsWriter.
  static absl::StatusOr<std::unique_ptr<ResidualFilesWriter>> Create(const std::string& folder,
                                                                     const JobSpec& spec,
                                                                     const ChunkMap& chunks);
  // DataLoss for a place that has no residual or already has one, and for bytes that its codec
  // refuses.
  absl::Status Write(const ResidualPlace& place, const std::string& encoded);
  // Writes zeros wherever nothing was left out, and ends and syncs the files.
  absl::Status Finish();

  const std::vector<std::string>& files() const { return files_; }  // by their path in the folder
  uint64_t bytes() const;                                           // of all files

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
  // Null if the checkpoint has none. `spec` is the checkpoint's. DataLoss names the file that is
  // missing or has other tensors than the job.
  static absl::StatusOr<std::unique_ptr<ResidualFiles>> Open(const std::string& folder,
                                                             const CheckpointManifest& manifest,
                                                             const JobSpec& spec);

  uint32_t parts() const { return static_cast<uint32_t>(parts_.size()); }
  // Those that have residuals; the same for every part.
  const std::vector<TensorUsePlace>& tensors() const { return tensors_; }
  // `count` elements of tensors()[tensor] from `first` on.
  absl::Status Read(uint32_t part, size_t tensor, uint64_t first, size_t count, float* out) const;

 private:
  ResidualFiles() = default;

  std::vector<TensorUsePlace> tensors_;
  std::vector<std::unique_ptr<SafetensorsReader>> parts_;
};

// Which residuals of a checkpoint a job takes up, and their bytes as its servers keep them.
// Thread-safe once created.
class ResidualImport {
 public:
  // `from_or_null`: the residuals of a checkpoint that the job `from_spec` wrote. The job `spec`
  // has the same tensors. All references outlive the object. InvalidArgument as CodecTable::Build.
  static absl::StatusOr<std::unique_ptr<ResidualImport>> Create(const ResidualFiles* from_or_null,
                                                                const JobSpec& from_spec,
                                                                const JobSpec& spec,
                                                                const ChunkMap& chunks);

  // What is not taken up, with the key that differs; empty: all of it is.
  const std::string& note() const { return note_; }
  // The places of a chunk that have one, by use, then by part.
  std::vector<ResidualPlace> PlacesOf(ChunkId chunk) const;
  // Encoded in quantization.residual; no bytes if nothing was left out.
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
