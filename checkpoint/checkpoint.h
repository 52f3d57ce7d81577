#ifndef EPS_CHECKPOINT_CHECKPOINT_H_
#define EPS_CHECKPOINT_CHECKPOINT_H_

// A checkpoint folder (docs/formats/checkpoint.md): what Hugging Face's libraries load, and under
// eps/ what an exact resume needs, per tensor, so that any number of servers can take it up.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/checkpoint_residuals.h"
#include "wire/control_client.h"
#include "base/files/safetensors.h"
#include "base/job/chunk_map.h"
#include "base/job/job_spec.h"

namespace eps {

// What a checkpoint holds besides tensors: small files by their path in the folder.
using SmallFiles = std::map<std::string, std::string>;

// The Hugging Face and eps/ files that follow from the job: config.json, generation_config.json,
// eps/job_spec.txt and, for a byte-level vocabulary, tokenizer.json and tokenizer_config.json.
SmallFiles FilesOfJob(const JobSpec& spec);

// The tensors of a job as its files hold them: name, shape and dtype F32, in the spec's order.
std::vector<SafetensorsEntry> EntriesOf(const JobSpec& spec);
// The files of a checkpoint that hold the job's state, in the order of a chunk's state: weights,
// then the fields of the optimizer.
std::vector<std::string> StateFiles(const JobSpec& spec);
// The size of a ChunkState.
uint64_t StateBytes(const JobSpec& spec, const Chunk& chunk);

// Writes one checkpoint, tensor by tensor as the chunks come. Nothing is seen under its name until
// it is complete and synced: everything goes into a hidden folder that is renamed at the end.
class CheckpointWriter {
 public:
  // `root`: checkpoint.dir, which is created; what a crash left there of an earlier write is
  // removed. `spec` and `chunks` outlive the writer. IoError, ResourceExhausted (disk full) or
  // PermissionDenied with the path; InvalidArgument for a codec that is unknown.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(const std::string& root,
                                                                  uint64_t step,
                                                                  const JobSpec& spec,
                                                                  const ChunkMap& chunks);
  // Removes the hidden folder if Commit did not succeed.
  ~CheckpointWriter();

  // DataLoss if the state has another size than the chunk.
  absl::Status WriteChunk(ChunkId chunk, const ChunkState& state);
  // As ResidualFilesWriter::Write. Where none is written, nothing was left out.
  absl::Status WriteResidual(const ResidualPlace& place, const std::string& encoded);
  // Writes `files`, then the manifest, last; syncs; renames the folder to checkpoint-<step> (an
  // older one of that name is replaced as a whole); then points `root`/latest at it.
  // FailedPrecondition names a tensor that is not complete. `servers`: as in CheckpointManifest.
  absl::Status Commit(const Border& border, const SmallFiles& files, uint32_t servers = 0);

  // The folder that Commit makes.
  const std::string& folder() const { return folder_; }
  // Of the tensors, with those that are still to be written.
  uint64_t bytes() const;

 private:
  CheckpointWriter(std::string root, uint64_t step, const JobSpec& spec, const ChunkMap& chunks);
  absl::Status WriteAll(const Border& border, const SmallFiles& files, uint32_t servers);
  absl::Status WriteManifest(const Border& border, uint32_t servers);

  const std::string root_;
  const std::string name_;    // checkpoint-<step>
  const std::string folder_;  // root/name
  const std::string hidden_;  // root/.name.tmp
  const JobSpec& spec_;
  const ChunkMap& chunks_;
  std::vector<std::unique_ptr<SafetensorsWriter>> states_;  // weights, then the state fields
  std::unique_ptr<ResidualFilesWriter> residuals_;
  std::vector<std::string> files_;  // written so far, for the manifest
  bool committed_ = false;
};

// Reads a checkpoint for a resume. Believes no file whose size or SHA-256 is not the manifest's.
class CheckpointReader {
 public:
  // NotFound if it is not a complete checkpoint; DataLoss names the file that differs.
  // `check_sums` false: for a folder that CheckFiles has just been through.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const std::string& folder,
                                                                bool check_sums = true);

  const Border& border() const { return border_; }
  const JobSpec& spec() const { return spec_; }  // the job that wrote it

  // FailedPrecondition unless the state fits `spec`: the same tensors and state of the optimizer.
  absl::Status CheckFits(const JobSpec& spec) const;
  // One array of the state by its place in StateFiles(spec()), 0 being the weights: `count`
  // elements of a tensor of spec(), from `first` on. Thread-safe.
  size_t fields() const { return states_.size(); }
  absl::Status Read(size_t field, TensorId tensor, uint64_t first, size_t count, float* out) const;
  // The state of a chunk of any job that CheckFits. Thread-safe.
  absl::StatusOr<ChunkState> ReadChunk(const JobSpec& spec, const Chunk& chunk) const;
  // What sparse gradients left out; null if the checkpoint has none of it.
  const ResidualFiles* residuals_or_null() const { return residuals_.get(); }

 private:
  CheckpointReader() = default;

  std::string folder_;
  Border border_;
  JobSpec spec_;
  std::vector<std::unique_ptr<SafetensorsReader>> states_;
  std::unique_ptr<ResidualFiles> residuals_;
};

}  // namespace eps

#endif  // EPS_CHECKPOINT_CHECKPOINT_H_
