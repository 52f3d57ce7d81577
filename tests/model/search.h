#ifndef EPS_TESTS_MODEL_SEARCH_H_
#define EPS_TESTS_MODEL_SEARCH_H_

// Breadth-first search over states that are plain bytes.

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tests/model/protocol_model.h"
#include "tests/model/protocol_state.h"

namespace eps::model {

// How a state was reached: a format for up to three numbers.
struct Event {
  const char* what;
  std::array<int, 3> numbers;
};

// Thread-compatible. Remembers 16 bytes of hash and a few bytes of origin per state; only those
// that were not searched yet are kept whole.
class Search {
 public:
  Search();

  // A transition from the state that Next gave last leads to `state`. One with a violation is
  // counted and not searched further.
  void Reach(const State& state, const char* violation_or_null, const Event& event);
  // The next state to search; false: there is none.
  bool Next(State* state);
  // The state that Next gave last has no way on.
  void Stuck();
  uint64_t states() const { return origins_.size(); }

  ModelResult result;

 private:
  struct Key {
    uint64_t low = 0;  // 0: free
    uint64_t high = 0;
  };
  struct Origin {
    uint32_t parent;
    uint16_t what;  // index into texts_
    std::array<uint8_t, 3> numbers;
  };

  bool Insert(const Key& key);
  void Grow();
  uint16_t IndexOf(const char* what);
  void RememberTrace(const std::string& kind, const Event* last);

  std::vector<Key> table_;
  uint64_t used_ = 0;
  std::vector<Origin> origins_;     // by number of the state, in the order of discovery
  std::deque<State> frontier_;      // states [current_ + 1, origins_.size())
  std::vector<const char*> texts_;  // literals
  uint64_t current_ = 0;
  bool started_ = false;
  uint64_t level_end_ = 1;  // the first state of the next depth
};

}  // namespace eps::model

#endif  // EPS_TESTS_MODEL_SEARCH_H_
