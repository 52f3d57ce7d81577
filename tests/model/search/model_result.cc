#include "tests/model/search/model_result.h"

namespace eps {

std::string Describe(const ModelResult& result) {
  std::string text = std::to_string(result.states) + " states, " +
                     std::to_string(result.transitions) + " transitions, stuck " +
                     std::to_string(result.stuck) + "\n";
  for (const auto& [kind, count] : result.violations) {
    text += "  " + kind + ": " + std::to_string(count) + "\n";
  }
  return text;
}

std::string Trace(const ModelResult& result) {
  std::string text;
  for (const auto& [kind, events] : result.traces) {
    text += kind + ":\n";
    for (const std::string& event : events) text += "  " + event + "\n";
  }
  return text;
}

}  // namespace eps
