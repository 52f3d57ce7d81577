#ifndef EPS_CHECKPOINT_CHECKPOINT_H_
#define EPS_CHECKPOINT_CHECKPOINT_H_

// Writes and reads a checkpoint folder (docs/formats/checkpoint.md). Hugging Face's libraries load
// its top level; eps/ holds what an exact resume needs. All state is stored per tensor, so that any
// number of servers can resume from it.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files/safetensors.h"
#include "base/job/drivers/driver_lease.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "checkpoint/checkpoint_residuals.h"
#include "checkpoint/weights/weight_layout.h"
#include "wire/control_client.h"

namespace eps {

// The files of a checkpoint that hold no tensors, by their path in the folder.
using SmallFiles = std::map<std::string, std::string>;

// Returns the Hugging Face and eps/ files of a checkpoint: those that the spec determines, which
// are the description of the model, generation_config.json, eps/job_spec.txt and, for a byte-level
// vocabulary, tokenizer.json and tokenizer_config.json; and `of_model`, the files of the model's
// folder (base/config/model_folder.h), of which only the description itself does not win.
SmallFiles FilesOfJob(const JobSpec& spec, const SmallFiles& of_model = {});

// Returns the tensors of a job as the files in eps/ hold them: name, shape and dtype F32, in the
// spec's order. Frozen tensors have no optimizer state.
std::vector<SafetensorsEntry> EntriesOf(const JobSpec& spec);
// Returns the files of a checkpoint that hold the job's state, in the order of a chunk's state: the
// weights, then the fields of the optimizer.
std::vector<std::string> StateFiles(const JobSpec& spec);

// Who writes a checkpoint.
struct CheckpointOrigin {
  uint32_t servers = 0;     // CheckpointManifest::servers
  DriverLease driver = {};  // CheckpointManifest::driver
  // Called when everything is synced, before the checkpoint gets its name: an error leaves no
  // checkpoint. May be null.
  std::function<absl::Status()> confirm = nullptr;
};

// Writes one checkpoint from chunks, in any order. The checkpoint appears under its name only when
// it is complete and synced: everything is written into a hidden folder, which Commit renames.
// Thread-compatible.
class CheckpointWriter {
 public:
  // Creates `root` (checkpoint.dir) and removes hidden folders that an earlier crash left there.
  // `spec` and `chunks` must outlive the writer. IoError, ResourceExhausted (disk full) or
  // PermissionDenied with the path; InvalidArgument for an unknown codec.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(const std::string& root,
                                                                  uint64_t step,
                                                                  const JobSpec& spec,
                                                                  const ChunkMap& chunks);
  // Removes the hidden folder if Commit did not succeed.
  ~CheckpointWriter();

  // Writes the state of one chunk. DataLoss if its size is not the chunk's.
  absl::Status WriteChunk(ChunkId chunk, const ChunkState& state);
  // As ResidualFilesWriter::Write. A residual that is never written counts as zero.
  absl::Status WriteResidual(const ResidualPlace& place, const std::string& encoded);
  // Writes `files` and then the manifest, syncs, renames the folder to checkpoint-<step>, replacing
  // an older one of that name as a whole, and points `root`/latest at it (PointLatest).
  // FailedPrecondition names an incomplete tensor. Errors of `origin.confirm` are returned.
  absl::Status Commit(const Border& border, const SmallFiles& files,
                      const CheckpointOrigin& origin = {});

  // The folder that Commit creates.
  const std::string& folder() const { return folder_; }
  // The bytes of all tensors, including those not written yet.
  uint64_t bytes() const;

 private:
  CheckpointWriter(std::string root, uint64_t step, const JobSpec& spec, const ChunkMap& chunks);
  absl::Status WriteField(size_t field, TensorId tensor, uint64_t first,
                          absl::Span<const float> values);
  absl::Status WriteAll(const Border& border, const SmallFiles& files,
                        const CheckpointOrigin& origin);
  absl::StatusOr<CheckpointManifest> WriteManifest(const Border& border,
                                                   const CheckpointOrigin& origin);

  const std::string root_;
  const std::string name_;    // checkpoint-<step>
  const std::string folder_;  // root/name
  const std::string hidden_;  // root/.name.tmp
  const JobSpec& spec_;
  const ChunkMap& chunks_;
  const WeightLayout weights_;
  std::vector<size_t> field_entry_;                         // by tensor: its place in EntriesOf
  std::vector<std::unique_ptr<SafetensorsWriter>> states_;  // weights, then the state fields
  std::unique_ptr<ResidualFilesWriter> residuals_;
  std::vector<std::string> files_;  // written so far, for the manifest
  bool committed_ = false;
};

// Reads a checkpoint for a resume, and trusts no file whose size or SHA-256 differs from the
// manifest. Immutable.
class CheckpointReader {
 public:
  // NotFound if `folder` is not a complete checkpoint; DataLoss names the file that differs. Pass
  // false as `check_sums` only if CheckFiles has just checked the folder.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const std::string& folder,
                                                                bool check_sums = true);

  const Border& border() const { return border_; }
  const JobSpec& spec() const { return spec_; }  // the job that wrote it

  // FailedPrecondition unless `spec` has the same tensors, the same ones frozen, and the same
  // optimizer state.
  absl::Status CheckFits(const JobSpec& spec) const;
  // The number of state arrays: the weights and the fields of the optimizer.
  size_t fields() const { return states_.size(); }
  // Reads `count` elements of a tensor of spec() from `first` on. `field` is a place in
  // StateFiles(spec()); 0 is the weights, and the only one of a frozen tensor. Thread-safe.
  absl::Status Read(size_t field, TensorId tensor, uint64_t first, size_t count, float* out) const;
  // Returns the state of a chunk of a job that passed CheckFits. Thread-safe.
  absl::StatusOr<ChunkState> ReadChunk(const JobSpec& spec, const Chunk& chunk) const;
  const WeightLayout& weights() const { return *weights_; }
  // The residuals of sparse gradients; null if the checkpoint has none.
  const ResidualFiles* residuals_or_null() const { return residuals_.get(); }

 private:
  CheckpointReader() = default;

  std::string folder_;
  Border border_;
  JobSpec spec_;
  std::unique_ptr<WeightLayout> weights_;
  std::vector<std::unique_ptr<SafetensorsReader>> states_;
  std::unique_ptr<ResidualFiles> residuals_;
};

}  // namespace eps

#endif  // EPS_CHECKPOINT_CHECKPOINT_H_
