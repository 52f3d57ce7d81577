#include "storage/disk/fill.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kWriteBytes = uint64_t{4} << 20;
constexpr std::chrono::seconds kReportPause{5};

// The writes of one file.
class Fill {
 public:
  Fill(AsyncFile* file, uint32_t depth, FillMeter* meter_or_null)
      : file_(file),
        depth_(std::max(depth, 1u)),
        meter_(meter_or_null),
        zeros_(static_cast<uint8_t*>(std::aligned_alloc(kDiskBlock, kWriteBytes)), std::free) {
    EPS_CHECK(zeros_ != nullptr);
    std::memset(zeros_.get(), 0, kWriteBytes);
  }

  absl::Status Run() EPS_EXCLUDES(mu_) {
    if (meter_ != nullptr) meter_->Begin(file_->size());
    for (uint64_t at = 0; at < file_->size(); at += kWriteBytes) {
      {
        MutexLock lock(&mu_);
        AwaitAtMost(depth_ - 1);
        if (!status_.ok()) break;
        ++in_flight_;
      }
      const uint64_t bytes = std::min(file_->size() - at, kWriteBytes);
      file_->Write(at, absl::MakeConstSpan(zeros_.get(), bytes),
                   [this, bytes](absl::Status status) { End(bytes, std::move(status)); });
    }
    MutexLock lock(&mu_);
    AwaitAtMost(0);
    return status_;
  }

 private:
  void AwaitAtMost(uint32_t in_flight) EPS_REQUIRES(mu_) {
    while (in_flight_ > in_flight) {
      ended_.WaitFor(&mu_, kReportPause);
      Report();
    }
  }

  void End(uint64_t bytes, absl::Status status) EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (status.ok()) {
      filled_ += bytes;
      if (meter_ != nullptr) meter_->Add(bytes);
    } else if (status_.ok()) {
      status_ = std::move(status);
    }
    --in_flight_;
    ended_.NotifyAll();
  }

  void Report() EPS_REQUIRES(mu_) {
    const Clock::time_point now = Clock::now();
    if (now < reported_ + kReportPause) return;
    const double seconds = std::chrono::duration<double>(now - reported_).count();
    const auto new_bytes = static_cast<double>(filled_ - reported_bytes_);
    EPS_LOG_INFO("storage: " << file_->path() << ": "
                             << absl::StrFormat("%.1f of %.1f GB are filled, %.2f GB/s",
                                                static_cast<double>(filled_) / 1e9,
                                                static_cast<double>(file_->size()) / 1e9,
                                                new_bytes / 1e9 / seconds));
    reported_ = now;
    reported_bytes_ = filled_;
  }

  AsyncFile* const file_;
  const uint32_t depth_;
  FillMeter* const meter_;
  const std::unique_ptr<uint8_t, void (*)(void*)> zeros_;  // of all writes
  Mutex mu_;
  CondVar ended_;
  uint32_t in_flight_ EPS_GUARDED_BY(mu_) = 0;
  uint64_t filled_ EPS_GUARDED_BY(mu_) = 0;
  absl::Status status_ EPS_GUARDED_BY(mu_);  // the first error
  Clock::time_point reported_ EPS_GUARDED_BY(mu_) = Clock::now();
  uint64_t reported_bytes_ EPS_GUARDED_BY(mu_) = 0;
};

}  // namespace

absl::Status FillWithZeros(AsyncFile* file, uint32_t depth, FillMeter* meter_or_null) {
  return Fill(file, depth, meter_or_null).Run();
}

}  // namespace eps
