#include "storage/csd/process/frames.h"

#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace eps::csd {
namespace {

Command Sample() {
  Command command;
  command.kind = Command::Kind::kCopy;
  command.purpose = Purpose::kGradient;
  command.number = (uint64_t{7} << 40) + 3;
  command.from = {Place::Where::kMedia, uint64_t{1} << 41};
  command.to = {Place::Where::kDram, 8192};
  command.bytes = (uint64_t{1} << 33) + 4096;
  return command;
}

TEST(FramesTest, CommandsComeBack) {
  const absl::StatusOr<Command> seen = DecodeCommand(Encode(Sample()));
  ASSERT_TRUE(seen.ok()) << seen.status();
  EXPECT_EQ(Describe(*seen), Describe(Sample()));
  EXPECT_EQ(Encode(*seen), Encode(Sample()));
}

TEST(FramesTest, RepliesComeBack) {
  const Reply reply = {absl::StatusCode::kOutOfRange, 5, kMaxErrorBytes};
  const absl::StatusOr<Reply> seen = DecodeReply(Encode(reply));
  ASSERT_TRUE(seen.ok()) << seen.status();
  EXPECT_EQ(seen->code, reply.code);
  EXPECT_EQ(seen->number, reply.number);
  EXPECT_EQ(seen->bytes, reply.bytes);
}

TEST(FramesTest, AnyFlippedBitIsRefused) {
  const std::string command = Encode(Sample());
  for (size_t bit = 0; bit < 8 * command.size(); ++bit) {
    std::string damaged = command;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(DecodeCommand(damaged).ok()) << "bit " << bit;
  }
  const std::string reply = Encode(Reply{absl::StatusCode::kOk, 5, 4096});
  for (size_t bit = 0; bit < 8 * reply.size(); ++bit) {
    std::string damaged = reply;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(DecodeReply(damaged).ok()) << "bit " << bit;
  }
}

TEST(FramesTest, ShortHeadsAreRefused) {
  EXPECT_FALSE(DecodeCommand(Encode(Sample()).substr(0, kCommandBytes - 1)).ok());
  EXPECT_FALSE(DecodeReply(Encode(Reply()).substr(0, kReplyBytes - 1)).ok());
}

TEST(FramesTest, FieldsWithoutMeaningAreRefused) {
  Command command = Sample();
  command.kind = static_cast<Command::Kind>(Command::kKinds);
  EXPECT_FALSE(DecodeCommand(Encode(command)).ok());
  command = Sample();
  command.purpose = static_cast<Purpose>(kPurposes);
  EXPECT_FALSE(DecodeCommand(Encode(command)).ok());
  command = Sample();
  command.to.where = static_cast<Place::Where>(2);
  EXPECT_FALSE(DecodeCommand(Encode(command)).ok());
  command = Sample();
  command.data_bytes = 1;  // a Copy has none
  EXPECT_FALSE(DecodeCommand(Encode(command)).ok());
  command.kind = Command::Kind::kHostWrite;
  EXPECT_FALSE(DecodeCommand(Encode(command)).ok());
  command.kind = Command::Kind::kRun;
  command.data_bytes = kMaxKernelBytes + 1;
  EXPECT_FALSE(DecodeCommand(Encode(command)).ok());
  command = Sample();
  command.number = 0;
  EXPECT_FALSE(DecodeCommand(Encode(command)).ok());
  EXPECT_FALSE(DecodeReply(Encode(Reply{static_cast<absl::StatusCode>(17), 1, 0})).ok());
  EXPECT_FALSE(DecodeReply(Encode(Reply{absl::StatusCode::kOk, 1, kSliceBytes + 1})).ok());
  EXPECT_FALSE(DecodeReply(Encode(Reply{absl::StatusCode::kInternal, 1, kMaxErrorBytes + 1})).ok());
}

TEST(FramesTest, LinkBytesComeBack) {
  LinkBytes bytes;
  bytes.Add(Link::kHost, Direction::kRead, Purpose::kState, 1);
  bytes.Add(Link::kInternal, Direction::kWritten, Purpose::kCheck, uint64_t{1} << 50);
  bytes.Add(Link::kMedia, Direction::kWritten, Purpose::kControl, 3);
  EXPECT_TRUE(*DecodeLinkBytes(EncodeLinkBytes(bytes)) == bytes);
  EXPECT_FALSE(DecodeLinkBytes(EncodeLinkBytes(bytes) + "x").ok());
}

}  // namespace
}  // namespace eps::csd
