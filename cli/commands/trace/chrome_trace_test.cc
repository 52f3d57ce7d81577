// Reports of several processes become one file.

#include "cli/commands/trace/chrome_trace.h"

#include <map>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;

constexpr int64_t kHour = int64_t{3600} * 1'000'000'000;

// A report of one span that starts at `start_ns`.
v1::TraceReport ReportOf(const std::string& process, const std::string& name, int64_t start_ns) {
  v1::TraceReport report;
  report.set_process(process);
  report.add_names(name);
  v1::TraceSpan* const span = report.add_spans();
  span->set_thread(4);
  span->set_start_ns(start_ns);
  span->set_duration_ns(2500);
  span->set_step(7);
  span->set_subject(3);
  span->set_part(1);
  return report;
}

// Returns the complete events of a file by their names.
std::map<std::string, json> SpansOf(const ChromeTrace& trace) {
  std::map<std::string, json> spans;
  const json file = json::parse(trace.Json());
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] == "X") spans[event["name"]] = event;
  }
  return spans;
}

TEST(ChromeTraceTest, AnEmptyTraceIsAFile) {
  const json file = json::parse(ChromeTrace().Json());
  EXPECT_EQ(file["traceEvents"].size(), 1u);
  EXPECT_EQ(file["otherData"]["dropped_spans"], 0);
}

TEST(ChromeTraceTest, SpansSayWhatTheyAreAbout) {
  ChromeTrace trace;
  trace.NameStage(2, "h.1");
  trace.Add(ReportOf("worker", "forward", 1000), 0);
  trace.Add(ReportOf("server", "update", 4500), 0);
  auto spans = SpansOf(trace);
  EXPECT_EQ(spans["forward"]["args"], json::parse(R"({"step":7,"stage":"h.1","part":0})"));
  EXPECT_EQ(spans["update"]["args"], json::parse(R"({"step":7,"chunk":2,"part":0})"));
  EXPECT_EQ(spans["forward"]["ts"], 0);
  EXPECT_EQ(spans["forward"]["dur"], 2.5);
  EXPECT_EQ(spans["update"]["ts"], 3.5);
  EXPECT_EQ(spans["update"]["tid"], 4);
  EXPECT_NE(spans["forward"]["pid"], spans["update"]["pid"]);
  EXPECT_EQ(trace.spans(), 2u);
  EXPECT_EQ(trace.processes(), 2u);
}

TEST(ChromeTraceTest, StagesWithoutNamesHaveNumbers) {
  ChromeTrace trace;
  trace.Add(ReportOf("worker", "backward", 0), 0);
  EXPECT_EQ(SpansOf(trace)["backward"]["args"]["stage"], "2");
}

TEST(ChromeTraceTest, ClocksOfServersAreAligned) {
  ChromeTrace trace;
  trace.Add(ReportOf("server 0", "check", kHour + 1000), kHour);
  trace.Add(ReportOf("server 1", "update", -kHour + 3000), -kHour);
  trace.NoteClock("server 0", kHour, 500);
  auto spans = SpansOf(trace);
  EXPECT_EQ(spans["check"]["ts"], 0);
  EXPECT_EQ(spans["update"]["ts"], 2);
  const json clocks = json::parse(trace.Json())["otherData"]["clocks"];
  EXPECT_EQ(clocks["server 0"]["ahead_us"], 3.6e9);
  EXPECT_EQ(clocks["server 0"]["error_us"], 0.5);
}

TEST(ChromeTraceTest, ProcessesAndThreadsHaveNames) {
  ChromeTrace trace;
  v1::TraceReport report = ReportOf("worker (host, process 5)", "forward", 0);
  report.add_names("step");
  v1::TraceSpan* const lasting = report.add_spans();
  lasting->set_name(1);
  trace.Add(report, 0);
  trace.Add(report, 0);  // the next report of the same process
  std::map<std::string, std::string> names;
  const json file = json::parse(trace.Json());
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] == "M" && event["pid"] == 1) {
      names[event["name"].get<std::string>() + " " + event["tid"].dump()] = event["args"]["name"];
    }
  }
  const std::map<std::string, std::string> expected = {{"process_name 0", report.process()},
                                                       {"thread_name 0", "steps"},
                                                       {"thread_name 4", "thread 4"}};
  EXPECT_EQ(names, expected);
  EXPECT_EQ(trace.processes(), 1u);
}

TEST(ChromeTraceTest, StrangeReportsDoNoHarm) {
  ChromeTrace trace;
  v1::TraceReport report = ReportOf("\xff\"worker\\", "for\nward", -kHour);
  report.set_dropped(9);
  report.add_spans()->set_name(17);
  trace.Add(report, 0);
  EXPECT_EQ(SpansOf(trace).size(), 1u);
  EXPECT_EQ(SpansOf(trace).count("for\nward"), 1u);
  EXPECT_EQ(json::parse(trace.Json())["otherData"]["dropped_spans"], 9);
}

}  // namespace
}  // namespace eps
