#ifndef EPS_CLI_DRIVER_REPORT_TENSORBOARD_H_
#define EPS_CLI_DRIVER_REPORT_TENSORBOARD_H_

// Writes event files for TensorBoard without depending on it. Each record is an Event
// (cli/driver/report/tensorboard.proto), framed as a TFRecord: length, masked CRC32C of the length,
// bytes, masked CRC32C of the bytes.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/job/evaluation/evaluation_metrics.h"
#include "eps/v1/types.pb.h"

namespace eps {
namespace tensorboard {
class Event;
}

// The event file of one run. Each step adds train/loss, train/grad_norm, train/learning_rate and
// train/tokens_per_second; each evaluation adds eval/loss and eval/NAME for its figures.
// Thread-compatible.
class TensorBoardLog {
 public:
  // Creates `folder` and a new file in it, whose name sorts after those of earlier runs. The file
  // starts a session at `base_step` + 1, so that TensorBoard drops the later steps of earlier runs.
  // IoError or PermissionDenied with the path.
  static absl::StatusOr<std::unique_ptr<TensorBoardLog>> Open(const std::string& folder,
                                                              uint64_t base_step);
  ~TensorBoardLog();
  TensorBoardLog(const TensorBoardLog&) = delete;
  TensorBoardLog& operator=(const TensorBoardLog&) = delete;

  // Appends a record, that of an evaluation with its figures, and flushes it, because TensorBoard
  // follows the file. IoError with the path.
  absl::Status Add(const v1::StepRecord& record, const std::vector<Figure>& figures = {});

  const std::string& path() const { return path_; }

 private:
  TensorBoardLog() = default;
  absl::Status Write(const tensorboard::Event& event);

  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace eps

#endif  // EPS_CLI_DRIVER_REPORT_TENSORBOARD_H_
