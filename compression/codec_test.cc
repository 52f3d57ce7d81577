#include "compression/codec.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

TEST(Registry, FindsCodecsByName) {
  EXPECT_THAT(CodecNames(), Contains("fp32"));
  EXPECT_THAT(CodecNames(), Contains("bf16"));
  EXPECT_EQ((*FindCodec("fp32"))->traits().id, CodecId::kFp32);
  EXPECT_EQ((*FindCodec("bf16"))->traits().id, CodecId::kBf16);
  EXPECT_EQ(*FindCodec("bf16"), *FindCodec("bf16"));
  EXPECT_TRUE(IsKnownCodec(CodecId::kBf16));
  for (const int id : {0, 65535}) EXPECT_FALSE(IsKnownCodec(static_cast<CodecId>(id)));
}

TEST(Registry, EveryExampleIsFoundUnderItsName) {
  EXPECT_GE(CodecExamples().size(), CodecNames().size());
  for (const std::string& name : CodecExamples()) {
    const auto codec = FindCodec(name);
    ASSERT_TRUE(codec.ok()) << codec.status();
    EXPECT_EQ((*codec)->name(), name);
    EXPECT_TRUE(IsKnownCodec((*codec)->traits().id));
  }
}

TEST(Registry, RefusesUnknownNamesAndListsTheKnown) {
  for (const char* const name : {"fp23", "", ":", "fp32 "}) {
    const absl::Status status = FindCodec(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("known are fp32, bf16"));
  }
  EXPECT_THAT(std::string(FindCodec("fp32:2").status().message()),
              HasSubstr("codec \"fp32:2\": it has no parameters; the syntax is fp32"));
}

}  // namespace
}  // namespace eps
