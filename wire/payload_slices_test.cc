#include "wire/payload_slices.h"

#include <string>

#include "base/memory_account.h"
#include "gtest/gtest.h"
#include "wire/payload_message.h"

namespace eps {
namespace {

TEST(SlicesOf, CutsAtTheLargestSize) {
  for (const size_t total : {size_t{0}, size_t{1}, kMaxSliceBytes - 1, kMaxSliceBytes,
                             kMaxSliceBytes + 1, 3 * kMaxSliceBytes}) {
    const std::vector<PayloadSlice> slices = SlicesOf(total);
    EXPECT_EQ(slices.size(), total == 0 ? 1 : (total + kMaxSliceBytes - 1) / kMaxSliceBytes);
    size_t offset = 0;
    for (const PayloadSlice& slice : slices) {
      EXPECT_EQ(slice.offset, offset);
      EXPECT_LE(slice.size, kMaxSliceBytes);
      EXPECT_EQ(slice.last, &slice == &slices.back());
      offset += slice.size;
    }
    EXPECT_EQ(offset, total);
  }
}

std::vector<grpc::Slice> Pieces(const std::string& text) {
  std::vector<grpc::Slice> pieces;
  for (const char c : text) pieces.emplace_back(std::string(1, c));
  pieces.emplace_back();
  return pieces;
}

TEST(PayloadAssembler, AssemblesSlicesInOrder) {
  MemoryAccount account;
  {
    PayloadAssembler payload(6, MemoryKind::kContribution, &account);
    EXPECT_EQ(account.live_bytes(MemoryKind::kContribution), 6u);
    EXPECT_TRUE(payload.Append(0, Pieces("abc")).ok());
    EXPECT_TRUE(payload.Append(3, Pieces("")).ok());
    EXPECT_TRUE(payload.Append(3, Pieces("def")).ok());
    EXPECT_EQ(payload.received(), payload.size());
    EXPECT_EQ(payload.Take().view(), "abcdef");
    EXPECT_EQ(payload.size(), 0u);
  }
  EXPECT_EQ(account.live_bytes(), 0u);
}

TEST(PayloadAssembler, RefusesGapsRepetitionsAndExcess) {
  PayloadAssembler payload(4, MemoryKind::kContribution, nullptr);
  EXPECT_FALSE(payload.Append(1, Pieces("a")).ok());
  EXPECT_FALSE(payload.Append(0, Pieces("abcde")).ok());
  EXPECT_TRUE(payload.Append(0, Pieces("ab")).ok());
  EXPECT_FALSE(payload.Append(0, Pieces("ab")).ok());
  EXPECT_FALSE(payload.Append(3, Pieces("d")).ok());
  EXPECT_FALSE(payload.Append(2, Pieces("cde")).ok());
  EXPECT_FALSE(payload.Append(UINT64_MAX, Pieces("c")).ok());
  EXPECT_TRUE(payload.Append(2, Pieces("cd")).ok());
  EXPECT_EQ(payload.Take().view(), "abcd");
}

TEST(PayloadAssembler, AnEmptyPayloadIsComplete) {
  PayloadAssembler payload(0, MemoryKind::kContribution, nullptr);
  EXPECT_TRUE(payload.Append(0, Pieces("")).ok());
  EXPECT_TRUE(payload.Take().empty());
}

TEST(PayloadAssembler, DropsBytesThatNobodyNeeds) {
  PayloadAssembler payload = PayloadAssembler::Dropping(4);
  EXPECT_TRUE(payload.Append(0, Pieces("abc")).ok());
  EXPECT_FALSE(payload.Append(3, Pieces("de")).ok());
  EXPECT_TRUE(payload.Append(3, Pieces("d")).ok());
  EXPECT_EQ(payload.received(), 4u);
  EXPECT_EQ(payload.Take().size(), 0u);
}

}  // namespace
}  // namespace eps
