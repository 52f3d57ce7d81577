#include "eps_server/core/steps/gate_table.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

namespace eps {
namespace {

constexpr absl::string_view kDrain = "drain/";

std::string HolderText(const std::string& holder) {
  if (holder == kBoardHolder) return "the job is paused, or has ended on the board";
  if (!IsDrainHolder(holder)) return holder;
  return absl::StrCat("server ", holder.substr(kDrain.size()), " drains");
}

}  // namespace

std::string DrainHolder(ShardId shard) { return absl::StrCat(kDrain, shard.value()); }

bool IsDrainHolder(const std::string& holder) { return absl::StartsWith(holder, kDrain); }

std::string GateText(const v1::Gate& gate) {
  std::string text = absl::StrCat("the gate at step ", gate.step(), " (");
  for (int h = 0; h < gate.holders_size(); ++h) {
    absl::StrAppend(&text, h > 0 ? ", " : "", HolderText(gate.holders(h)));
  }
  return text + ")";
}

void GateTable::Set(const std::string& holder, uint64_t step) {
  gates_[holder] = step;
  ends_ms_.erase(holder);
  driver_spoke_ |= holder == kDriverHolder;
  ++revision_;
}

void GateTable::SetUntil(const std::string& holder, uint64_t step, uint64_t at_ms) {
  const auto found = gates_.find(holder);
  if (found == gates_.end() || found->second != step) Set(holder, step);
  ends_ms_[holder] = at_ms;
}

void GateTable::Erase(const std::string& holder) {
  gates_.erase(holder);
  ends_ms_.erase(holder);
  if (holder != kDriverHolder) numbers_.erase(holder);
}

void GateTable::Lift(const std::string& holder) {
  Erase(holder);
  driver_spoke_ |= holder == kDriverHolder;
  ++revision_;
}

bool GateTable::LiftEnded(uint64_t now_ms) {
  std::vector<std::string> ended;
  for (const auto& [holder, at_ms] : ends_ms_) {
    if (at_ms <= now_ms) ended.push_back(holder);
  }
  for (const std::string& holder : ended) Erase(holder);
  if (!ended.empty()) ++revision_;
  return !ended.empty();
}

std::optional<uint64_t> GateTable::NextEnd() const {
  std::optional<uint64_t> next;
  for (const auto& [holder, at_ms] : ends_ms_) next = std::min(next.value_or(at_ms), at_ms);
  return next;
}

uint64_t GateTable::LastNumber(const std::string& holder) const {
  const auto found = numbers_.find(holder);
  return found == numbers_.end() ? 0 : found->second;
}

void GateTable::SetLastNumber(const std::string& holder, uint64_t number) {
  if (holder == kDriverHolder || gates_.count(holder) > 0) numbers_[holder] = number;
}

v1::Gate GateTable::InForce() const {
  v1::Gate gate;
  gate.set_revision(revision_);
  gate.set_driver_spoke(driver_spoke_);
  for (const auto& [holder, step] : gates_) {
    if (!gate.has_step() || step < gate.step()) {
      gate.set_step(step);
      gate.clear_holders();
    }
    if (step == gate.step()) gate.add_holders(holder);
  }
  return gate;
}

void GateTable::OnAnswer(ShardId shard, uint64_t revision, uint64_t first_border) {
  if (revision > revision_) return;
  std::optional<Answer>& last = answers_[shard.value()];
  if (last.has_value() && revision < last->revision) return;
  last = Answer{revision, first_border};
}

void GateTable::ForgetAnswers() { std::fill(answers_.begin(), answers_.end(), std::nullopt); }

std::optional<ShardId> GateTable::Missing(uint64_t revision) const {
  for (uint32_t s = 0; s < answers_.size(); ++s) {
    if (!answers_[s].has_value() || answers_[s]->revision < revision) return ShardId(s);
  }
  return std::nullopt;
}

uint64_t GateTable::FirstBorder() const {
  uint64_t border = 0;
  for (const std::optional<Answer>& answer : answers_) {
    EPS_CHECK(answer.has_value());
    border = std::max(border, answer->first_border);
  }
  return border;
}

}  // namespace eps
