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

// How a state was reached: a printf format for up to three numbers.
struct Event {
  const char* what;
  std::array<int, 3> numbers;
};

// The frontier and the visited states of a search. Thread-compatible. Keeps 16 bytes of hash and a
// few bytes of origin for every state, and whole states only until they are searched.
class Search {
 public:
  Search();

  // Records a transition from the state that Next returned last to `state`. A transition with a
  // violation is counted, but its state is not searched.
  void Reach(const State& state, const char* violation_or_null, const Event& event);
  // Returns the next state to search, or false if there is none.
  bool Next(State* state);
  // Records that the state that Next returned last has no successor.
  void Stuck();
  uint64_t states() const { return origins_.size(); }

  ModelResult result;

 private:
  // The hash of a state, an entry of the table.
  struct Key {
    uint64_t low = 0;  // 0 marks a free table entry
    uint64_t high = 0;
  };
  // The transition that led to a state.
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
  std::vector<Origin> origins_;     // by the number of the state, in order of discovery
  std::deque<State> frontier_;      // states [current_ + 1, origins_.size())
  std::vector<const char*> texts_;  // string literals
  uint64_t current_ = 0;
  bool started_ = false;
  uint64_t level_end_ = 1;  // the first state of the next depth
};

}  // namespace eps::model

#endif  // EPS_TESTS_MODEL_SEARCH_H_
