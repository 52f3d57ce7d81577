#include "cli/driver/report/run_report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/chart/chart.h"
#include "base/text.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;
using Points = std::vector<std::pair<double, double>>;

// The figures of an evaluation beside its loss (base/job/evaluation/metric.h).
constexpr const char* kFigures[] = {"perplexity", "accuracy", "f1", "matthews", "pearson"};

constexpr size_t kMostPoints = 500;   // of a line in a chart
constexpr size_t kSummarySteps = 20;  // as in the last lines of `eps train`

// The records of metrics.jsonl as the charts need them.
struct Records {
  Points losses, speeds, evaluations;     // by step; not finite where a record has no number
  std::map<std::string, Points> figures;  // of evaluations, by name; likewise
  double tokens = 0;
  double seconds = 0;
  uint64_t skipped = 0;  // steps
};

double NumberIn(const json& record, const char* key) {
  const auto at = record.find(key);
  return at != record.end() && at->is_number() ? at->get<double>()
                                               : std::numeric_limits<double>::quiet_NaN();
}

Records ReadRecords(absl::string_view metrics) {
  Records records;
  for (const absl::string_view line : absl::StrSplit(metrics, '\n', absl::SkipEmpty())) {
    const json record = json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
    if (!record.is_object() || !std::isfinite(NumberIn(record, "step"))) continue;
    const double step = NumberIn(record, "step");
    if (record.contains("eval_loss")) {
      records.evaluations.emplace_back(step, NumberIn(record, "eval_loss"));
      for (const char* name : kFigures) {
        const std::string key = absl::StrCat("eval_", name);
        if (record.contains(key)) {
          records.figures[name].emplace_back(step, NumberIn(record, key.c_str()));
        }
      }
      continue;
    }
    records.losses.emplace_back(step, NumberIn(record, "loss"));
    records.speeds.emplace_back(step, NumberIn(record, "tokens_per_second"));
    const double tokens = NumberIn(record, "tokens");
    const double seconds = NumberIn(record, "step_seconds");
    if (std::isfinite(tokens)) records.tokens += tokens;
    if (std::isfinite(seconds)) records.seconds += seconds;
    if (record.value("skipped", false)) ++records.skipped;
  }
  return records;
}

double MeanOfLast(const Points& points, size_t count) {
  count = std::min(count, points.size());
  double sum = 0;
  for (size_t i = points.size() - count; i < points.size(); ++i) sum += points[i].second;
  return sum / static_cast<double>(count);
}

std::string Row(const std::string& name, const std::string& value) {
  return absl::StrCat("<tr><th>", EscapeHtml(name), "</th><td>", EscapeHtml(value), "</td></tr>");
}

std::string Summary(const RunFacts& facts, const Records& records) {
  std::string table = absl::StrCat("<table id='summary'>", Row("outcome", facts.outcome));
  const double last = records.losses.empty() ? 0 : records.losses.back().first;
  absl::StrAppend(&table, Row("steps", absl::StrFormat("%.0f of %d", last, facts.steps)));
  if (!records.losses.empty()) {
    const size_t count = std::min(kSummarySteps, records.losses.size());
    const double loss = MeanOfLast(records.losses, count);
    std::string text = absl::StrFormat("%.4f over the last %d steps", loss, count);
    if (facts.unigram_entropy > 0) {
      absl::StrAppendFormat(&text, "; %.2f of the %.4f that guessing from frequencies gives",
                            loss / facts.unigram_entropy, facts.unigram_entropy);
    }
    absl::StrAppend(&table, Row("loss", text));
  }
  if (!records.evaluations.empty()) {
    const auto& [step, loss] = records.evaluations.back();
    absl::StrAppend(&table,
                    Row("held-out loss", absl::StrFormat("%.4f after step %.0f", loss, step)));
  }
  for (const auto& [name, points] : records.figures) {
    const auto& [step, figure] = points.back();
    absl::StrAppend(&table, Row(absl::StrCat("held-out ", name),
                                absl::StrFormat("%.4f after step %.0f", figure, step)));
  }
  if (records.seconds > 0) {
    absl::StrAppend(
        &table, Row("tokens", FormatCount(static_cast<uint64_t>(records.tokens))),
        Row("time in steps", FormatSeconds(records.seconds)),
        Row("tokens/s", FormatCount(static_cast<uint64_t>(records.tokens / records.seconds))));
  }
  if (records.skipped > 0) absl::StrAppend(&table, Row("skipped", absl::StrCat(records.skipped)));
  return table + "</table>";
}

// Describes the points of a line: one per step, or means.
std::string PointsText(const Points& points) {
  const size_t each = (points.size() + kMostPoints - 1) / kMostPoints;
  if (each <= 1) return "<p class='dim'>One point per step.</p>";
  return absl::StrCat("<p class='dim'>Each point is the mean of ", each, " steps.</p>");
}

std::string Curves(const Records& records) {
  std::vector<Series> loss = {{"loss", MeanPoints(records.losses, kMostPoints), false}};
  if (!records.evaluations.empty()) loss.push_back({"held-out loss", records.evaluations, true});
  return absl::StrCat("<h2>Loss</h2>", PointsText(records.losses), "<div id='loss'>",
                      LineChart(loss, "step", "nats per token", false),
                      "</div><h2>Tokens per second</h2>", PointsText(records.speeds),
                      "<div id='speed'>",
                      LineChart({{"tokens/s", MeanPoints(records.speeds, kMostPoints), false}},
                                "step", "tokens/s", true),
                      "</div>");
}

// Shows the figures of evaluations, each in a chart of its own; nothing if there are none.
std::string Figures(const Records& records) {
  std::string html;
  for (const auto& [name, points] : records.figures) {
    absl::StrAppend(&html, "<h2>Held-out ", name, "</h2><div id='", name, "'>",
                    LineChart({{name, points, true}}, "step", name, false), "</div>");
  }
  return html;
}

std::string Milliseconds(double seconds) { return absl::StrFormat("%.2f", 1e3 * seconds); }

// Shows how long the worker is at each stage, which adds up to the step, and what the servers do
// meanwhile.
std::string StepTime(const std::vector<v1::StatusReply>& servers) {
  std::string html = "<h2>Where the time of a step goes</h2>";
  if (servers.empty() || servers[0].stage_times().empty()) {
    return html + "<p class='dim'>The servers have not measured a stage yet.</p>";
  }
  const auto& stages = servers[0].stage_times();
  double total = 0;
  for (const v1::StageTimes& stage : stages) {
    total += static_cast<double>(stage.visits()) * stage.worker_seconds();
  }
  std::vector<Bar> bars;
  std::string table =
      "<table id='stages'><tr><th>stage, ms per visit</th><th>worker</th><th>quantize</th>"
      "<th>wire</th></tr>";
  for (int i = 0; i < stages.size(); ++i) {
    const v1::StageTimes& stage = stages[i];
    const double worker = static_cast<double>(stage.visits()) * stage.worker_seconds();
    const std::string text = absl::StrFormat("%.0f %%", total > 0 ? 100 * worker / total : 0);
    bars.push_back({stage.name(), text, {{stage.name(), worker, text}}, 0});
    double quantize = 0, wire = 0;  // of the slowest server
    for (const v1::StatusReply& server : servers) {
      if (i >= server.stage_times_size()) continue;
      quantize = std::max(quantize, server.stage_times(i).jit_seconds());
      wire = std::max(wire, server.stage_times(i).wire_seconds());
    }
    absl::StrAppend(&table, "<tr><td>", EscapeHtml(stage.name()), "</td><td>",
                    Milliseconds(stage.worker_seconds()), "</td><td>", Milliseconds(quantize),
                    "</td><td>", Milliseconds(wire), "</td></tr>");
  }
  return absl::StrCat(
      html,
      "<p>A worker's time at a stage, from its fetch of the stage to its next fetch, as a share of "
      "the sum over all stages:</p>",
      BarChart(bars),
      "<p><b>quantize</b>: a server encodes its chunks of the stage; <b>wire</b>: until the "
      "transport has accepted them (both of the slowest server, while the worker computes).</p>",
      table,
      "</table><p class='dim'>Not measured, and so not shown: the reduce and update of a stage, "
      "its push, and how much of a worker's time is computation and how much is waiting.</p>");
}

// Returns one bar of the kinds of memory. Every bar has all kinds, so that colors agree.
Bar MemoryBar(const std::string& name, const std::vector<std::string>& kinds,
              const std::map<std::string, double>& bytes) {
  Bar bar;
  bar.name = name;
  double sum = 0;
  for (const std::string& kind : kinds) {
    const auto at = bytes.find(kind);
    const double value = at == bytes.end() ? 0 : at->second;
    bar.pieces.push_back({kind, value, FormatBytes(value)});
    sum += value;
  }
  bar.text = FormatBytes(sum);
  return bar;
}

std::string Memory(const RunFacts& facts) {
  std::string html = "<h2>Memory of the servers</h2>";
  if (facts.servers.empty()) {
    return html + "<p class='dim'>The servers did not answer.</p>";
  }
  std::vector<std::string> kinds;
  const auto add_kind = [&](const std::string& kind, double bytes) {
    if (bytes > 0 && std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
      kinds.push_back(kind);
    }
  };
  for (const auto& [kind, bytes] : facts.planned) add_kind(kind, bytes);
  for (const v1::StatusReply& server : facts.servers) {
    for (const v1::MemoryUse& use : server.memory()) {
      add_kind(use.kind(), static_cast<double>(use.peak_bytes()));
    }
  }
  std::vector<Bar> bars;
  if (!facts.planned.empty()) {
    bars.push_back(
        MemoryBar("plan, all servers", kinds,
                  std::map<std::string, double>(facts.planned.begin(), facts.planned.end())));
  }
  std::string table = "<table id='memory'><tr><th>bytes</th>";
  for (const std::string& kind : kinds) absl::StrAppend(&table, "<th>", EscapeHtml(kind), "</th>");
  std::map<std::string, double> sums;
  std::vector<Bar> servers;
  for (size_t s = 0; s < facts.servers.size(); ++s) {
    std::map<std::string, double> peaks;
    for (const v1::MemoryUse& use : facts.servers[s].memory()) {
      peaks[use.kind()] = static_cast<double>(use.peak_bytes());
      sums[use.kind()] += peaks[use.kind()];
    }
    servers.push_back(MemoryBar(absl::StrCat("server ", s, ", peak"), kinds, peaks));
  }
  bars.push_back(MemoryBar("all servers, peak", kinds, sums));
  bars.insert(bars.end(), servers.begin(), servers.end());
  for (const Bar& bar : bars) {
    absl::StrAppend(&table, "</tr><tr><td>", EscapeHtml(bar.name), "</td>");
    for (const BarPiece& piece : bar.pieces) {
      absl::StrAppend(&table, "<td>",
                      piece.value > 0 ? FormatCount(static_cast<uint64_t>(piece.value)) : "-",
                      "</td>");
    }
  }
  return absl::StrCat(html,
                      "<p>The peak of each kind; the peaks need not coincide. In the plan, every "
                      "kind but <i>state</i> is an upper bound; it leaves out what has a -.</p>",
                      BarLegend(kinds), BarChart(bars), table, "</tr></table>");
}

}  // namespace

std::string RunReport(const RunFacts& facts, absl::string_view metrics) {
  const Records records = ReadRecords(metrics);
  return HtmlPage(facts.model,
                  absl::StrCat(Summary(facts, records), Curves(records), Figures(records),
                               StepTime(facts.servers), Memory(facts), "<h2>Settings</h2><pre>",
                               EscapeHtml(facts.settings), "</pre>"));
}

}  // namespace eps
