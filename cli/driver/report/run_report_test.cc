#include "cli/driver/report/run_report.h"

#include <string>
#include <tuple>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RunFacts Facts() {
  RunFacts facts;
  facts.model = "gpt2, 100 parameters";
  facts.outcome = "complete";
  facts.steps = 3;
  facts.unigram_entropy = 4;
  facts.settings = "training: {steps: 3}";
  return facts;
}

constexpr char kMetrics[] =
    "{\"step\":1,\"loss\":4,\"tokens\":100,\"step_seconds\":2,\"tokens_per_second\":50}\n"
    "{\"step\":1,\"eval_loss\":3.5,\"eval_tokens\":10}\n"
    "a torn li\n"
    "{\"step\":2,\"loss\":2,\"tokens\":100,\"step_seconds\":1,\"tokens_per_second\":100,"
    "\"skipped\":true}\n";

TEST(RunReport, TheSummaryHasTheRecordsFigures) {
  const std::string page = RunReport(Facts(), kMetrics);
  for (const char* row :
       {"<th>outcome</th><td>complete<", "<th>steps</th><td>2 of 3<",
        "<td>3.0000 over the last 2 steps; 0.75 of the 4.0000 ", "<td>3.5000 after step 1<",
        "<th>tokens</th><td>200<", "<th>time in steps</th><td>3s<", "<th>tokens/s</th><td>66<",
        "<th>skipped</th><td>1<", "<title>held-out loss at 1: 3.5</title>"}) {
    EXPECT_THAT(page, HasSubstr(row));
  }
}

TEST(RunReport, IsOneFileWithoutScripts) {
  RunFacts facts = Facts();
  facts.model = facts.outcome = facts.settings = "<script src='http://x'>";
  v1::StatusReply server;
  server.add_stage_times()->set_name("<script>");
  server.add_memory()->set_kind("<script>");
  server.mutable_memory(0)->set_peak_bytes(7);
  facts.servers = {server};
  const std::string page = RunReport(facts, kMetrics);
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("src='")));
  EXPECT_THAT(page, Not(HasSubstr("href=")));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme:dark"));
}

TEST(RunReport, ShowsMemoryBesideItsPlan) {
  RunFacts facts = Facts();
  v1::StatusReply server;
  v1::MemoryUse* const use = server.add_memory();
  use->set_kind("state");
  use->set_live_bytes(1);
  use->set_peak_bytes(1200);
  facts.servers = {server, server};
  facts.planned = {{"state", 1300}, {"fetch", 50}};
  const std::string page = RunReport(facts, kMetrics);
  EXPECT_THAT(page, HasSubstr("<td>plan, all servers</td><td>1,300</td><td>50</td>"));
  EXPECT_THAT(page, HasSubstr("<td>all servers, peak</td><td>2,400</td><td>-</td>"));
  EXPECT_THAT(page, HasSubstr("<td>server 1, peak</td><td>1,200</td><td>-</td>"));
}

TEST(RunReport, StageTimesAreSharesOfTheirSum) {
  RunFacts facts = Facts();
  v1::StatusReply server;
  for (const auto& [name, visits, seconds] :
       {std::make_tuple("embedding", 2, 0.001), std::make_tuple("h.0", 1, 0.006)}) {
    v1::StageTimes* const times = server.add_stage_times();
    times->set_name(name);
    times->set_visits(visits);
    times->set_worker_seconds(seconds);
    times->set_wire_seconds(0.0005);
  }
  v1::StatusReply slower = server;
  slower.mutable_stage_times(1)->set_wire_seconds(0.002);
  facts.servers = {server, slower};
  const std::string page = RunReport(facts, kMetrics);
  EXPECT_THAT(page, HasSubstr("embedding: 25 %"));
  EXPECT_THAT(page, HasSubstr("h.0: 75 %"));
  EXPECT_THAT(page, HasSubstr("<td>h.0</td><td>6.00</td><td>0.00</td><td>2.00</td>"));
}

TEST(RunReport, SaysWhatIsUnknown) {
  const std::string page = RunReport(Facts(), "");
  EXPECT_THAT(page, HasSubstr("no figure yet"));
  EXPECT_THAT(page, HasSubstr("did not answer"));
  EXPECT_THAT(page, HasSubstr("not measured a stage yet"));
  EXPECT_THAT(page, HasSubstr("<td>0 of 3<"));
}

}  // namespace
}  // namespace eps
