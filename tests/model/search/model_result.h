#ifndef EPS_TESTS_MODEL_SEARCH_MODEL_RESULT_H_
#define EPS_TESTS_MODEL_SEARCH_MODEL_RESULT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace eps {

// The outcome of a search. The counts are the same on every machine.
struct ModelResult {
  uint64_t states = 0;
  uint64_t transitions = 0;
  uint64_t finals = 0;  // states in which the job has done all its steps
  uint64_t stuck = 0;   // states from which the job cannot go on without another fault
  int depth = 0;
  double seconds = 0;
  std::map<std::string, uint64_t> violations;  // transitions into each kind, which end there
  // The events that lead to the first violation of each kind, and to the first stuck state.
  std::map<std::string, std::vector<std::string>> traces;
};

// Returns the counts as text.
std::string Describe(const ModelResult& result);
// Returns the events of each trace, one in a line.
std::string Trace(const ModelResult& result);

}  // namespace eps

#endif  // EPS_TESTS_MODEL_SEARCH_MODEL_RESULT_H_
