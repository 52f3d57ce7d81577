#ifndef EPS_TESTS_MODEL_SEARCH_SEARCH_H_
#define EPS_TESTS_MODEL_SEARCH_SEARCH_H_

// Breadth-first search over states that are plain bytes.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/model/search/model_result.h"

namespace eps::model {

// How a state was reached: a printf format for up to four numbers.
struct Event {
  const char* what;
  std::array<int, 4> numbers;
};

// The visited states of a search by number, in order of discovery, and how each was reached.
// Thread-compatible. Keeps 16 bytes of hash and 12 bytes of origin for every state, and 8 bytes for
// every transition that is progress.
class StateGraph {
 public:
  StateGraph();

  // Records that the current state is final.
  void Final();
  // Records that the current state has no successor.
  void Stuck();
  // After the search: counts the states from which no progress leads to a final state or to a
  // violation.
  void CountNoWayOn();
  uint64_t states() const { return origins_.size(); }

  ModelResult result;

 protected:
  // Records a transition from the current state to the state of these words. Returns whether that
  // state is new; the caller then searches it.
  bool Record(const uint64_t* words, size_t count, const char* violation_or_null,
              const Event& event, bool progress);
  // Makes the next state in order of discovery the current one.
  void Advance();

 private:
  // An entry of the table: 96 bits of hash, and the state's number.
  struct Key {
    uint64_t low = 0;  // 0 marks a free table entry
    uint32_t high = 0;
    uint32_t number = 0;
  };
  // The transition that led to a state.
  struct Origin {
    uint32_t parent;
    uint16_t what;  // index into texts_
    std::array<uint8_t, 4> numbers;
  };

  // Returns the number of the state with this hash; key.number if it is new.
  uint32_t Insert(const Key& key);
  void Grow();
  uint16_t IndexOf(const char* what);
  void RememberTrace(const std::string& kind, uint64_t number, const Event* last);

  std::vector<Key> table_;
  uint64_t used_ = 0;
  std::vector<Origin> origins_;                          // by the number of the state
  std::vector<std::pair<uint32_t, uint32_t>> progress_;  // from, to
  std::vector<uint32_t> ends_;                           // final states, and sources of violations
  std::vector<const char*> texts_;                       // string literals
  uint64_t current_ = 0;
  bool started_ = false;
  uint64_t level_end_ = 1;  // the first state of the next depth
};

// A search over `State`. UsedWords(state) returns the number of its 8-byte words up to the last one
// that tells it from other states; the rest is zero. Keeps whole states only until they are
// searched.
template <class State>
class Search : public StateGraph {
 public:
  // Records a transition from the state that Next returned last to `state`. A transition with a
  // violation is counted, but its state is not searched. `progress` says that
  // the job may rely on the transition; it may not rely on a fault.
  void Reach(const State& state, const char* violation_or_null, const Event& event,
             bool progress = false) {
    // Without padding, equal states have equal bytes.
    static_assert(std::has_unique_object_representations_v<State> && sizeof(State) % 8 == 0);
    uint64_t words[sizeof(State) / 8];
    std::memcpy(words, &state, sizeof(State));
    if (Record(words, UsedWords(state), violation_or_null, event, progress)) {
      frontier_.push_back(state);
    }
  }
  // Returns the next state to search, or false if there is none.
  bool Next(State* state) {
    if (frontier_.empty()) return false;
    Advance();
    *state = frontier_.front();
    frontier_.pop_front();
    return true;
  }

 private:
  std::deque<State> frontier_;  // states after the current one
};

}  // namespace eps::model

#endif  // EPS_TESTS_MODEL_SEARCH_SEARCH_H_
