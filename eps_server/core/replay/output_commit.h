#ifndef EPS_SERVER_CORE_REPLAY_OUTPUT_COMMIT_H_
#define EPS_SERVER_CORE_REPLAY_OUTPUT_COMMIT_H_

// Output commit for a shard with a contribution log. Holds back each effect that others can see
// until all entries logged before it are durable, so that a shard that dies and replays its log
// never contradicts what it said.

#include <algorithm>
#include <deque>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "eps_server/core/events.h"

namespace eps {

// Thread-compatible. Owns the effects that it holds back. Entries are logged, and become durable,
// in order of their op ids.
class OutputCommit {
 public:
  // Call for each entry when its logging starts.
  void OnLogged(OpId op) { last_ = op; }
  // All entries up to `op` are durable: appends the effects that waited for them to `out`.
  void OnDurable(OpId op, std::vector<Effect>* out) {
    durable_ = std::max(durable_, op);  // a late report changes nothing
    for (; !held_.empty() && held_.front().first <= durable_; held_.pop_front()) {
      out->push_back(std::move(held_.front().second));
    }
  }
  // Returns whether another process can see the effect.
  static bool Tells(const Effect& effect);
  // Appends the effect to `out` now or, if others can see it, once all entries logged so far are
  // durable.
  void Emit(Effect effect, std::vector<Effect>* out) {
    if (durable_ < last_ && Tells(effect)) {
      held_.emplace_back(last_, std::move(effect));
    } else {
      out->push_back(std::move(effect));
    }
  }
  // The term is over: answers every request whose answer is held back with `over`, and discards
  // the other effects. No entry that is not durable was ever acknowledged.
  void Drop(const absl::Status& over, std::vector<Effect>* out);

 private:
  OpId last_;                                 // the last entry logged
  OpId durable_;                              // the last entry known to be durable
  std::deque<std::pair<OpId, Effect>> held_;  // each waits for its operation
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_REPLAY_OUTPUT_COMMIT_H_
