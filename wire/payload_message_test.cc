#include "wire/payload_message.h"

#include <random>
#include <string>

#include "base/memory_account.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/data.pb.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

// Cuts `message` into pieces of `piece` bytes, as a transport may deliver it.
grpc::ByteBuffer InPieces(const std::string& message, size_t piece) {
  std::vector<grpc::Slice> slices;
  for (size_t i = 0; i < message.size(); i += piece) slices.emplace_back(message.substr(i, piece));
  slices.emplace_back();  // a transport may deliver empty slices
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Flat(const std::vector<grpc::Slice>& slices) {
  std::string out;
  for (const grpc::Slice& s : slices) {
    out.append(reinterpret_cast<const char*>(s.begin()), s.size());
  }
  return out;
}

std::string Flat(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(message.Dump(&slices).ok());
  return Flat(slices);
}

v1::FetchSlice Header() {
  v1::FetchSlice header;
  header.set_tag(7);
  header.set_chunk(300);
  header.set_total_bytes(uint64_t{1} << 40);
  header.set_last(true);
  header.set_crc32c(0xe3069283);
  header.set_message("a text");
  return header;
}

TEST(PayloadMessage, ProtobufReadsWhatJoinPayloadWrites) {
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{127}, size_t{128}, size_t{20'000}, kMaxSliceBytes}) {
    const std::string data(size, 'x');
    v1::FetchSlice read;
    ASSERT_TRUE(read.ParseFromString(Flat(JoinPayload(Header(), Bytes::CopyOf(data)))));
    EXPECT_EQ(read.data(), data);
    read.clear_data();
    EXPECT_EQ(read.SerializeAsString(), Header().SerializeAsString());
  }
}

TEST(PayloadMessage, WritesTheBytesThatProtobufWrites) {
  v1::FetchSlice plain = Header();
  plain.set_data("0123456789");
  EXPECT_EQ(Flat(JoinPayload(Header(), Bytes::CopyOf("0123456789"))), plain.SerializeAsString());
}

TEST(PayloadMessage, SplitPayloadReadsWhatProtobufWrites) {
  v1::ImportStateRequest plain;
  plain.set_request_id("r");
  plain.set_job_id(~uint64_t{0});
  plain.set_lagged_norm(-1.5);
  plain.set_chunk(1);
  plain.set_data(std::string(5000, 'y'));
  const std::string bytes = plain.SerializeAsString();
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, size_t{4096}}) {
    v1::ImportStateRequest header;
    std::vector<grpc::Slice> payload;
    ASSERT_TRUE(SplitPayload(InPieces(bytes, piece), &header, &payload).ok()) << piece;
    EXPECT_EQ(Flat(payload), plain.data());
    EXPECT_TRUE(header.data().empty());
    header.set_data(plain.data());
    EXPECT_EQ(header.SerializeAsString(), bytes);
  }
}

TEST(PayloadMessage, TakesThePayloadAnywhereAmongTheFields) {
  v1::FetchSlice before, data, after;
  before.set_tag(5);
  data.set_data("payload");
  after.set_message("after");
  const std::string unknown("\xa0\x06\x01", 3);  // field 100, varint 1
  const std::string bytes =
      before.SerializeAsString() + data.SerializeAsString() + after.SerializeAsString() + unknown;
  v1::FetchSlice header;
  std::vector<grpc::Slice> payload;
  ASSERT_TRUE(SplitPayload(InPieces(bytes, 2), &header, &payload).ok());
  EXPECT_EQ(header.tag(), 5u);
  EXPECT_EQ(header.message(), "after");
  EXPECT_EQ(Flat(payload), "payload");
}

TEST(PayloadMessage, LeavesFieldFifteenOfNestedMessagesAlone) {
  v1::PushFrame frame;
  // A nested message with bytes that look like a payload.
  frame.mutable_header()
      ->GetReflection()
      ->MutableUnknownFields(frame.mutable_header())
      ->AddLengthDelimited(kPayloadField, "inner");
  frame.set_data("outer");
  v1::PushFrame header;
  std::vector<grpc::Slice> payload;
  ASSERT_TRUE(SplitPayload(InPieces(frame.SerializeAsString(), 3), &header, &payload).ok());
  EXPECT_EQ(Flat(payload), "outer");
  EXPECT_EQ(header.header().SerializeAsString(), frame.header().SerializeAsString());
}

TEST(PayloadMessage, RefusesHostileBytes) {
  const struct {
    const char* what;
    std::string bytes;
  } cases[] = {
      {"two payloads", std::string("\x7a\x01x\x7a\x01y", 6)},
      {"two empty payloads", std::string("\x7a\x00\x7a\x00", 4)},
      {"the payload is a varint", std::string("\x78\x01", 2)},
      {"the payload is longer than the message", std::string("\x7a\x05xx", 4)},
      {"the length overflows", std::string("\x7a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01zz", 13)},
      {"a length without end", std::string("\x7a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12)},
      {"the length is cut", std::string("\x7a\x80", 2)},
      {"the tag is cut", std::string("\x80", 1)},
      {"a fixed64 is cut", std::string("\x09\x01\x02", 3)},
      {"a fixed32 is cut", std::string("\x45\x01\x02", 3)},
      {"a string is cut", std::string("\x52\x09text", 6)},
      {"a group begins", std::string("\x1b\x1c", 2)},
      {"a group ends", std::string("\x1c", 1)},
      {"wire type 7", std::string("\x1f\x00", 2)},
      {"field 0", std::string("\x00\x00", 2)},
      {"a tag of 33 bits that ends like the payload's",
       std::string("\xfa\x80\x80\x80\x10\x01x", 7)},
      {"text that is not UTF-8", std::string("\x52\x01\xff", 3)},
  };
  for (const auto& c : cases) {
    for (const size_t piece : {size_t{1}, size_t{64}}) {
      v1::FetchSlice header;
      std::vector<grpc::Slice> payload;
      const absl::Status status = SplitPayload(InPieces(c.bytes, piece), &header, &payload);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.what << ": " << status;
    }
  }
}

TEST(PayloadMessage, RefusesWhatIsTooLong) {
  v1::FetchSlice header;
  std::vector<grpc::Slice> payload;
  v1::FetchSlice big;
  big.set_data(std::string(kMaxSliceBytes + 1, 'x'));
  EXPECT_EQ(SplitPayload(InPieces(big.SerializeAsString(), 1 << 20), &header, &payload).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      SplitPayload(InPieces(std::string(kMaxMessageBytes + 1, 'x'), 1 << 20), &header, &payload)
          .code(),
      absl::StatusCode::kInvalidArgument);
}

TEST(PayloadMessage, NeverReadsOutsideRandomBytes) {
  std::mt19937 random(1);  // the standard specifies the generator; no distribution is used
  v1::PushFrame good;
  good.mutable_header()->mutable_key()->set_chunk(3);
  good.set_tag(9);
  good.set_data("abcdefgh");
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good.SerializeAsString();
    for (uint32_t flips = random() % 4; flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    bytes.resize(random() % (bytes.size() + 1));
    v1::PushFrame header;
    std::vector<grpc::Slice> payload;
    const absl::Status status = SplitPayload(InPieces(bytes, 1 + random() % 9), &header, &payload);
    v1::PushFrame plain;
    const bool plain_ok = plain.ParseFromString(bytes);
    if (!status.ok()) continue;
    ASSERT_TRUE(plain_ok) << i;
    EXPECT_EQ(plain.data(), Flat(payload));
    EXPECT_TRUE(header.data().empty());
    plain.clear_data();
    EXPECT_EQ(plain.SerializeAsString(), header.SerializeAsString());
  }
}

TEST(PayloadMessage, AnEmptyMessageIsAnEmptyHeader) {
  v1::FetchSlice header = Header();
  std::vector<grpc::Slice> payload;
  ASSERT_TRUE(SplitPayload(grpc::ByteBuffer(), &header, &payload).ok());
  EXPECT_EQ(header.ByteSizeLong(), 0u);
  EXPECT_TRUE(payload.empty());
}

TEST(PayloadMessage, HoldsThePayloadWithTheMessage) {
  MemoryAccount account;
  grpc::ByteBuffer message;
  {
    Buffer buffer(1000, MemoryKind::kFetch, &account);
    const uint8_t* memory = buffer.data();
    message = JoinPayload(Header(), std::move(buffer).Freeze());
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(message.Dump(&slices).ok());
    ASSERT_EQ(slices.size(), 2u);
    EXPECT_EQ(slices[1].begin(), memory);
  }
  EXPECT_EQ(account.live_bytes(), 1000u);
  message.Clear();
  EXPECT_EQ(account.live_bytes(), 0u);
}

}  // namespace
}  // namespace eps
