#include "tests/model/search/search.h"

#include <algorithm>
#include <cstdio>

#include "base/check.h"

namespace eps::model {
namespace {

constexpr uint64_t kMultiply1 = 0x9e3779b97f4a7c15;
constexpr uint64_t kMultiply2 = 0xc2b2ae3d27d4eb4f;

uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 32) * 0xd6e8feb86659fd93;
  return x ^ x >> 29;
}

std::string Format(const char* what, const std::array<int, 4>& numbers) {
  char text[160];
  // A format may use fewer conversions than there are numbers.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  std::snprintf(text, sizeof(text), what, numbers[0], numbers[1], numbers[2], numbers[3]);
#pragma GCC diagnostic pop
  return text;
}

}  // namespace

StateGraph::StateGraph() : table_(1 << 16) {}

uint32_t StateGraph::Insert(const Key& key) {
  const uint64_t mask = table_.size() - 1;
  for (uint64_t at = key.low >> 1 & mask;; at = (at + 1) & mask) {
    if (table_[at].low == 0) {
      table_[at] = key;
      return key.number;
    }
    if (table_[at].low == key.low && table_[at].high == key.high) return table_[at].number;
  }
}

void StateGraph::Grow() {
  std::vector<Key> old(table_.size() * 2);
  old.swap(table_);
  for (const Key& key : old) {
    if (key.low != 0) Insert(key);
  }
}

uint16_t StateGraph::IndexOf(const char* what) {
  for (size_t i = 0; i < texts_.size(); ++i) {
    if (texts_[i] == what) return static_cast<uint16_t>(i);
  }
  texts_.push_back(what);
  return static_cast<uint16_t>(texts_.size() - 1);
}

bool StateGraph::Record(const uint64_t* words, size_t count, const char* violation_or_null,
                        const Event& event, bool progress) {
  if (started_) ++result.transitions;
  const auto current = static_cast<uint32_t>(current_);
  if (violation_or_null != nullptr) {
    if (result.violations[violation_or_null]++ == 0) {
      RememberTrace(violation_or_null, current_, &event);
    }
    if (ends_.empty() || ends_.back() != current) ends_.push_back(current);
    return false;
  }
  uint64_t low = 1;
  uint64_t high = 2;
  for (size_t i = 0; i < count; ++i) {
    low = Mix(low ^ words[i] * kMultiply1) + kMultiply2;
    high = Mix(high + words[i] * kMultiply2) ^ low;
  }
  const auto next = static_cast<uint32_t>(origins_.size());
  const uint32_t number = Insert({low | 1, static_cast<uint32_t>(high), next});
  if (progress && number != current) progress_.emplace_back(current, number);
  if (number != next) return false;
  if (++used_ * 3 > table_.size() * 2) Grow();
  Origin origin = {};
  origin.parent = current;
  origin.what = IndexOf(event.what);
  for (size_t i = 0; i < origin.numbers.size(); ++i) {
    origin.numbers[i] = static_cast<uint8_t>(event.numbers[i]);
  }
  origins_.push_back(origin);
  EPS_CHECK(origins_.size() < uint64_t{1} << 32);
  return true;
}

void StateGraph::Advance() {
  current_ = started_ ? current_ + 1 : 0;
  if (started_ && current_ == level_end_) {
    ++result.depth;
    level_end_ = origins_.size();
  }
  started_ = true;
}

void StateGraph::Final() {
  ++result.finals;
  ends_.push_back(static_cast<uint32_t>(current_));
}

void StateGraph::Stuck() {
  if (result.stuck++ == 0) RememberTrace("stuck", current_, nullptr);
}

void StateGraph::CountNoWayOn() {
  // Transitions that are progress, by the state to which they lead.
  std::sort(progress_.begin(), progress_.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
  std::vector<bool> has_way(origins_.size());
  std::vector<uint32_t> open = ends_;
  for (const uint32_t end : ends_) has_way[end] = true;
  while (!open.empty()) {
    const std::pair<uint32_t, uint32_t> to = {0, open.back()};
    open.pop_back();
    auto [at, end] =
        std::equal_range(progress_.begin(), progress_.end(), to,
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    for (; at != end; ++at) {
      if (has_way[at->first]) continue;
      has_way[at->first] = true;
      open.push_back(at->first);
    }
  }
  for (uint64_t number = 0; number < origins_.size(); ++number) {
    if (has_way[number]) continue;
    if (result.stuck++ == 0) RememberTrace("stuck", number, nullptr);
  }
}

void StateGraph::RememberTrace(const std::string& kind, uint64_t number, const Event* last) {
  std::vector<std::string> trace;
  if (last != nullptr) trace.push_back(Format(last->what, last->numbers));
  for (uint64_t at = number; at != 0; at = origins_[at].parent) {
    const Origin& origin = origins_[at];
    const auto& n = origin.numbers;
    trace.push_back(Format(texts_[origin.what], {n[0], n[1], n[2], n[3]}));
  }
  result.traces[kind] = std::vector<std::string>(trace.rbegin(), trace.rend());
}

}  // namespace eps::model
