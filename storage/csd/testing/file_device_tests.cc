#include "storage/csd/testing/file_device_tests.h"

#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "gmock/gmock.h"

namespace eps {

using ::testing::HasSubstr;

absl::Status FileDeviceTest::Wait(const std::function<void(Device::Done)>& start) {
  std::promise<absl::Status> status;
  const std::thread::id caller = std::this_thread::get_id();
  start([&](absl::Status s) {
    EXPECT_NE(std::this_thread::get_id(), caller);
    status.set_value(std::move(s));
  });
  return status.get_future().get();
}

TEST_P(FileDeviceTest, BytesComeBackOnEveryWay) {
  const Place dram = *device_->Allocate(kDiskBlock);
  Block sent(17), seen;
  ASSERT_TRUE(Write(&sent, kMedia.At(2 * kDiskBlock)).ok());
  ASSERT_TRUE(Read(kMedia.At(2 * kDiskBlock), &seen).ok());
  EXPECT_EQ(std::memcmp(seen.bytes, sent.bytes, kDiskBlock), 0);
  ASSERT_TRUE(Copy(kMedia.At(2 * kDiskBlock), dram).ok());
  seen = Block();
  ASSERT_TRUE(Read(dram, &seen).ok());
  EXPECT_EQ(std::memcmp(seen.bytes, sent.bytes, kDiskBlock), 0);
  sent = Block(18);
  ASSERT_TRUE(Write(&sent, dram).ok());
  ASSERT_TRUE(Copy(dram, kMedia).ok());
  ASSERT_TRUE(Read(kMedia, &seen).ok());
  EXPECT_EQ(std::memcmp(seen.bytes, sent.bytes, kDiskBlock), 0);
}

TEST_P(FileDeviceTest, EachLinkCountsItsBytesOnce) {
  const Place dram = *device_->Allocate(kDiskBlock);
  Block block;
  LinkBytes expected;
  EXPECT_TRUE(device_->link_bytes() == expected);
  const auto expect = [&](Link link, Direction direction, Purpose purpose) {
    expected.Add(link, direction, purpose, kDiskBlock);
  };
  ASSERT_TRUE(Write(&block, kMedia, Purpose::kGradient).ok());
  expect(Link::kHost, Direction::kWritten, Purpose::kGradient);
  expect(Link::kMedia, Direction::kWritten, Purpose::kGradient);
  EXPECT_TRUE(device_->link_bytes() == expected);
  ASSERT_TRUE(Read(kMedia, &block, Purpose::kWeights).ok());
  expect(Link::kHost, Direction::kRead, Purpose::kWeights);
  expect(Link::kMedia, Direction::kRead, Purpose::kWeights);
  EXPECT_TRUE(device_->link_bytes() == expected);
  ASSERT_TRUE(Write(&block, dram, Purpose::kGradient).ok());
  expect(Link::kHost, Direction::kWritten, Purpose::kGradient);
  EXPECT_TRUE(device_->link_bytes() == expected);
  ASSERT_TRUE(Read(dram, &block, Purpose::kMove).ok());
  expect(Link::kHost, Direction::kRead, Purpose::kMove);
  EXPECT_TRUE(device_->link_bytes() == expected);
  ASSERT_TRUE(Copy(kMedia, dram, Purpose::kGradient).ok());
  expect(Link::kInternal, Direction::kRead, Purpose::kGradient);
  expect(Link::kMedia, Direction::kRead, Purpose::kGradient);
  EXPECT_TRUE(device_->link_bytes() == expected);
  ASSERT_TRUE(Copy(dram, kMedia, Purpose::kCheck).ok());
  expect(Link::kInternal, Direction::kWritten, Purpose::kCheck);
  expect(Link::kMedia, Direction::kWritten, Purpose::kCheck);
  EXPECT_TRUE(device_->link_bytes() == expected);
  ASSERT_TRUE(Sync().ok());
  EXPECT_TRUE(device_->link_bytes() == expected);
  EXPECT_EQ(device_->link_bytes().of(Link::kHost, Direction::kWritten), 2 * kDiskBlock);
}

TEST_P(FileDeviceTest, FailedTransfersAreNotCounted) {
  Block block;
  disk_.FailCall(DiskCall::kWrite, 1, DiskFault::kIoError);
  EXPECT_TRUE(absl::IsInternal(Write(&block, kMedia)));
  EXPECT_TRUE(device_->link_bytes() == LinkBytes());
}

TEST_P(FileDeviceTest, PlacesOutsideAreRefused) {
  const Place dram = *device_->Allocate(kDiskBlock);
  Block block;
  for (const absl::Status& status :
       {Write(&block, kMedia.At(kBlocks * kDiskBlock)), Read(dram.At(kBlocks * kDiskBlock), &block),
        Copy(kMedia.At(kBlocks * kDiskBlock), dram), Copy(dram, kMedia.At(kBlocks * kDiskBlock))}) {
    EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("device csd-0: "));
    EXPECT_THAT(std::string(status.message()), HasSubstr("which has 32768"));
  }
  for (const absl::Status& status :
       {Read(kMedia.At(17), &block), Copy(kMedia, kMedia.At(kDiskBlock))}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
  EXPECT_TRUE(device_->link_bytes() == LinkBytes());
}

TEST_P(FileDeviceTest, MemoryIsChargedAndEnds) {
  EXPECT_EQ(account_.live_bytes(MemoryKind::kState), kBlocks * kDiskBlock);
  const Place first = *device_->Allocate(1);
  const Place second = *device_->Allocate((kBlocks - 1) * kDiskBlock);
  EXPECT_EQ(second.offset, first.offset + kDiskBlock) << "whole blocks";
  const auto refused = device_->Allocate(1);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("0 of 32768 are free"));
  device_.reset();
  EXPECT_EQ(account_.live_bytes(), 0u);
}

TEST_P(FileDeviceTest, SyncedBytesSurviveAPowerCut) {
  Block sent(5), seen;
  ASSERT_TRUE(Write(&sent, kMedia).ok());
  ASSERT_TRUE(Sync().ok());
  device_.reset();
  disk_.CutPower(1);
  disk_.PowerOn();
  Open();
  ASSERT_TRUE(Read(kMedia, &seen).ok());
  EXPECT_EQ(std::memcmp(seen.bytes, sent.bytes, kDiskBlock), 0);
}

TEST_P(FileDeviceTest, MediaOfAnotherSizeAreRefused) {
  const absl::Status status = TryOpen((kBlocks + 1) * kDiskBlock);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("32768 bytes, expected 36864"));
}

}  // namespace eps
