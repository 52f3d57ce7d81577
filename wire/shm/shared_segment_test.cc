#include "wire/shm/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/descriptor.h"
#include "gtest/gtest.h"
#include "wire/shm/shared_arena.h"

namespace eps {
namespace {

constexpr uint64_t kPage = 4096;

std::unique_ptr<SharedSegment> NewSegment(uint64_t bytes, SegmentWriters writers) {
  auto segment = SharedSegment::Create(bytes, writers);
  EXPECT_TRUE(segment.ok()) << segment.status();
  return *std::move(segment);
}

// Another holder's descriptor of the same file.
Descriptor Passed(const SharedSegment& segment) { return Descriptor(dup(segment.fd())); }

TEST(SharedSegmentTest, HoldersReadWhatTheCreatorWrites) {
  const auto weights = NewSegment(100, SegmentWriters::kCreator);
  EXPECT_EQ(weights->size(), kPage);
  std::memcpy(weights->data() + 10, "weights", 7);
  const auto other = SharedSegment::Open(Passed(*weights), kPage, SegmentWriters::kCreator);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(std::memcmp((*other)->data() + 10, "weights", 7), 0);
  std::memcpy(weights->data() + 10, "changed", 7);
  EXPECT_EQ(std::memcmp((*other)->data() + 10, "changed", 7), 0);
}

TEST(SharedSegmentTest, NobodyElseCanWriteWeights) {
  const auto weights = NewSegment(kPage, SegmentWriters::kCreator);
  const Descriptor file = Passed(*weights);
  EXPECT_EQ(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0), MAP_FAILED);
  void* const read_only = mmap(nullptr, kPage, PROT_READ, MAP_SHARED, file.get(), 0);
  ASSERT_NE(read_only, MAP_FAILED);
  EXPECT_NE(mprotect(read_only, kPage, PROT_READ | PROT_WRITE), 0);
  munmap(read_only, kPage);
  EXPECT_LT(pwrite(file.get(), "x", 1, 0), 0);
  EXPECT_NE(fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kPage), 0);
  weights->data()[0] = 1;  // the creator still can
}

TEST(SharedSegmentTest, NobodyCanChangeTheSize) {
  for (const SegmentWriters writers : {SegmentWriters::kCreator, SegmentWriters::kEveryHolder}) {
    const auto segment = NewSegment(2 * kPage, writers);
    EXPECT_NE(ftruncate(segment->fd(), kPage), 0);
    EXPECT_EQ(errno, EPERM);
    EXPECT_NE(ftruncate(segment->fd(), 3 * kPage), 0);
    EXPECT_NE(fcntl(segment->fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  }
}

TEST(SharedSegmentTest, RefusesSegmentsThatCouldFail) {
  // Without seals, its owner could shrink it, and reading it would end this process.
  Descriptor loose(memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(loose.get(), kPage), 0);
  EXPECT_EQ(SharedSegment::Open(Descriptor(dup(loose.get())), kPage, SegmentWriters::kEveryHolder)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  const auto gradients = NewSegment(kPage, SegmentWriters::kEveryHolder);
  const auto open = [&](uint64_t bytes, SegmentWriters writers) {
    return SharedSegment::Open(Passed(*gradients), bytes, writers).status().code();
  };
  EXPECT_EQ(open(kPage, SegmentWriters::kEveryHolder), absl::StatusCode::kOk);
  EXPECT_EQ(open(kPage + 1, SegmentWriters::kEveryHolder), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(open(0, SegmentWriters::kEveryHolder), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(open(kPage, SegmentWriters::kCreator), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(SharedSegment::Open(Descriptor(::open("/dev/null", O_RDWR | O_CLOEXEC)), 1,
                                   SegmentWriters::kCreator)
                   .ok());
}

TEST(SharedSegmentTest, PlacesOutsideAreRefused) {
  const auto segment = NewSegment(kPage, SegmentWriters::kEveryHolder);
  EXPECT_EQ(segment->At(kPage - 8, 8)->data(), segment->data() + kPage - 8);
  EXPECT_TRUE(segment->At(kPage, 0).ok());
  EXPECT_FALSE(segment->At(kPage - 7, 8).ok());
  EXPECT_FALSE(segment->At(kPage + 1, 0).ok());
  EXPECT_FALSE(segment->At(UINT64_MAX - 3, 8).ok());
  EXPECT_FALSE(segment->At(8, UINT64_MAX - 7).ok());
  EXPECT_EQ(segment->OffsetOf({segment->data() + 8, 16}), absl::optional<uint64_t>(8));
  EXPECT_EQ(segment->OffsetOf({segment->data() + 8, kPage - 7}), absl::nullopt);
  const uint8_t elsewhere = 0;
  EXPECT_EQ(segment->OffsetOf({&elsewhere, 1}), absl::nullopt);
}

TEST(SharedArenaTest, RangesKeepTheArena) {
  auto arena = std::make_shared<SharedArena>(NewSegment(2 * kPage, SegmentWriters::kCreator));
  const std::weak_ptr<SharedArena> watched = arena;
  std::shared_ptr<uint8_t> first = arena->Allocate(kPage);
  std::shared_ptr<uint8_t> second = arena->Allocate(kPage);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(arena->Allocate(1), nullptr);
  first.reset();
  first = arena->Allocate(1);
  EXPECT_NE(first, nullptr);
  arena.reset();
  second.get()[kPage - 1] = 1;
  second.reset();
  EXPECT_FALSE(watched.expired());
  first.reset();
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace eps
