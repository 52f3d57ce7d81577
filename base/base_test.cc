#include <atomic>
#include <future>
#include <vector>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/executor.h"
#include "base/ids.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(Checksum, Crc32cMatchesTheRfcVectors) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(Checksum, Crc32cContinues) { EXPECT_EQ(Crc32c("6789", Crc32c("12345")), Crc32c("123456789")); }

TEST(Checksum, Sha256MatchesFips) {
  EXPECT_EQ(ToHex(Sha256Of("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Bytes, StayChargedUntilTheLastReferenceDrops) {
  MemoryAccount account;
  Bytes whole;
  {
    Buffer buffer(1000, MemoryKind::kFetch, &account);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    buffer.data()[999] = 7;
    whole = std::move(buffer).Freeze();
  }
  EXPECT_EQ(account.live_bytes(MemoryKind::kFetch), 1000u);
  Bytes piece = whole.Sub(999, 1);
  whole = Bytes();
  EXPECT_EQ(account.live_bytes(), 1000u);
  EXPECT_EQ(piece.data()[0], 7);
  piece = Bytes();
  EXPECT_EQ(account.live_bytes(), 0u);
  EXPECT_EQ(account.peak_bytes(MemoryKind::kFetch), 1000u);
}

TEST(Buffer, LargeOnesBeginOnAHugePage) {
  constexpr size_t kHugePage = size_t{2} << 20;
  for (const size_t size : {kHugePage, 3 * kHugePage + 1}) {
    Buffer buffer(size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kHugePage, 0u) << size;
  }
}

TEST(MemoryAccount, RefusesBeyondTheLimitWithTheFigures) {
  MemoryAccount account(100);
  EXPECT_TRUE(account.TryCharge(MemoryKind::kState, 60).ok());
  absl::Status refused = account.TryCharge(MemoryKind::kContribution, 50);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              testing::HasSubstr("50 bytes wanted, 60 in use, limit 100"));
  account.Release(MemoryKind::kState, 60);
  EXPECT_TRUE(account.TryCharge(MemoryKind::kContribution, 100).ok());
}

TEST(Sequence, RunsTasksInOrderOneAtATime) {
  std::vector<int> seen;
  std::atomic<int> inside{0};
  bool overlapped = false;
  {
    ThreadPool pool(4);
    Sequence sequence(&pool);
    for (int i = 0; i < 1000; ++i) {
      sequence.Post([&, i] {
        if (inside.fetch_add(1) != 0) overlapped = true;
        seen.push_back(i);
        inside.fetch_sub(1);
      });
    }
  }
  EXPECT_FALSE(overlapped);
  ASSERT_EQ(seen.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[i], i);
}

TEST(LaneQueue, TakesEarlierLanesFirst) {
  LaneQueue<int> queue;
  queue.Push(Lane::kBackground, 30);
  queue.Push(Lane::kUpdate, 20);
  queue.Push(Lane::kUpdate, 21);
  queue.Push(Lane::kClient, 10);
  queue.Push(Lane::kCore, 0);
  std::vector<int> taken;
  while (!queue.empty()) taken.push_back(queue.Pop());
  EXPECT_EQ(taken, (std::vector<int>{0, 10, 20, 21, 30}));
}

TEST(LaneQueue, StarvesNoLane) {
  LaneQueue<Lane> queue;
  queue.Push(Lane::kUpdate, Lane::kUpdate);
  queue.Push(Lane::kBackground, Lane::kBackground);
  std::vector<Lane> waited_for;
  int taken = 0;
  for (; waited_for.size() < 2 && taken < 1000; ++taken) {
    queue.Push(Lane::kCore, Lane::kCore);
    const Lane lane = queue.Pop();
    if (lane != Lane::kCore) waited_for.push_back(lane);
  }
  EXPECT_EQ(waited_for, (std::vector<Lane>{Lane::kBackground, Lane::kUpdate}));
  EXPECT_EQ(taken, LaneQueue<Lane>::kPatience + 2);
}

// Keeps a thread of the executor busy until it is destroyed.
class HeldThread {
 public:
  explicit HeldThread(Executor* executor) {
    executor->Post([this, released = released_.get_future().share()] {
      held_.set_value();
      released.wait();
    });
    held_.get_future().wait();
  }
  ~HeldThread() { released_.set_value(); }

 private:
  std::promise<void> held_;
  std::promise<void> released_;
};

TEST(ThreadPool, RunsTheCoreBeforeQueuedUpdates) {
  std::vector<int> ran;  // by the one thread
  {
    ThreadPool pool(1);
    HeldThread thread(pool.lane(Lane::kUpdate));
    for (int i = 1; i <= 3; ++i) pool.lane(Lane::kUpdate)->Post([&ran, i] { ran.push_back(i); });
    pool.lane(Lane::kClient)->Post([&ran] { ran.push_back(10); });
    pool.lane(Lane::kCore)->Post([&ran] { ran.push_back(20); });
  }
  EXPECT_EQ(ran, (std::vector<int>{20, 10, 1, 2, 3}));
}

TEST(Sequence, KeepsItsOrderAcrossLanes) {
  std::vector<int> ran;  // by the one thread
  {
    ThreadPool pool(1);
    HeldThread thread(&pool);
    Sequence chunk(&pool);
    chunk.PostTo(Lane::kUpdate, [&ran] { ran.push_back(1); });
    chunk.PostTo(Lane::kClient, [&ran] { ran.push_back(2); });
    chunk.PostTo(Lane::kUpdate, [&ran] { ran.push_back(4); });
    pool.lane(Lane::kUpdate)->Post([&ran] { ran.push_back(3); });
  }
  EXPECT_EQ(ran, (std::vector<int>{1, 2, 3, 4}));
}

TEST(Sequence, LetsOthersRunBetweenLongTasks) {
  std::vector<int> ran;  // by the one thread
  {
    ThreadPool pool(1);
    HeldThread thread(&pool);
    Sequence call(pool.lane(Lane::kClient), Sequence::kLongTasks);
    call.Post([&pool, &ran] {
      ran.push_back(1);
      pool.lane(Lane::kCore)->Post([&ran] { ran.push_back(2); });
    });
    call.Post([&ran] { ran.push_back(3); });
  }
  EXPECT_EQ(ran, (std::vector<int>{1, 2, 3}));
}

TEST(Ids, AreOrderedAndDistinct) {
  EXPECT_LT(Step(1), Step(1).Next());
  static_assert(!std::is_convertible_v<uint64_t, Step>);
  static_assert(!std::is_convertible_v<Step, Version>);
}

}  // namespace
}  // namespace eps
