#include "planner/plan_report.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/chart/chart.h"
#include "nlohmann/json.hpp"
#include "planner/quantity_text.h"
#include "planner/walls.h"

namespace eps::planner {
namespace {

constexpr size_t kResourcesShown = 4;

std::string MemoryText(const Plan& plan) {
  std::string text = "memory of the fullest machine of each tier (~: at most)\n";
  for (const TierUse& tier : plan.tiers) {
    absl::StrAppendFormat(&text, "  %-14s %10s of %-10s %s:", TierName(tier.tier),
                          ShortText(tier.used()), ShortText(tier.available), tier.machine);
    for (size_t i = 0; i < tier.uses.size(); ++i) {
      const MemoryUse& use = tier.uses[i];
      absl::StrAppend(&text, i > 0 ? ", " : " ", use.kind, use.exact ? " " : " ~",
                      ShortText(use.bytes));
    }
    if (tier.beside > Bytes(0)) absl::StrAppend(&text, "; beside it ", ShortText(tier.beside));
    absl::StrAppend(&text, tier.fits() ? "\n" : "  DOES NOT FIT\n");
  }
  return text;
}

// Consecutive stages with equal times, which share one line.
struct StageRun {
  size_t first = 0;
  size_t count = 1;
};

bool SameTimes(const StageTimes& a, const StageTimes& b) {
  return a.encode.alone() == b.encode.alone() && a.fetch_forward == b.fetch_forward &&
         a.fetch_backward == b.fetch_backward && a.forward == b.forward &&
         a.backward == b.backward && a.push == b.push && a.update.alone() == b.update.alone();
}

std::vector<StageRun> RunsOf(const std::vector<StageTimes>& stages) {
  std::vector<StageRun> runs;
  for (size_t i = 0; i < stages.size(); ++i) {
    if (!runs.empty() && SameTimes(stages[runs.back().first], stages[i])) {
      ++runs.back().count;
    } else {
      runs.push_back({i, 1});
    }
  }
  return runs;
}

// The columns of the stages' table.
struct Column {
  const char* name;
  const char* key;  // its key in JSON
  Seconds (*time)(const StageTimes&);
};
constexpr Column kColumns[] = {
    {"read", "read_seconds", [](const StageTimes& t) { return t.read; }},
    {"encode", "encode_seconds", [](const StageTimes& t) { return t.encode.alone(); }},
    {"fetch fw", "fetch_forward_seconds", [](const StageTimes& t) { return t.fetch_forward; }},
    {"fetch bw", "fetch_backward_seconds", [](const StageTimes& t) { return t.fetch_backward; }},
    {"to device", "to_device_seconds", [](const StageTimes& t) { return t.to_device_forward; }},
    {"forward", "forward_seconds", [](const StageTimes& t) { return t.forward; }},
    {"backward", "backward_seconds", [](const StageTimes& t) { return t.backward; }},
    {"stash", "stash_seconds", [](const StageTimes& t) { return t.stash; }},
    {"push", "push_seconds", [](const StageTimes& t) { return t.push; }},
    {"reduce", "reduce_seconds", [](const StageTimes& t) { return t.reduce.alone(); }},
    {"update", "update_seconds", [](const StageTimes& t) { return t.update.alone(); }},
    {"disk", "disk_seconds", [](const StageTimes& t) { return t.disk; }},
    {"log", "log_seconds", [](const StageTimes& t) { return t.log; }},
    {"cut", "cut_seconds", [](const StageTimes& t) { return t.cut; }},
};

// Returns the columns in which any stage takes time.
std::vector<Column> UsedColumns(const std::vector<StageTimes>& stages) {
  std::vector<Column> columns;
  for (const Column& column : kColumns) {
    if (std::any_of(stages.begin(), stages.end(),
                    [&](const StageTimes& stage) { return column.time(stage) > Seconds(0); })) {
      columns.push_back(column);
    }
  }
  return columns;
}

std::string StagesText(const Plan& plan) {
  std::string text = absl::StrCat("times per stage and step, each alone (worker ",
                                  plan.estimate.worker, ")\n  stage              ");
  const std::vector<Column> columns = UsedColumns(plan.estimate.stages);
  for (const Column& column : columns) absl::StrAppendFormat(&text, " %9s", column.name);
  text += "\n";
  for (const StageRun& run : RunsOf(plan.estimate.stages)) {
    const StageTimes& stage = plan.estimate.stages[run.first];
    std::string name = plan.work.stages[run.first].name;
    if (run.count > 1) absl::StrAppend(&name, " and ", run.count - 1, " more alike");
    absl::StrAppendFormat(&text, "  %-19s", name);
    for (const Column& column : columns) {
      const Seconds time = column.time(stage);
      absl::StrAppendFormat(&text, " %9s", time == Seconds(0) ? "-" : ShortText(time));
    }
    text += "\n";
  }
  return text;
}

std::string StepText(const Plan& plan) {
  return absl::StrFormat("step: %s for %s tokens, %s tokens/s, MFU %.1f %%, device waits %.0f %%\n",
                         ShortText(plan.step()), ShortCount(static_cast<double>(plan.work.tokens)),
                         ShortCount(plan.tokens_per_second), 100 * plan.mfu,
                         100 * (plan.estimate.waiting() / plan.step()));
}

// Describes what durable state costs, and the step with updates inside the storage.
std::string StorageText(const Plan& plan) {
  std::string text;
  const StepEstimate& e = plan.estimate;
  if (e.cut_steps > 0) {
    absl::StrAppend(&text, "cuts: every ",
                    e.cut_steps == 1 ? "step" : absl::StrCat(e.cut_steps, " steps"), ", ",
                    e.held > Seconds(0)
                        ? absl::StrCat("each holds the next step up by ", ShortText(e.held))
                        : "which hold nothing up",
                    "\n");
  }
  if (plan.written_per_day.has_value()) {
    absl::StrAppend(&text, "disks: ", ShortText(*plan.written_per_day),
                    " written per day on the busiest one");
    if (plan.endurance_days.has_value()) {
      absl::StrAppendFormat(&text, "; endurance is reached after %.3g days", *plan.endurance_days);
    }
    text += "\n";
  }
  if (plan.step_in_storage.has_value()) {
    absl::StrAppend(&text, "step with updates inside the storage devices: ",
                    ShortText(*plan.step_in_storage), "  (storage.kind=csd)\n");
  }
  return text;
}

std::string WireText(const Plan& plan) {
  return absl::StrCat("network per step: ", ShortText(plan.fetched), " fetched, ",
                      ShortText(plan.pushed), " pushed\n");
}

std::string HeadText(const Plan& plan) {
  return absl::StrCat(
      "plan: ", plan.model, ", ", ShortCount(static_cast<double>(plan.work.parameters)),
      " parameters, ", plan.work.stages.size(), " stages, on ", plan.hardware, " with ",
      plan.shape.workers, plan.shape.workers == 1 ? " worker and " : " workers and ",
      plan.shape.servers, plan.shape.servers == 1 ? " server" : " servers",
      plan.work.sealed ? ", sealed" : ", eager", "\n");
}

std::string CapacityText(const Plan& plan) {
  std::string text = "largest model by its state\n";
  for (const Capacity& capacity : plan.capacities) {
    absl::StrAppendFormat(&text, "  %-32s %5.3g B/parameter %10s parameters%s\n", capacity.what,
                          capacity.state_bytes, ShortCount(capacity.parameters),
                          capacity.built ? "" : "  (not in this program)");
  }
  return text;
}

// Names the bottleneck and the next resource, which limits any gain, and what to change first.
std::string AdviceText(const Plan& plan) {
  const StepTimes& times = plan.estimate.times;
  const Resource first = times.by_use()[0];
  const Resource next = times.by_use()[1];
  return absl::StrFormat("bottleneck: %s, busy %s of %s; then %s, %s\nchange first: %s\n",
                         ResourceName(first), ShortText(times.busiest_of(first)),
                         ShortText(plan.step()), ResourceName(next),
                         ShortText(times.busiest_of(next)), ResourceRemedy(first));
}

// Names the resource that bounds a pass in each range of tokens.
std::string RangesText(const std::vector<WallRange>& ranges) {
  if (ranges.size() == 1) {
    return absl::StrCat(ResourceName(ranges.front().resource), " at any number of tokens");
  }
  std::string text;
  for (const WallRange& range : ranges) {
    absl::StrAppend(
        &text, text.empty() ? "" : ", ", ResourceName(range.resource),
        std::isinf(range.to) ? " above" : absl::StrCat(" below ", ShortCount(range.to)));
  }
  return text;
}

std::string WallsText(const Plan& plan) {
  if (!plan.walls.has_value()) return "";
  const auto pass = [](const char* name, const PassWalls& walls) {
    return absl::StrFormat("  %-8s %9s  %s\n", name, ShortText(walls.bound),
                           RangesText(walls.ranges));
  };
  return absl::StrCat("walls, by the tokens of a step (training.micro_batches): ",
                      ShortText(plan.walls->bound()), " of ", ShortText(plan.step()), "\n",
                      pass("forward", plan.walls->forward), pass("backward", plan.walls->backward));
}

nlohmann::ordered_json WallsJson(const PassWalls& walls) {
  nlohmann::ordered_json ranges = nlohmann::ordered_json::array();
  for (const WallRange& range : walls.ranges) {
    nlohmann::ordered_json to = nullptr;
    if (!std::isinf(range.to)) to = range.to;
    ranges.push_back({{"name", ResourceName(range.resource)}, {"to_tokens", std::move(to)}});
  }
  return {{"seconds", walls.bound.value()}, {"ranges", std::move(ranges)}};
}

template <class Unit>
nlohmann::ordered_json OptionalNumber(const std::optional<Unit>& quantity) {
  return quantity.has_value() ? nlohmann::ordered_json(quantity->value()) : nullptr;
}
nlohmann::ordered_json OptionalNumber(const std::optional<double>& number) {
  return number.has_value() ? nlohmann::ordered_json(*number) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json MemoryJson(const Plan& plan) {
  nlohmann::ordered_json tiers = nlohmann::ordered_json::array();
  for (const TierUse& tier : plan.tiers) {
    nlohmann::ordered_json uses = nlohmann::ordered_json::array();
    for (const MemoryUse& use : tier.uses) {
      uses.push_back({{"kind", use.kind}, {"bytes", use.bytes.value()}, {"exact", use.exact}});
    }
    tiers.push_back({{"tier", TierName(tier.tier)},
                     {"machine", tier.machine},
                     {"available_bytes", tier.available.value()},
                     {"used_bytes", tier.used().value()},
                     {"beside_bytes", tier.beside.value()},
                     {"fits", tier.fits()},
                     {"uses", std::move(uses)}});
  }
  return tiers;
}

std::string MemoryChart(const Plan& plan) {
  std::string charts;
  for (const TierUse& tier : plan.tiers) {
    Bar bar;
    bar.name = TierName(tier.tier);
    bar.text = absl::StrCat(ShortText(tier.used()), " of ", ShortText(tier.available));
    bar.limit = tier.available.value();
    for (const MemoryUse& use : tier.uses) {
      bar.pieces.push_back({use.kind, use.bytes.value(), ShortText(use.bytes)});
    }
    charts += BarChart({bar});
  }
  return charts;
}

std::string ResourceChart(const Plan& plan) {
  std::vector<Bar> bars;
  for (const Resource resource : plan.estimate.times.by_use()) {
    const Seconds busy = plan.estimate.times.busiest_of(resource);
    const char* const name = ResourceName(resource);
    bars.push_back({name,
                    absl::StrCat(ShortText(busy), " of ", ShortText(plan.step())),
                    {{name, busy.value(), ShortText(busy)}},
                    plan.step().value()});
  }
  return BarChart(bars);
}

std::string StageChart(const Plan& plan) {
  std::vector<Bar> bars;
  const std::vector<Column> columns = UsedColumns(plan.estimate.stages);
  for (const StageRun& run : RunsOf(plan.estimate.stages)) {
    const StageTimes& stage = plan.estimate.stages[run.first];
    Bar bar;
    bar.name = plan.work.stages[run.first].name;
    if (run.count > 1) absl::StrAppend(&bar.name, " (", run.count, " alike)");
    Seconds sum;
    for (const Column& column : columns) {
      const Seconds time = column.time(stage);
      bar.pieces.push_back({column.name, time.value(), ShortText(time)});
      sum += time;
    }
    bar.text = ShortText(sum);
    bars.push_back(std::move(bar));
  }
  std::vector<std::string> names;
  for (const Column& column : columns) names.push_back(column.name);
  return BarLegend(names) + BarChart(bars);
}

}  // namespace

std::string PlanToText(const Plan& plan) {
  std::string text = absl::StrCat(HeadText(plan), "\n", MemoryText(plan), "\n", StagesText(plan),
                                  "\n", WireText(plan), StepText(plan));
  absl::StrAppend(&text, "resources, busy per step:");
  const StepTimes& times = plan.estimate.times;
  const std::vector<Resource> resources = times.by_use();
  for (size_t i = 0; i < std::min(kResourcesShown, resources.size()); ++i) {
    absl::StrAppend(&text, i > 0 ? ", " : " ", ResourceName(resources[i]), " ",
                    ShortText(times.busiest_of(resources[i])));
  }
  absl::StrAppend(&text, "\n", AdviceText(plan), WallsText(plan), StorageText(plan), "\n",
                  CapacityText(plan));
  if (plan.dollars_per_million_tokens.has_value()) {
    absl::StrAppendFormat(&text, "cost: $%.3g per million tokens\n",
                          *plan.dollars_per_million_tokens);
  }
  return text;
}

std::string PlanToSummary(const Plan& plan) {
  return absl::StrCat(MemoryText(plan), WireText(plan), StepText(plan), AdviceText(plan));
}

std::string PlanToJson(const Plan& plan) {
  nlohmann::ordered_json json;
  json["model"] = plan.model;
  json["hardware"] = plan.hardware;
  json["workers"] = plan.shape.workers;
  json["servers"] = plan.shape.servers;
  json["parameters"] = plan.work.parameters;
  json["tokens_per_step"] = plan.work.tokens;
  json["mode"] = plan.work.sealed ? "sealed" : "eager";
  json["memory"] = MemoryJson(plan);
  json["wire"] = {{"fetched_bytes", plan.fetched.value()}, {"pushed_bytes", plan.pushed.value()}};
  const StepEstimate& e = plan.estimate;
  json["step"] = {{"seconds", plan.step().value()},
                  {"tokens_per_second", plan.tokens_per_second},
                  {"mfu", plan.mfu},
                  {"waiting_seconds", e.waiting().value()},
                  {"worker", e.worker}};
  nlohmann::ordered_json& stages = json["stages"] = nlohmann::ordered_json::array();
  for (size_t s = 0; s < e.stages.size(); ++s) {
    nlohmann::ordered_json object = {{"name", plan.work.stages[s].name}};
    for (const Column& column : kColumns) object[column.key] = column.time(e.stages[s]).value();
    stages.push_back(std::move(object));
  }
  nlohmann::ordered_json& resources = json["resources"] = nlohmann::ordered_json::array();
  for (const Resource resource : e.times.by_use()) {
    resources.push_back({{"name", ResourceName(resource)},
                         {"busy_seconds", e.times.busiest_of(resource).value()},
                         {"remedy", ResourceRemedy(resource)}});
  }
  json["walls"] = nullptr;
  if (plan.walls.has_value()) {
    json["walls"] = {{"forward", WallsJson(plan.walls->forward)},
                     {"backward", WallsJson(plan.walls->backward)}};
  }
  nlohmann::ordered_json& capacities = json["capacities"] = nlohmann::ordered_json::array();
  for (const Capacity& capacity : plan.capacities) {
    capacities.push_back({{"what", capacity.what},
                          {"bytes_per_parameter", capacity.state_bytes},
                          {"parameters", capacity.parameters},
                          {"built", capacity.built}});
  }
  json["cuts"] = {{"steps", e.cut_steps}, {"held_seconds", e.held.value()}};
  json["step_in_storage_seconds"] = OptionalNumber(plan.step_in_storage);
  json["written_per_day_bytes"] = OptionalNumber(plan.written_per_day);
  json["endurance_days"] = OptionalNumber(plan.endurance_days);
  json["dollars_per_million_tokens"] = OptionalNumber(plan.dollars_per_million_tokens);
  return json.dump(2) + "\n";
}

std::string PlanToPage(const Plan& plan) {
  const std::string title =
      absl::StrCat(plan.model, ", ", ShortCount(static_cast<double>(plan.work.parameters)),
                   " parameters, on ", plan.hardware);
  return HtmlPage(
      title,
      absl::StrCat("<p>", EscapeHtml(StepText(plan)), "</p><p>", EscapeHtml(AdviceText(plan)),
                   "</p><h2>Memory</h2><p>The line is what is there.</p>", MemoryChart(plan),
                   "<h2>Resources, busy per step</h2><p>The line is the step.</p>",
                   ResourceChart(plan), "<h2>Stages, each activity alone</h2>", StageChart(plan),
                   "<h2>All figures</h2><pre>", EscapeHtml(PlanToText(plan)), "</pre>"));
}

}  // namespace eps::planner
