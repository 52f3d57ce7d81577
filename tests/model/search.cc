#include "tests/model/search.h"

#include <cstdio>
#include <cstring>

#include "base/check.h"

namespace eps::model {
namespace {

constexpr uint64_t kMultiply1 = 0x9e3779b97f4a7c15;
constexpr uint64_t kMultiply2 = 0xc2b2ae3d27d4eb4f;

uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 32) * 0xd6e8feb86659fd93;
  return x ^ x >> 29;
}

std::string Format(const char* what, const std::array<int, 3>& numbers) {
  char text[160];
  // A format may use fewer conversions than there are numbers.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  std::snprintf(text, sizeof(text), what, numbers[0], numbers[1], numbers[2]);
#pragma GCC diagnostic pop
  return text;
}

}  // namespace

Search::Search() : table_(1 << 16) {}

bool Search::Insert(const Key& key) {
  const uint64_t mask = table_.size() - 1;
  for (uint64_t at = key.high & mask;; at = (at + 1) & mask) {
    if (table_[at].low == 0) {
      table_[at] = key;
      return true;
    }
    if (table_[at].low == key.low && table_[at].high == key.high) return false;
  }
}

void Search::Grow() {
  std::vector<Key> old(table_.size() * 2);
  old.swap(table_);
  for (const Key& key : old) {
    if (key.low != 0) Insert(key);
  }
}

uint16_t Search::IndexOf(const char* what) {
  for (size_t i = 0; i < texts_.size(); ++i) {
    if (texts_[i] == what) return static_cast<uint16_t>(i);
  }
  texts_.push_back(what);
  return static_cast<uint16_t>(texts_.size() - 1);
}

void Search::Reach(const State& state, const char* violation_or_null, const Event& event) {
  if (started_) ++result.transitions;
  if (violation_or_null != nullptr) {
    if (result.violations[violation_or_null]++ == 0) RememberTrace(violation_or_null, &event);
    return;
  }
  static_assert(sizeof(State) % 8 == 0);
  uint64_t words[sizeof(State) / 8];
  std::memcpy(words, &state, sizeof(State));
  Key key = {1, 2};
  // Most states hold few messages; the trailing zeros need no hashing.
  const size_t count = sizeof(State) / 8 - kMaxMessages + state.messages;
  for (size_t i = 0; i < count; ++i) {
    key.low = Mix(key.low ^ words[i] * kMultiply1) + kMultiply2;
    key.high = Mix(key.high + words[i] * kMultiply2) ^ key.low;
  }
  key.low |= 1;
  if (!Insert(key)) return;
  if (++used_ * 3 > table_.size() * 2) Grow();
  Origin origin = {};
  origin.parent = static_cast<uint32_t>(current_);
  origin.what = IndexOf(event.what);
  for (size_t i = 0; i < 3; ++i) origin.numbers[i] = static_cast<uint8_t>(event.numbers[i]);
  origins_.push_back(origin);
  EPS_CHECK(origins_.size() < uint64_t{1} << 32);
  frontier_.push_back(state);
}

bool Search::Next(State* state) {
  if (frontier_.empty()) return false;
  current_ = started_ ? current_ + 1 : 0;
  if (started_ && current_ == level_end_) {
    ++result.depth;
    level_end_ = origins_.size();
  }
  started_ = true;
  *state = frontier_.front();
  frontier_.pop_front();
  return true;
}

void Search::Stuck() {
  if (result.stuck++ == 0) RememberTrace("stuck", nullptr);
}

void Search::RememberTrace(const std::string& kind, const Event* last) {
  std::vector<std::string> trace;
  if (last != nullptr) trace.push_back(Format(last->what, last->numbers));
  for (uint64_t at = current_; at != 0; at = origins_[at].parent) {
    const Origin& origin = origins_[at];
    trace.push_back(
        Format(texts_[origin.what], {origin.numbers[0], origin.numbers[1], origin.numbers[2]}));
  }
  result.traces[kind] = std::vector<std::string>(trace.rbegin(), trace.rend());
}

}  // namespace eps::model
