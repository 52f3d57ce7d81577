#ifndef EPS_SERVER_CORE_TRACE_TRACE_TEXT_H_
#define EPS_SERVER_CORE_TRACE_TRACE_TEXT_H_

// What a shard does (effect::Trace) as lines of text, as servers.trace writes them and
// check_trace reads them:
//
//   <ns> process                                     a new one begins: its memory is empty
//   <ns> <kind> <term> <step> <subject> <version> <cut step>/<cut term>
//
// ns: of CLOCK_MONOTONIC, which the processes of a machine share; kinds as in TraceAction.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "eps_server/core/trace/trace_action.h"

namespace eps {

const char* TraceKindName(TraceAction::Kind kind);

struct TraceLine {
  uint64_t ns = 0;
  std::optional<TraceAction> action;  // nullopt: a process begins

  // With its newline.
  std::string ToText() const;
  // Without one. InvalidArgument with the line.
  static absl::StatusOr<TraceLine> Parse(absl::string_view text);
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TRACE_TRACE_TEXT_H_
