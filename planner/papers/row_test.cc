#include "planner/papers/row.h"

#include <cmath>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "planner/papers/tolerance.h"

namespace eps::planner {
namespace {

Row MakeRow(double paper, double ours, std::optional<double> tolerance) {
  return {"paper.row", "some time, s", Source::kFigure, paper, ours, tolerance, ""};
}

TEST(Row, DifferenceIsRelativeToThePaper) {
  EXPECT_DOUBLE_EQ(MakeRow(200, 190, 0.1).difference(), -0.05);
  EXPECT_DOUBLE_EQ(MakeRow(-200, -190, 0.1).difference(), 0.05);
  EXPECT_DOUBLE_EQ(MakeRow(0, 3, 0.1).difference(), 3);
}

TEST(Row, ToleranceCountsOnBothSides) {
  EXPECT_TRUE(MakeRow(100, 105, 0.05).ok());
  EXPECT_TRUE(MakeRow(100, 95, 0.05).ok());
  EXPECT_FALSE(MakeRow(100, 105.01, 0.05).ok());
  EXPECT_FALSE(MakeRow(100, 94.99, 0.05).ok());
}

TEST(Row, ZeroToleranceForgivesOnlyRounding) {
  EXPECT_TRUE(MakeRow(0.3, 0.1 + 0.2, 0).ok());
  EXPECT_FALSE(MakeRow(0.3, 0.3 + 1e-10, 0).ok());
  EXPECT_TRUE(MakeRow(0, 0, 0).ok());
  EXPECT_FALSE(MakeRow(0, 1, 0).ok());
}

TEST(Row, WithoutAToleranceIsNotJudged) {
  const Row row = MakeRow(1, 1000, std::nullopt);
  EXPECT_FALSE(row.judged());
  EXPECT_TRUE(row.ok());
  EXPECT_TRUE(MakeRow(1, 1, 0).judged());
}

TEST(Row, NanIsNeverReached) { EXPECT_FALSE(MakeRow(1, std::nan(""), 0.5).ok()); }

TEST(HalfLastDigit, IsRelative) {
  EXPECT_DOUBLE_EQ(HalfLastDigit(25.5, 1), 0.05 / 25.5);
  EXPECT_DOUBLE_EQ(HalfLastDigit(-17, 0), 0.5 / 17);
  EXPECT_TRUE(MakeRow(17, 16.51, HalfLastDigit(17, 0)).ok());
  EXPECT_FALSE(MakeRow(17, 16.49, HalfLastDigit(17, 0)).ok());
}

TEST(RowsOf, IdsAreUniqueAndShownRowsExplained) {
  EXPECT_EQ(PaperNames(), (std::vector<std::string>{"l2l", "nntile", "smart-infinity", "jitq"}));
  for (const std::string& name : PaperNames()) {
    const absl::StatusOr<std::vector<Row>> rows = RowsOf(name);
    ASSERT_TRUE(rows.ok()) << rows.status();
    std::set<std::string> ids;
    for (const Row& row : *rows) {
      EXPECT_TRUE(ids.insert(row.id).second) << name << " has two rows " << row.id;
      EXPECT_FALSE(row.what.empty()) << row.id;
      EXPECT_TRUE(row.judged() || !row.note.empty()) << row.id << " does not say why";
    }
  }
}

TEST(RowsOf, RefusesAnUnknownPaper) {
  const absl::StatusOr<std::vector<Row>> rows = RowsOf("l2");
  EXPECT_EQ(rows.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rows.status().message(),
            "--reproduce: unknown paper l2; known: l2l, nntile, smart-infinity, jitq");
  EXPECT_FALSE(RowsOf("").ok());
}

TEST(RowsToJson, HasTheFieldsInTheirOrder) {
  Row judged = MakeRow(4, 5, 0.5);
  judged.note = "a \"note\"";
  const Row shown = MakeRow(0, 1.5, std::nullopt);
  const std::string text = RowsToJson({judged, shown});
  EXPECT_EQ(text.back(), '\n');
  const auto json = nlohmann::ordered_json::parse(text);
  const auto expected = nlohmann::ordered_json::parse(R"([
    {"id": "paper.row", "what": "some time, s", "source": "figure", "paper": 4.0, "ours": 5.0,
     "tolerance": 0.5, "ok": true, "note": "a \"note\""},
    {"id": "paper.row", "what": "some time, s", "source": "figure", "paper": 0.0, "ours": 1.5,
     "tolerance": null, "ok": null}])");
  EXPECT_EQ(json.dump(), expected.dump());
  EXPECT_EQ(RowsToJson({}), "[]\n");
  EXPECT_FALSE(nlohmann::json::parse(RowsToJson({MakeRow(1, 2, 0.5)}))[0]["ok"].get<bool>());
}

TEST(RowsToText, CountsAndNamesEveryVerdict) {
  Row shown = MakeRow(2, 3, std::nullopt);
  shown.note = "no batch is given";
  const std::string text = RowsToText("nntile", {MakeRow(100, 101, 0.05), MakeRow(100, 90, 0.05),
                                                 shown, MakeRow(0, 0, 0), MakeRow(0, 0, 0)});
  EXPECT_EQ(text.substr(0, text.find('\n')), "NNTile");
  for (const char* part :
       {"+1.00 %        5 % ok\n", "-10.00 %        5 % MISSED\n", "+50.00 %          - shown\n",
        "    no batch is given\n", "some time, s figure ",
        "3 reached, 1 missed, 1 shown and not judged\n"}) {
    EXPECT_TRUE(absl::StrContains(text, part)) << "no \"" << part << "\" in\n" << text;
  }
}

TEST(RowsToText, ShowsToleranceWithThreeDigits) {
  const Row row = MakeRow(4.444, 4.444, HalfLastDigit(4.444, 3));
  EXPECT_TRUE(absl::StrContains(RowsToText("l2l", {row}), "   0.0113 % ok\n"));
  EXPECT_EQ(nlohmann::json::parse(RowsToJson({row}))[0]["tolerance"].get<double>(), *row.tolerance);
}

TEST(SourceName, NamesEverySource) {
  EXPECT_STREQ(SourceName(Source::kPrinted), "printed");
  EXPECT_STREQ(SourceName(Source::kFigure), "figure");
  EXPECT_STREQ(SourceName(Source::kDerived), "derived");
}

}  // namespace
}  // namespace eps::planner
