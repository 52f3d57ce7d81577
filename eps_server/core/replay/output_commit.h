#ifndef EPS_SERVER_CORE_REPLAY_OUTPUT_COMMIT_H_
#define EPS_SERVER_CORE_REPLAY_OUTPUT_COMMIT_H_

// Of a shard with a contribution log: nobody is told anything that may follow from what is not
// durable yet, so that a shard that dies and replays its log never takes back a word.

#include <algorithm>
#include <deque>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "eps_server/core/events.h"

namespace eps {

// Thread-compatible. Entries are logged, and become durable, in order.
class OutputCommit {
 public:
  void OnLogged(OpId op) { last_ = op; }
  // Everything up to that operation is durable: what waited for it is told.
  void OnDurable(OpId op, std::vector<Effect>* out) {
    durable_ = std::max(durable_, op);  // one that is told of late says nothing new
    for (; !held_.empty() && held_.front().first <= durable_; held_.pop_front()) {
      out->push_back(std::move(held_.front().second));
    }
  }
  // Whether the effect tells others something.
  static bool Tells(const Effect& effect);
  // Appends the effect to `out` now or, if it tells others something, when all that was logged so
  // far is durable.
  void Emit(Effect effect, std::vector<Effect>* out) {
    if (durable_ < last_ && Tells(effect)) {
      held_.emplace_back(last_, std::move(effect));
    } else {
      out->push_back(std::move(effect));
    }
  }
  // The term is over: only ends are told. What was not durable was never acknowledged.
  void Drop(std::vector<Effect>* out) {
    for (auto& [op, effect] : held_) {
      if (std::holds_alternative<effect::Close>(effect)) out->push_back(std::move(effect));
    }
    held_.clear();
    durable_ = last_;
  }

 private:
  OpId last_;
  OpId durable_;
  std::deque<std::pair<OpId, Effect>> held_;  // until that operation is durable
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_REPLAY_OUTPUT_COMMIT_H_
