#include "eps_server/core/trace/trace_text.h"

#include <string>

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(TraceText, LinesRoundTrip) {
  const TraceLine process{12, std::nullopt};
  EXPECT_EQ(process.ToText(), "12 process\n");
  const TraceLine cut{345, TraceAction{TraceAction::Kind::kCut, Term(2), Step(9), 7, Version(8),
                                       CutId{Step(8), Term(2)}}};
  EXPECT_EQ(cut.ToText(), "345 cut 2 9 7 8 8/2\n");
  for (const TraceLine& line : {process, cut}) {
    std::string text = line.ToText();
    text.pop_back();
    const auto read = TraceLine::Parse(text);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->ToText(), line.ToText());
  }
}

TEST(TraceText, EveryKindHasAName) {
  for (int k = 0; k <= static_cast<int>(TraceAction::Kind::kFailed); ++k) {
    TraceLine line{1, TraceAction{}};
    line.action->kind = static_cast<TraceAction::Kind>(k);
    std::string text = line.ToText();
    text.pop_back();
    const auto read = TraceLine::Parse(text);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->action->kind, line.action->kind);
  }
}

TEST(TraceText, RefusesMalformedLines) {
  for (const char* text : {"", "process", "1 proces", "1 cut 2 9 7 8 8", "1 cut 2 9 7 8 8/x",
                           "1 cut 2 9 7 8 8/2 3", "1 mended 2 9 7 8 8/2", "-1 cut 2 9 7 8 8/2"}) {
    EXPECT_FALSE(TraceLine::Parse(text).ok()) << text;
  }
}

}  // namespace
}  // namespace eps
