#include "worker/run_generate.h"

#include <string>

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(ReplaceInvalidUtf8Test, KeepsTextAndReplacesTheRest) {
  const std::string r = "\xEF\xBF\xBD";
  const struct {
    std::string bytes, text;
  } cases[] = {
      {"", ""},
      {"plain\n", "plain\n"},
      {"\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x99\x82", "\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x99\x82"},
      {"a\xFFz", "a" + r + "z"},
      {"\x80", r},
      {"\xC3", r},      // cut off
      {"\xE2\x82", r},  // cut off: one maximal part
      {"\xE2\x82z", r + "z"},
      {"\xC0\x80", r + r},                  // overlong
      {"\xE0\x80\x80", r + r + r},          // overlong
      {"\xED\xA0\x80", r + r + r},          // surrogate
      {"\xF4\x90\x80\x80", r + r + r + r},  // above U+10FFFF
  };
  for (const auto& c : cases) EXPECT_EQ(ReplaceInvalidUtf8(c.bytes), c.text);
}

}  // namespace
}  // namespace eps
