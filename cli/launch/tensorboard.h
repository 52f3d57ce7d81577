#ifndef EPS_CLI_LAUNCH_TENSORBOARD_H_
#define EPS_CLI_LAUNCH_TENSORBOARD_H_

// Event files that TensorBoard reads, written without it: records framed as TFRecord (length,
// masked CRC32C of the length, bytes, masked CRC32C of the bytes), each a tensorflow.Event of
// protobuf's wire format.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "eps/v1/types.pb.h"

namespace eps {

// One file of a run: train/loss, train/grad_norm, train/learning_rate and train/tokens_per_second
// of each step, eval/loss of each evaluation. Thread-compatible.
class TensorBoardLog {
 public:
  // Begins a new file in `folder`, which is created; its name sorts behind those of earlier runs.
  // It begins with a session start at `base_step` + 1, so that TensorBoard drops what an earlier
  // run wrote of later steps. IoError or PermissionDenied with the path.
  static absl::StatusOr<std::unique_ptr<TensorBoardLog>> Open(const std::string& folder,
                                                              uint64_t base_step);
  ~TensorBoardLog();
  TensorBoardLog(const TensorBoardLog&) = delete;
  TensorBoardLog& operator=(const TensorBoardLog&) = delete;

  // Flushed at once: TensorBoard follows the file. IoError with the path.
  absl::Status Add(const v1::StepRecord& record);

  const std::string& path() const { return path_; }

 private:
  TensorBoardLog() = default;
  absl::Status WriteRecord(const std::string& bytes);

  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_TENSORBOARD_H_
