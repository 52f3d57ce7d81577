#ifndef EPS_SERVER_CORE_TRACE_TRACE_TEXT_H_
#define EPS_SERVER_CORE_TRACE_TRACE_TEXT_H_

// The trace of a shard (effect::Trace) as lines of text. servers.trace writes them and check_trace
// (tests/model) reads them:
//
//   <ns> process                                     a process begins; its memory is empty
//   <ns> <kind> <term> <step> <subject> <version> <cut step>/<cut term>
//
// ns is the time of CLOCK_MONOTONIC, which all processes of a machine share; the kinds are those of
// TraceAction.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "eps_server/core/trace/trace_action.h"

namespace eps {

// Returns the name of a kind in the text; static.
const char* TraceKindName(TraceAction::Kind kind);

// One line of a trace. A plain value.
struct TraceLine {
  uint64_t ns = 0;
  std::optional<TraceAction> action;  // nullopt: a process begins

  // Returns the line with its newline.
  std::string ToText() const;
  // Parses a line without its newline. InvalidArgument quotes a line that is malformed.
  static absl::StatusOr<TraceLine> Parse(absl::string_view text);
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TRACE_TRACE_TEXT_H_
