#include "storage/log/contribution_log.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/testing/manual_executor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/disk/block_bytes.h"
#include "storage/log/log_format.h"
#include "storage/testing/durable_world.h"
#include "storage/testing/simulated_disk.h"

namespace eps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Call = SimulatedDisk::Call;
using Fault = SimulatedDisk::Fault;

constexpr char kPath[] = "/job/contributions.eps";
constexpr LogId kId = {Term(5), 77};
// Batches take up to 3 blocks, and the ring has 21.
constexpr LogRoom kRoom = {/*steps=*/2, /*step_bytes=*/12000, /*entry_bytes=*/6000};
constexpr uint64_t kRing = 21 * kDiskBlock;
constexpr size_t kHeads = log_format::batch::kHeadBytes + log_format::entry::kHeadBytes;
constexpr size_t kLargest = 3 * kDiskBlock - kHeads;  // in one entry

// The entry with that number, in a batch of its own that takes `blocks` blocks.
LogEntry EntryOf(uint64_t number, size_t bytes = 100) {
  LogEntry entry;
  entry.step = Step(number);
  entry.text = "text of " + std::to_string(number);
  bytes -= std::min(bytes, entry.text.size());
  const size_t payload = number % 3 == 0 ? 0 : number % 3 == 1 ? bytes : bytes / 3;
  if (payload > 0) entry.payload = Bytes::CopyOf(SomeBytes(number, payload));
  if (bytes > payload) entry.residual = Bytes::CopyOf(SomeBytes(~number, bytes - payload));
  return entry;
}

void ExpectSame(const LogEntry& found, const LogEntry& expected) {
  EXPECT_EQ(found.step, expected.step);
  EXPECT_EQ(found.text, expected.text);
  EXPECT_TRUE(found.payload.view() == expected.payload.view()) << expected.text;
  EXPECT_TRUE(found.residual.view() == expected.residual.view()) << expected.text;
}

std::vector<uint64_t> StepsOf(const std::vector<LogEntry>& entries) {
  std::vector<uint64_t> steps;
  for (const LogEntry& entry : entries) steps.push_back(entry.step.value());
  return steps;
}

SimulatedDisk::Options DiskOptionsOf(Executor* executor) {
  SimulatedDisk::Options options;
  options.executor = executor;
  options.end_dead_operations = true;
  return options;
}

ExtentIdentity SomeIdentity() {
  ExtentIdentity identity;
  identity.job = JobId(0x0123456789abcdef);
  identity.shard = 2;
  identity.shards = 3;
  identity.nonce = 0xfedcba9876543210;
  return identity;
}

// A disk, and a sequence of processes that open the log on it.
class ContributionLogTest : public testing::Test {
 protected:
  ContributionLogTest() : disk_(DiskOptionsOf(&executor_)) {
    EXPECT_TRUE(disk_.CreateFolder("/job").ok());
  }
  ~ContributionLogTest() override { executor_.RunAll(); }

  absl::Status TryOpen(bool live, const LogRoom& room = kRoom) {
    executor_.RunAll();
    log_.reset();
    killed_ = false;
    auto opened =
        ContributionLog::Open(disk_.blocking(), &disk_, "/job", SomeIdentity(), room, live,
                              &executor_, &account_, [this](ContributionLog::Done then) {
                                return [this, then](absl::Status status) {
                                  if (!killed_) executor_.Post([=] { then(status); });
                                };
                              });
    if (opened.ok()) log_ = *std::move(opened);
    return opened.status();
  }
  void Open(bool live, const LogRoom& room = kRoom) {
    const absl::Status status = TryOpen(live, room);
    ASSERT_TRUE(status.ok()) << status;
  }
  // Begins a new log, ready for entries.
  void Begin(const LogId& id = kId) {
    Open(/*live=*/false);
    log_->Start(id);
    log_->Resume();
  }
  // Sets `outcome` to the status; Unknown until it completes.
  void Append(LogEntry entry, absl::Status* outcome) {
    *outcome = absl::UnknownError("not completed");
    log_->Append(std::move(entry), [outcome](absl::Status status) { *outcome = status; });
  }
  absl::Status Write(LogEntry entry) {
    absl::Status outcome;
    Append(std::move(entry), &outcome);
    executor_.RunAll();
    return outcome;
  }
  // Returns the entries of the open log from there on.
  absl::StatusOr<std::vector<LogEntry>> Read(uint64_t position = 0, const LogId& id = kId) {
    log_->Rewind(id, position);
    std::vector<LogEntry> all;
    for (;;) {
      absl::StatusOr<std::vector<LogEntry>> page = absl::UnknownError("not completed");
      log_->ReadNext([&page](absl::StatusOr<std::vector<LogEntry>> p) { page = std::move(p); });
      executor_.RunAll();
      if (!page.ok()) return page.status();
      if (page->empty()) return all;
      for (LogEntry& entry : *page) all.push_back(std::move(entry));
    }
  }
  // Returns the entries that another process finds when it continues the log.
  absl::StatusOr<std::vector<LogEntry>> Reopen(uint64_t position = 0, const LogId& id = kId) {
    EPS_CHECK(TryOpen(/*live=*/true).ok());
    return Read(position, id);
  }
  // Returns the start of an entry that has a batch of its own.
  uint64_t PositionOf(uint64_t number) { return log_->PositionBehind(Step(number - 1)); }
  static uint64_t OffsetOf(uint64_t position) { return kDiskBlock + position % kRing; }

  ManualExecutor executor_;
  SimulatedDisk disk_;
  MemoryAccount account_;
  bool killed_ = false;  // completions no longer matter
  std::unique_ptr<ContributionLog> log_;
};

TEST_F(ContributionLogTest, ReturnsEntriesInOrder) {
  Begin();
  EXPECT_FALSE(log_->kept());
  EXPECT_EQ(log_->steps(), 2u);
  EXPECT_EQ(disk_.Contents(kPath).size(), ContributionLog::FileBytes(kRoom));
  EXPECT_EQ(disk_.Contents(kPath).size(), kDiskBlock + kRing);
  const std::vector<size_t> bytes = {0, 1, 20, 4000, 4096, 8000, kLargest};
  for (size_t i = 0; i < bytes.size(); ++i) {
    ASSERT_TRUE(Write(EntryOf(i + 1, bytes[i])).ok());
  }
  ASSERT_TRUE(Write(LogEntry{Step(8), "", Bytes(), Bytes()}).ok());
  const auto found = Reopen();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(log_->kept());
  ASSERT_EQ(found->size(), bytes.size() + 1);
  for (size_t i = 0; i < bytes.size(); ++i) ExpectSame((*found)[i], EntryOf(i + 1, bytes[i]));
  EXPECT_TRUE((*found)[7].text.empty() && (*found)[7].payload.empty());
  EXPECT_GT(account_.live_bytes(MemoryKind::kContribution), kLargest);
  EXPECT_GT(account_.live_bytes(MemoryKind::kResidual), 0u);
  // The next entry follows them.
  ASSERT_TRUE(Write(EntryOf(9)).ok());
  EXPECT_EQ(StepsOf(*Reopen()), (std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST_F(ContributionLogTest, EntriesDuringAWriteShareABatch) {
  Begin();
  const uint64_t writes = disk_.calls(Call::kWrite);
  absl::Status outcome[6];
  absl::Status flushed = absl::UnknownError("not completed");
  Append(EntryOf(1), &outcome[0]);
  executor_.Run(0);
  for (uint64_t i = 1; i < 4; ++i) Append(EntryOf(i + 1), &outcome[i]);
  log_->Flush([&](absl::Status status) {
    for (uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(outcome[i].ok()) << i;
    flushed = status;
  });
  EXPECT_EQ(disk_.calls(Call::kWrite), writes + 1);
  executor_.RunAll();
  EXPECT_TRUE(flushed.ok());
  EXPECT_EQ(disk_.calls(Call::kWrite), writes + 2);
  EXPECT_EQ(PositionOf(2), kDiskBlock);
  EXPECT_EQ(PositionOf(4), kDiskBlock);
  // No batch exceeds the largest batch.
  Append(EntryOf(5, 8000), &outcome[4]);
  Append(EntryOf(6, 8000), &outcome[5]);
  executor_.RunAll();
  EXPECT_TRUE(outcome[4].ok() && outcome[5].ok());
  EXPECT_EQ(disk_.calls(Call::kWrite), writes + 4);
  EXPECT_EQ(StepsOf(*Reopen()), (std::vector<uint64_t>{1, 2, 3, 4, 5, 6}));
}

TEST_F(ContributionLogTest, EntriesWaitUntilTheLogIsKnown) {
  Open(/*live=*/false);
  // Cuts are made before it begins.
  absl::Status flushed = absl::UnknownError("not completed");
  log_->Flush([&](absl::Status status) { flushed = status; });
  executor_.RunAll();
  EXPECT_TRUE(flushed.ok()) << flushed;
  log_->Start(kId);
  const uint64_t writes = disk_.calls(Call::kWrite);
  absl::Status outcome;
  Append(EntryOf(1), &outcome);
  executor_.RunAll();
  EXPECT_EQ(disk_.calls(Call::kWrite), writes);
  log_->Resume();
  executor_.RunAll();
  EXPECT_TRUE(outcome.ok()) << outcome;
  EXPECT_EQ(disk_.calls(Call::kWrite), writes + 1);
}

TEST_F(ContributionLogTest, GoesAroundTheRing) {
  Begin();
  std::deque<LogEntry> kept;
  uint64_t laps_with_gap = 0;
  for (uint64_t i = 1; i < 400; ++i) {
    const uint64_t end = log_->PositionBehind(Step(i));
    kept.push_back(EntryOf(i, i * i * 37 % kLargest));
    ASSERT_TRUE(Write(kept.back()).ok()) << i;
    if (PositionOf(i) != end) {
      ++laps_with_gap;
      EXPECT_EQ(PositionOf(i) % kRing, 0u);
    }
    if (i % 4 == 0) {
      while (kept.size() > 3) kept.pop_front();
      log_->Release(PositionOf(kept.front().step.value()));
    }
    if (i % 7 != 0) continue;
    const auto found = Reopen(PositionOf(kept.front().step.value()));
    ASSERT_TRUE(found.ok()) << i << ": " << found.status();
    ASSERT_EQ(found->size(), kept.size()) << i;
    for (size_t k = 0; k < kept.size(); ++k) ExpectSame((*found)[k], kept[k]);
  }
  EXPECT_GT(laps_with_gap, 10u);
}

TEST_F(ContributionLogTest, PositionsAreThoseOfBatches) {
  Begin();
  absl::Status outcome[3];
  ASSERT_TRUE(Write(EntryOf(3)).ok());
  Append(EntryOf(3), &outcome[0]);
  Append(EntryOf(4), &outcome[1]);
  Append(EntryOf(3), &outcome[2]);  // a late one
  executor_.RunAll();
  ASSERT_TRUE(Write(EntryOf(5, 8000)).ok());
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(log_->PositionBehind(Step(2)), 0u);
    EXPECT_EQ(log_->PositionBehind(Step(3)), 1 * kDiskBlock);
    EXPECT_EQ(log_->PositionBehind(Step(4)), 2 * kDiskBlock);
    EXPECT_EQ(log_->PositionBehind(Step(5)), 4 * kDiskBlock);
    ASSERT_TRUE(Reopen().ok());
  }
  EXPECT_EQ(StepsOf(*Read(kDiskBlock)), (std::vector<uint64_t>{3, 4, 3, 5}));
  EXPECT_TRUE(Read(4 * kDiskBlock)->empty());
  ASSERT_TRUE(Write(EntryOf(6)).ok());
  EXPECT_EQ(StepsOf(*Reopen(4 * kDiskBlock)), (std::vector<uint64_t>{6}));
}

TEST_F(ContributionLogTest, OtherTermsAndIncarnationsAreNotSeen) {
  Begin();
  for (uint64_t i = 1; i < 6; ++i) ASSERT_TRUE(Write(EntryOf(i)).ok());
  EXPECT_TRUE(Reopen(0, {Term(6), 77})->empty());
  EXPECT_TRUE(Reopen(0, {Term(5), 78})->empty());
  const LogId next = {Term(6), 78};
  Begin(next);
  ASSERT_TRUE(Write(EntryOf(9)).ok());
  EXPECT_EQ(StepsOf(*Reopen(0, next)), (std::vector<uint64_t>{9}));
}

// ---- Power cuts and processes that are killed.

TEST_F(ContributionLogTest, PowerCutLosesNothingAcknowledged) {
  const int rounds = std::getenv("EPS_LONG") != nullptr ? 100000 : 3000;
  Begin();
  std::deque<LogEntry> expected;  // the entries that must be found
  uint64_t number = 0, base = 0;  // of the last entry; where the catalogue's log begins
  uint64_t draws = 1;
  const auto draw = [&draws](uint64_t below) {
    draws = draws * 6364136223846793005u + 1442695040888963407u;
    return (draws >> 33) % below;
  };
  int kept_unacknowledged = 0;
  int lost = 0;
  for (int round = 0; round < rounds; ++round) {
    disk_.CutPowerAtCall(1 + draw(23), static_cast<uint64_t>(round));
    std::deque<LogEntry> appended = expected;
    while (disk_.on()) {
      // One or two entries, the second at once or during a write; sometimes a cut.
      absl::Status outcome[2] = {absl::OkStatus(), absl::OkStatus()};
      for (absl::Status& status : outcome) {
        if (&status == &outcome[1] && draw(3) != 0) break;
        appended.push_back(EntryOf(++number, draw(3) == 0 ? draw(kLargest) : draw(300)));
        Append(appended.back(), &status);
        for (uint64_t i = draw(4); i > 0 && !executor_.empty(); --i) executor_.Run(0);
      }
      executor_.RunAll();
      if (!outcome[0].ok() || !outcome[1].ok()) break;
      expected = appended;
      if (expected.size() < 5) continue;
      while (expected.size() > 2) expected.pop_front();
      base = log_->PositionBehind(Step(expected.front().step.value() - 1));
      log_->Release(base);
      appended = expected;
    }
    if (disk_.on()) disk_.CutPower(static_cast<uint64_t>(round));
    disk_.PowerOn();
    auto found = Reopen(base);
    ASSERT_TRUE(found.ok()) << "round " << round << ": " << found.status();
    // The first batch may hold older entries too.
    while (!found->empty() && found->front().step < appended.front().step) {
      found->erase(found->begin());
    }
    ASSERT_GE(found->size(), expected.size()) << "round " << round;
    ASSERT_LE(found->size(), appended.size()) << "round " << round;
    kept_unacknowledged += found->size() > expected.size();
    lost += found->size() < appended.size();
    appended.resize(found->size());
    for (size_t i = 0; i < found->size(); ++i) ExpectSame((*found)[i], appended[i]);
    expected = std::move(appended);
  }
  EXPECT_GT(kept_unacknowledged, rounds / 20);
  EXPECT_GT(lost, rounds / 20);
}

TEST_F(ContributionLogTest, ReadingMakesAKilledProcessesLogDurable) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Begin({Term(5), seed});
    ASSERT_TRUE(Write(EntryOf(1)).ok());
    absl::Status outcome;
    Append(EntryOf(2, 8000), &outcome);
    executor_.Run(0);
    killed_ = true;  // before it syncs
    const auto found = Reopen(0, {Term(5), seed});
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(StepsOf(*found), (std::vector<uint64_t>{1, 2}));
    Append(EntryOf(3), &outcome);
    executor_.Run(0);
    disk_.CutPower(seed);
    disk_.PowerOn();
    const auto again = Reopen(0, {Term(5), seed});
    ASSERT_TRUE(again.ok()) << again.status();
    ASSERT_GE(again->size(), 2u) << "seed " << seed;
    ExpectSame((*again)[1], EntryOf(2, 8000));
  }
}

// A torn batch, then one of another size, where one of the two does not fit before the end of the
// lap: the torn batch is not reported as damage.
TEST_F(ContributionLogTest, WritesAfterATornBatch) {
  for (const bool torn_at_lap : {true, false}) {
    Begin({Term(torn_at_lap ? 7 : 8), 1});
    const LogId id = {Term(torn_at_lap ? 7 : 8), 1};
    for (uint64_t i = 1; i < 20; ++i) ASSERT_TRUE(Write(EntryOf(i)).ok());
    log_->Release(PositionOf(18));
    ASSERT_TRUE(Write(EntryOf(20)).ok());
    const uint64_t base = PositionOf(18);
    const uint64_t end = 20 * kDiskBlock;  // one block is left of the lap
    EXPECT_EQ(log_->PositionBehind(Step(20)), end);
    // Its head arrives, but not everything else.
    ASSERT_TRUE(Write(EntryOf(21, torn_at_lap ? 8000 : 3000)).ok());
    const uint64_t torn = torn_at_lap ? kRing : end;
    EXPECT_EQ(PositionOf(21), torn);
    disk_.FlipBit(kPath, OffsetOf(torn) + 2000, 3);
    EXPECT_EQ(StepsOf(*Reopen(base, id)), (std::vector<uint64_t>{18, 19, 20}));
    ASSERT_TRUE(Write(EntryOf(22, torn_at_lap ? 100 : 8000)).ok());
    EXPECT_EQ(PositionOf(22), torn_at_lap ? end : kRing);
    for (uint64_t more = 23; more < 26; ++more) {
      const auto found = Reopen(base, id);
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_EQ(found->back().step, Step(more - 1));
      EXPECT_EQ(found->size(), more - 19);
      ASSERT_TRUE(Write(EntryOf(more, more == 23 ? 100 : 8000)).ok());
    }
  }
}

TEST_F(ContributionLogTest, ACopyIsNotGoneOnWith) {
  Begin();
  ASSERT_TRUE(Write(EntryOf(1)).ok());
  log_.reset();
  disk_.ReplaceByCopy(kPath);
  Open(/*live=*/true);
  EXPECT_FALSE(log_->kept());
  EXPECT_TRUE(Read()->empty());
  // The log was created again, so it is no copy from now on.
  Begin({Term(6), 78});
  ASSERT_TRUE(Write(EntryOf(2)).ok());
  EXPECT_EQ(StepsOf(*Reopen(0, {Term(6), 78})), (std::vector<uint64_t>{2}));
  EXPECT_TRUE(log_->kept());
}

// ---- Damage.

// Flips bits of the head and of the content of each of the batches, which hold these entries.
class ContributionLogDamageTest : public ContributionLogTest {
 protected:
  void FlipEverywhere(uint64_t first, const std::vector<size_t>& sizes) {
    std::vector<uint64_t> positions;
    const uint64_t base = PositionOf(first);
    for (size_t i = 0; i < sizes.size(); ++i) positions.push_back(PositionOf(first + i));
    for (size_t i = 0; i < sizes.size(); ++i) {
      const uint64_t bytes = kHeads + std::max<size_t>(sizes[i], EntryOf(first + i).text.size());
      for (uint64_t at = 0; at < bytes; at += at < 100 ? 3 : 509) {
        disk_.FlipBit(kPath, OffsetOf(positions[i]) + at, static_cast<int>(at % 8));
        const auto found = Reopen(base);
        disk_.FlipBit(kPath, OffsetOf(positions[i]) + at, static_cast<int>(at % 8));
        if (i + 1 == sizes.size()) {
          // It looks like a batch that was never whole.
          ASSERT_TRUE(found.ok()) << found.status();
          EXPECT_EQ(found->size(), sizes.size() - 1);
          continue;
        }
        ASSERT_EQ(found.status().code(), absl::StatusCode::kDataLoss)
            << "entry " << first + i << " byte " << at << ": " << found.status();
        // A batch at the start of a lap whose head is damaged leaves no trace.
        const uint64_t named = positions[i] % kRing == 0 && at < 64 && i > 0
                                   ? positions[i - 1] + RoundUpTo(kHeads + sizes[i - 1], kDiskBlock)
                                   : positions[i];
        ASSERT_THAT(std::string(found.status().message()),
                    AllOf(HasSubstr(kPath), HasSubstr("offset " + std::to_string(OffsetOf(named)) +
                                                      ": it is not whole")))
            << "entry " << first + i << " byte " << at;
      }
    }
    const auto whole = Reopen(base);
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_EQ(whole->size(), sizes.size());
  }
  // Writes entries of those sizes, after `blocks` blocks that are no longer needed.
  void WriteBehind(uint64_t blocks, const std::vector<size_t>& sizes) {
    Begin();
    for (uint64_t i = 1; i <= blocks; ++i) ASSERT_TRUE(Write(EntryOf(i)).ok());
    log_->Release(log_->PositionBehind(Step(blocks)));
    for (size_t i = 0; i < sizes.size(); ++i) {
      ASSERT_TRUE(Write(EntryOf(blocks + 1 + i, sizes[i])).ok());
    }
  }
};

TEST_F(ContributionLogDamageTest, DetectsDamageBeforeOtherBatches) {
  const std::vector<size_t> sizes = {100, 5000, kLargest, 1000, kLargest, 100};
  WriteBehind(1, sizes);
  FlipEverywhere(2, sizes);
}

TEST_F(ContributionLogDamageTest, DetectsDamageAtALapsEnd) {
  // The second ends with the lap, or before it; so does one of the largest size.
  for (const std::vector<size_t>& sizes :
       {std::vector<size_t>{100, 5000, 300, 100}, std::vector<size_t>{100, 5000, 9000, 100},
        std::vector<size_t>{100, 100, 9000, kLargest, 100}}) {
    WriteBehind(18, sizes);
    EXPECT_EQ(PositionOf(21) % kRing, 0u);
    FlipEverywhere(19, sizes);
  }
  const std::vector<size_t> largest = {kLargest, kLargest, 100};
  WriteBehind(18, largest);
  EXPECT_EQ(PositionOf(20), kRing);
  FlipEverywhere(19, largest);
}

TEST_F(ContributionLogTest, DamagedHeaderEndsOnlyALiveLog) {
  for (uint64_t at = 0; at < kDiskBlock; at += at < 64 ? 1 : 97) {
    Begin();
    ASSERT_TRUE(Write(EntryOf(1)).ok());
    disk_.FlipBit(kPath, at, static_cast<int>(at % 8));
    const absl::Status live = TryOpen(/*live=*/true);
    ASSERT_EQ(live.code(), absl::StatusCode::kDataLoss) << at << ": " << live;
    EXPECT_THAT(std::string(live.message()), AllOf(HasSubstr(kPath), HasSubstr("offset 0")));
    Open(/*live=*/false);
    EXPECT_FALSE(log_->kept());
    log_->Start(kId);
    log_->Resume();
    ASSERT_TRUE(Write(EntryOf(2)).ok());
    EXPECT_EQ(StepsOf(*Reopen()), (std::vector<uint64_t>{2}));
  }
}

TEST_F(ContributionLogTest, AMissingFileIsMadeAnew) {
  Begin();
  log_.reset();
  ASSERT_TRUE(disk_.Remove(kPath).ok());
  Open(/*live=*/true);
  EXPECT_FALSE(log_->kept());
  EXPECT_TRUE(Read()->empty());
}

TEST_F(ContributionLogTest, ReplacesASmallLogUnlessLive) {
  Begin();
  const LogRoom more = {3, 12000, 6000};
  Open(/*live=*/true, more);
  EXPECT_TRUE(log_->kept());
  EXPECT_EQ(log_->steps(), 2u);
  Open(/*live=*/false, more);
  EXPECT_FALSE(log_->kept());
  EXPECT_EQ(log_->steps(), 3u);
  const uint64_t created = disk_.calls(Call::kCreateFile);
  Open(/*live=*/false);
  EXPECT_EQ(log_->steps(), 3u);
  EXPECT_EQ(disk_.calls(Call::kCreateFile), created);
  log_.reset();
  disk_.set_capacity_bytes(disk_.used_bytes() + 1000);
  const LogRoom huge = {300, 12000, 6000};
  const absl::Status full = TryOpen(/*live=*/false, huge);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  const uint64_t missing =
      ContributionLog::FileBytes(huge) - ContributionLog::FileBytes(more) - 1000;
  EXPECT_THAT(std::string(full.message()),
              AllOf(HasSubstr(kPath), HasSubstr(std::to_string(missing) + " are missing")));
}

// ---- Errors.

TEST_F(ContributionLogTest, FullRingNamesTheKey) {
  Begin();
  for (uint64_t i = 1; i <= 21; ++i) ASSERT_TRUE(Write(EntryOf(i)).ok()) << i;
  // A flush takes no room.
  absl::Status flushed = absl::UnknownError("not completed");
  log_->Flush([&](absl::Status status) { flushed = status; });
  executor_.RunAll();
  EXPECT_TRUE(flushed.ok()) << flushed;
  const absl::Status full = Write(EntryOf(22));
  EXPECT_EQ(full.code(), absl::StatusCode::kInternal) << full;
  EXPECT_THAT(std::string(full.message()), AllOf(HasSubstr(kPath), HasSubstr("storage.cut_steps")));
  log_->Release(PositionOf(20));
  EXPECT_EQ(Write(EntryOf(23)), full);
  EXPECT_EQ(Reopen()->size(), 21u);
}

TEST_F(ContributionLogTest, RefusesAnEntryWithoutRoom) {
  Begin();
  const absl::Status status = Write(EntryOf(1, kLargest + 1));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(kPath));
}

TEST_F(ContributionLogTest, FailedWriteOrSyncEndsTheLog) {
  for (const Call call : {Call::kWrite, Call::kSync}) {
    for (const Fault fault : {Fault::kIoError, Fault::kShortWrite, Fault::kNoSpace}) {
      Begin();
      ASSERT_TRUE(Write(EntryOf(1)).ok());
      disk_.FailCall(call, 1, fault);
      absl::Status outcome[4];
      Append(EntryOf(2), &outcome[0]);
      Append(EntryOf(3), &outcome[1]);
      executor_.Run(0);
      Append(EntryOf(4), &outcome[2]);  // in the next batch
      executor_.RunAll();
      Append(EntryOf(5), &outcome[3]);
      const uint64_t writes = disk_.calls(Call::kWrite);
      executor_.RunAll();
      for (const absl::Status& status : outcome) {
        EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr(kPath));
      }
      EXPECT_EQ(disk_.calls(Call::kWrite), writes);
      const auto found = Reopen();
      ASSERT_TRUE(found.ok()) << found.status();
      ASSERT_FALSE(found->empty());
      EXPECT_EQ(found->front().step, Step(1));
    }
  }
}

TEST_F(ContributionLogTest, AFailedReadIsReported) {
  Begin();
  ASSERT_TRUE(Write(EntryOf(1)).ok());
  for (uint64_t n = 1; n <= 4; ++n) {
    Open(/*live=*/true);
    disk_.FailCall(Call::kRead, n, Fault::kIoError);
    EXPECT_EQ(Read().status().code(), absl::StatusCode::kInternal) << n;
  }
  Open(/*live=*/true);
  disk_.FailCall(Call::kSync, 1, Fault::kIoError);
  EXPECT_EQ(Read().status().code(), absl::StatusCode::kInternal);
}

// ---- The bytes by docs/formats/log.md, independently of the product code.

TEST_F(ContributionLogTest, TheFormatIsWhatThePageSays) {
  const LogRoom room = {1, 100, 100};
  Open(/*live=*/false, room);
  log_->Start(kId);
  log_->Resume();
  ASSERT_TRUE(Write({Step(3), "one", Bytes::CopyOf("payload"), Bytes::CopyOf("rest")}).ok());
  absl::Status outcome[2];
  Append({Step(4), "two", Bytes(), Bytes::CopyOf("r")}, &outcome[0]);
  Append({Step(5), "", Bytes(), Bytes()}, &outcome[1]);
  executor_.RunAll();

  std::string block;
  const auto integer = [&block](uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) block.push_back(static_cast<char>(value >> (8 * i)));
  };
  block = "EPSLOG01";
  integer(1, 4);
  integer(0, 4);
  integer(0x0123456789abcdef, 8);
  integer(2, 4);
  integer(3, 4);
  integer(0xfedcba9876543210, 8);
  integer(3 * 4096, 8);
  integer(4096, 8);
  integer((*disk_.blocking()->Open(kPath))->identity().number, 8);
  integer(0, 8);
  block.resize(4092);
  integer(Crc32c(block), 4);
  std::string file = block;

  const auto entry = [&](uint64_t step, const std::string& text, const std::string& payload,
                         const std::string& residual) {
    block.clear();
    integer(step, 8);
    for (const std::string* field : {&text, &payload, &residual}) integer(field->size(), 8);
    return block + text + payload + residual;
  };
  const auto batch = [&](uint64_t position, uint64_t after, uint32_t entries,
                         const std::string& content) {
    block = "EPSBAT01";
    for (const uint64_t value : {uint64_t{5}, uint64_t{77}, position, after}) integer(value, 8);
    integer(64 + content.size(), 8);
    integer(entries, 4);
    integer(Crc32c(content), 4);
    integer(0, 4);
    integer(Crc32c(block), 4);
    block += content;
    block.resize(4096);
    file += block;
  };
  batch(0, 0, 1, entry(3, "one", "payload", "rest"));
  batch(4096, 4096, 2, entry(4, "two", "", "r") + entry(5, "", "", ""));
  file.resize(4 * 4096);
  EXPECT_TRUE(disk_.Contents(kPath) == file)
      << "the format has changed: raise kVersion, or undo it";
  EXPECT_EQ(Crc32c(file), 3500958365u) << "likewise";
}

// ---- Through a backend.

class DurableLog : public testing::TestWithParam<DurableKind> {
 protected:
  DurableLog() : world_(GetParam()) { world_.log = kRoom; }

  std::unique_ptr<DurableProcess> NewProcess() {
    auto process = std::make_unique<DurableProcess>(&world_);
    EPS_CHECK_MSG(process->status().ok(), process->status());
    return process;
  }
  void Replace(std::unique_ptr<DurableProcess>* process) {
    process->reset();
    *process = NewProcess();
  }
  static CutId IdOf(uint64_t step, uint64_t term) { return {Step(step), Term(term)}; }
  static absl::Status StartLog(DurableProcess* process, const LogId& id, const CutId& base) {
    return process->Await(process->Submit(StartLogRequest{{id, base, base}})).status;
  }
  static absl::Status Log(DurableProcess* process, uint64_t number) {
    return process->Await(process->Submit(LogRequest{EntryOf(number, number * 977 % 5000)})).status;
  }
  static absl::StatusOr<std::vector<LogEntry>> ReadLog(DurableProcess* process) {
    std::vector<LogEntry> all;
    for (;;) {
      const OpId op = process->Submit(ReadLogRequest{});
      const BackendDone done = process->Await(op);
      if (!done.status.ok()) return done.status;
      const auto page = std::get<std::shared_ptr<const std::vector<LogEntry>>>(done.value);
      if (page->empty()) return all;
      all.insert(all.end(), page->begin(), page->end());
    }
  }
  // A process in term 1 whose log begins after the cut of step 1 and has steps 2 to 4.
  std::unique_ptr<DurableProcess> Begun() {
    auto process = NewProcess();
    const OpId promise = process->Submit(PromiseRequest{Term(1)});
    EXPECT_TRUE(process->Await(promise).status.ok());
    process->WriteAll(Version(1));
    EXPECT_TRUE(process->Cut(CutAt(1, 1, 1)).ok());
    EXPECT_EQ(process->backend().caps().log_steps, 2u);
    const absl::Status started = StartLog(process.get(), kOne, IdOf(1, 1));
    EXPECT_TRUE(started.ok()) << started;
    for (uint64_t i = 2; i < 5; ++i) EXPECT_TRUE(Log(process.get(), i).ok());
    return process;
  }

  const LogId kOne = {Term(1), 11};
  DurableWorld world_;
};

TEST_P(DurableLog, AnotherProcessReadsEntriesAfterTheCut) {
  auto process = Begun();
  process->WriteAll(Version(3));
  ASSERT_TRUE(process->Cut(CutAt(3, 1, 3)).ok());
  ASSERT_TRUE(Log(process.get(), 5).ok());
  for (uint64_t last = 5; last < 8; ++last) {
    process.reset();
    world_.disk.CutPower(last);
    world_.disk.PowerOn();
    Replace(&process);
    const auto found = process->Recover();
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_TRUE(found->log.has_value());
    EXPECT_EQ(found->log->id.term, Term(1));
    EXPECT_EQ(found->log->id.incarnation, 11u);
    EXPECT_EQ(found->log->opened, IdOf(1, 1));
    EXPECT_EQ(found->log->base, IdOf(3, 1));
    ASSERT_TRUE(process->Restore(found->log->base, Term(1)).ok());
    const auto entries = ReadLog(process.get());
    ASSERT_TRUE(entries.ok()) << entries.status();
    ASSERT_EQ(entries->size(), last - 3);
    for (size_t i = 0; i < entries->size(); ++i) {
      ExpectSame((*entries)[i], EntryOf(4 + i, (4 + i) * 977 % 5000));
    }
    ASSERT_TRUE(Log(process.get(), last + 1).ok());
  }
  // A cut that holds everything leaves nothing to read.
  process->backend().Recycle(IdOf(3, 1));
  process->WriteAll(Version(8));
  ASSERT_TRUE(process->Cut(CutAt(8, 1, 8)).ok());
  Replace(&process);
  EXPECT_EQ(process->Recover()->log->base, IdOf(8, 1));
  ASSERT_TRUE(process->Restore(IdOf(8, 1), Term(1)).ok());
  EXPECT_TRUE(ReadLog(process.get())->empty());
}

TEST_P(DurableLog, LaterTermHidesTheOldLog) {
  auto process = Begun();
  ASSERT_TRUE(process->Restore(IdOf(1, 1), Term(2)).ok());
  EXPECT_FALSE(process->Recover()->log.has_value());
  EXPECT_EQ(StartLog(process.get(), kOne, IdOf(1, 1)).code(),
            absl::StatusCode::kFailedPrecondition);
  Replace(&process);
  ASSERT_TRUE(process->Restore(IdOf(1, 1), Term(2)).ok());
  ASSERT_TRUE(StartLog(process.get(), {Term(2), 12}, IdOf(1, 1)).ok());
  ASSERT_TRUE(Log(process.get(), 9).ok());
  Replace(&process);
  EXPECT_EQ(process->Recover()->log->id.incarnation, 12u);
  ASSERT_TRUE(process->Restore(IdOf(1, 1), Term(2)).ok());
  EXPECT_EQ(StepsOf(*ReadLog(process.get())), (std::vector<uint64_t>{9}));
}

TEST_P(DurableLog, NeedsPromisedTermAndYoungestCut) {
  auto process = Begun();
  Replace(&process);
  EXPECT_TRUE(process->Recover()->log.has_value());
  // A cut that the log does not know.
  CatalogueCut cut = process->catalogue().Cuts(world_.spec.id())->back();
  cut.border.id.step = Step(2);
  ASSERT_TRUE(process->catalogue().AddCut(world_.spec.id(), cut, {}).ok());
  EXPECT_FALSE(process->Recover()->log.has_value());
  ASSERT_TRUE(process->catalogue().Restore(world_.spec.id(), IdOf(1, 1), Term(1)).ok());
  EXPECT_TRUE(process->Recover()->log.has_value());
  ASSERT_TRUE(process->catalogue().Promise(world_.spec.id(), Term(2)).ok());
  EXPECT_FALSE(process->Recover()->log.has_value());
}

TEST_P(DurableLog, IsNotFoundWithoutItsFile) {
  auto process = Begun();
  process.reset();
  ASSERT_TRUE(world_.disk.blocking()->Remove("/state/extents/contributions.eps").ok());
  Replace(&process);
  EXPECT_FALSE(process->Recover()->log.has_value());
}

// The owner of the original may have received more.
TEST_P(DurableLog, IsNotFoundInACopiedFile) {
  auto process = Begun();
  process.reset();
  world_.disk.ReplaceByCopy("/state/extents/contributions.eps");
  Replace(&process);
  const auto found = process->Recover();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->log.has_value());
  ASSERT_EQ(found->cuts.size(), 1u);
  EXPECT_EQ(found->cuts.front().id, IdOf(1, 1));
}

INSTANTIATE_TEST_SUITE_P(All, DurableLog, testing::Values(kInDram, kOnNvme),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace eps
