// The contribution log while it fills one batch and writes another.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/memory_account.h"
#include "base/testing/manual_executor.h"
#include "gtest/gtest.h"
#include "storage/log/contribution_log.h"
#include "storage/testing/simulated_disk.h"

namespace eps {
namespace {

using Call = SimulatedDisk::Call;
using Fault = SimulatedDisk::Fault;

// Batches take up to 3 blocks, and the ring has 21.
constexpr LogRoom kRoom = {/*steps=*/2, /*step_bytes=*/12000, /*entry_bytes=*/6000};
constexpr size_t kAlone = 6500;  // bytes of an entry that fills a batch

LogEntry EntryOf(uint64_t number, size_t bytes) {
  LogEntry entry;
  entry.step = Step(number);
  entry.text = std::string(bytes, static_cast<char>('a' + number));
  return entry;
}

// Numbers drawn from a seed.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}
  uint64_t operator()(uint64_t below) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ >> 33) % below;
  }

 private:
  uint64_t state_;
};

class TwoBatchesTest : public testing::Test {
 protected:
  TwoBatchesTest() : disk_(OptionsOf(&executor_)) { EPS_CHECK(disk_.CreateFolder("/job").ok()); }
  ~TwoBatchesTest() override { executor_.RunAll(); }

  static SimulatedDisk::Options OptionsOf(Executor* executor) {
    SimulatedDisk::Options options;
    options.executor = executor;
    return options;
  }
  void Open(bool live) {
    executor_.RunAll();
    log_.reset();
    auto opened = ContributionLog::Open(
        disk_.blocking(), &disk_, "/job", ExtentIdentity(), kRoom, live, &executor_, &account_,
        [this](ContributionLog::Done then) {
          return [this, then](absl::Status status) { executor_.Post([=] { then(status); }); };
        });
    EPS_CHECK_MSG(opened.ok(), opened.status());
    log_ = *std::move(opened);
  }
  void Begin(const LogId& id) {
    Open(/*live=*/false);
    log_->Start(id);
    log_->Resume();
  }
  // Returns the entries that another process finds.
  std::vector<LogEntry> Reopen(const LogId& id) {
    Open(/*live=*/true);
    log_->Rewind(id, 0);
    std::vector<LogEntry> all;
    for (bool more = true; more;) {
      log_->ReadNext([&](absl::StatusOr<std::vector<LogEntry>> page) {
        EPS_CHECK_MSG(page.ok(), page.status());
        more = !page->empty();
        for (LogEntry& entry : *page) all.push_back(std::move(entry));
      });
      executor_.RunAll();
    }
    return all;
  }

  ManualExecutor executor_;
  SimulatedDisk disk_;
  MemoryAccount account_;
  std::unique_ptr<ContributionLog> log_;
};

TEST_F(TwoBatchesTest, FillsABatchDuringAWrite) {
  Begin({Term(5), 1});
  EXPECT_EQ(account_.live_bytes(MemoryKind::kScratch), 2 * 3 * kDiskBlock);
  absl::Status outcome[3];
  const auto append = [&](LogEntry entry, absl::Status* result) {
    *result = absl::UnknownError("not completed");
    log_->Append(std::move(entry), [result](absl::Status status) { *result = status; });
  };
  append(EntryOf(1, kAlone), &outcome[0]);
  executor_.Run(0);
  const uint64_t writes = disk_.calls(Call::kWrite);
  for (uint64_t i = 1; i < 3; ++i) {
    Buffer payload(3000, MemoryKind::kContribution, &account_);
    std::fill_n(payload.data(), payload.size(), 'a' + i);
    append({Step(i + 1), "", std::move(payload).Freeze(), Bytes()}, &outcome[i]);
    // The write is in flight, and the copy is the last task.
    executor_.Run(executor_.size() - 1);
    EXPECT_EQ(account_.live_bytes(MemoryKind::kContribution), 0u) << i;
  }
  EXPECT_EQ(disk_.calls(Call::kWrite), writes);
  executor_.RunAll();
  for (const absl::Status& status : outcome) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(disk_.calls(Call::kWrite), writes + 1);
  EXPECT_EQ(log_->PositionBehind(Step(2)), 2 * kDiskBlock);
  const std::vector<LogEntry> found = Reopen({Term(5), 1});
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].text, EntryOf(1, kAlone).text);
  for (uint64_t i = 1; i < 3; ++i) {
    EXPECT_EQ(found[i].payload.view(), std::string(3000, static_cast<char>('a' + i)));
  }
}

// Tasks run in drawn orders, as on the threads of a pool; in every third round a transfer fails.
TEST_F(TwoBatchesTest, CompletesInOrderOnAnyThread) {
  constexpr uint64_t kEntries = 7;  // each takes a batch
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Begin({Term(5), seed});
    Draws draw(seed);
    const bool fails = seed % 3 == 0;
    if (fails) {
      disk_.FailCall(draw(2) == 0 ? Call::kWrite : Call::kSync, 1 + draw(5), Fault::kIoError);
    }
    const uint64_t writes = disk_.calls(Call::kWrite);
    uint64_t appended = 0, ended = 0, acknowledged = 0, flushed = 0;
    uint64_t writes_at_failure = 0;
    while (flushed < kEntries) {
      if (appended < kEntries && (executor_.empty() || draw(3) == 0)) {
        const uint64_t number = ++appended;
        log_->Append(EntryOf(number, kAlone), [&, number](const absl::Status& status) {
          EXPECT_EQ(number, ++ended);
          acknowledged += status.ok();
          EXPECT_EQ(acknowledged < ended, !status.ok()) << "acknowledged after a failure";
          if (!status.ok() && writes_at_failure == 0) {
            writes_at_failure = disk_.calls(Call::kWrite);
          }
        });
        log_->Flush([&, number](const absl::Status&) {
          EXPECT_GE(ended, number);
          ++flushed;
        });
        continue;
      }
      ASSERT_FALSE(executor_.empty());
      executor_.Run(draw(executor_.size()));
      EXPECT_LE(disk_.calls(Call::kWrite) - writes, acknowledged + 1)
          << "a batch is written before the one before it is durable";
    }
    EXPECT_EQ(ended, kEntries);
    EXPECT_EQ(acknowledged < kEntries, fails);
    if (fails) {
      EXPECT_EQ(disk_.calls(Call::kWrite), writes_at_failure);
    }
    const std::vector<LogEntry> found = Reopen({Term(5), seed});
    ASSERT_GE(found.size(), acknowledged);
    for (uint64_t i = 0; i < acknowledged; ++i) {
      EXPECT_EQ(found[i].text, EntryOf(i + 1, kAlone).text);
    }
  }
}

}  // namespace
}  // namespace eps
