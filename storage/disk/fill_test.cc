#include "storage/disk/fill.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Completes the oldest write once `depth` writes, or all that are left, are in flight. If they
// never are, gives up after a while and completes each write at once.
class CountingFile final : public AsyncFile {
 public:
  CountingFile(uint64_t size, size_t depth)
      : bytes_(size, 1), depth_(depth), left_(size), thread_([this] { Run(); }) {}
  ~CountingFile() override {
    {
      MutexLock lock(&mu_);
      stops_ = true;
    }
    changed_.NotifyAll();
    thread_.join();
  }

  void Read(uint64_t, absl::Span<uint8_t>, Done) override { std::abort(); }
  void Write(uint64_t offset, absl::Span<const uint8_t> from, Done done) override {
    MutexLock lock(&mu_);
    std::copy(from.begin(), from.end(), bytes_.begin() + static_cast<ptrdiff_t>(offset));
    left_ -= from.size();
    waiting_.push_back(std::move(done));
    most_ = std::max(most_, waiting_.size());
    ++writes_;
    changed_.NotifyAll();
  }
  void Sync(Done) override { std::abort(); }
  const std::string& path() const override { return path_; }
  uint64_t size() const override { return bytes_.size(); }
  FileIdentity identity() const override { return {}; }

  void FailFrom(size_t write) {
    MutexLock lock(&mu_);
    fails_from_ = write;
  }
  size_t most_in_flight() {
    MutexLock lock(&mu_);
    return most_;
  }
  size_t writes() {
    MutexLock lock(&mu_);
    return writes_;
  }
  bool is_zero() const {
    return std::all_of(bytes_.begin(), bytes_.end(), [](uint8_t byte) { return byte == 0; });
  }

 private:
  bool IsFull() const EPS_REQUIRES(mu_) {
    return waiting_.size() >= depth_ || left_ == 0 || gave_up_;
  }

  void Run() EPS_EXCLUDES(mu_) {
    for (;;) {
      Done done;
      bool fails = false;
      {
        MutexLock lock(&mu_);
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (!stops_ && (waiting_.empty() || !IsFull())) {
          if (waiting_.empty()) {
            changed_.WaitFor(&mu_, std::chrono::seconds(20));
          } else {
            gave_up_ |= !changed_.WaitUntil(&mu_, deadline);
          }
        }
        if (stops_) return;
        done = std::move(waiting_.front());
        waiting_.pop_front();
        fails = completed_++ >= fails_from_;
        gave_up_ |= fails;  // no write follows
      }
      done(fails ? absl::ResourceExhaustedError("the disk is full") : absl::OkStatus());
    }
  }

  const std::string path_ = "counting";
  std::vector<uint8_t> bytes_;
  const size_t depth_;
  Mutex mu_;
  CondVar changed_;
  uint64_t left_ EPS_GUARDED_BY(mu_);
  std::deque<Done> waiting_ EPS_GUARDED_BY(mu_);
  size_t most_ EPS_GUARDED_BY(mu_) = 0;
  size_t writes_ EPS_GUARDED_BY(mu_) = 0;
  size_t completed_ EPS_GUARDED_BY(mu_) = 0;
  size_t fails_from_ EPS_GUARDED_BY(mu_) = SIZE_MAX;
  bool gave_up_ EPS_GUARDED_BY(mu_) = false;
  bool stops_ EPS_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

TEST(Fill, KeepsTheWholeDepthInFlight) {
  FillMeter meter;
  CountingFile file(41 * kMiB, /*depth=*/6);
  const absl::Status filled = FillWithZeros(&file, 6, &meter);
  EXPECT_TRUE(filled.ok()) << filled;
  EXPECT_TRUE(file.is_zero());
  EXPECT_EQ(file.most_in_flight(), 6u);
  EXPECT_EQ(file.writes(), 11u);
  EXPECT_EQ(meter.filled_bytes(), 41 * kMiB);
  EXPECT_EQ(meter.wanted_bytes(), 41 * kMiB);
}

TEST(Fill, EndsAtTheFirstError) {
  FillMeter meter;
  CountingFile file(60 * kMiB, /*depth=*/2);
  file.FailFrom(3);
  const absl::Status filled = FillWithZeros(&file, 2, &meter);
  EXPECT_EQ(filled.code(), absl::StatusCode::kResourceExhausted) << filled;
  EXPECT_LE(file.writes(), 6u);
  EXPECT_EQ(meter.filled_bytes(), 12 * kMiB);
  EXPECT_EQ(meter.wanted_bytes(), 60 * kMiB);
}

TEST(Fill, AnEmptyFileNeedsNoWrite) {
  CountingFile file(0, 1);
  EXPECT_TRUE(FillWithZeros(&file, 16, nullptr).ok());
  EXPECT_EQ(file.writes(), 0u);
}

}  // namespace
}  // namespace eps
