#include "eps_server/core/trace/trace_text.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace eps {
namespace {

using Kind = TraceAction::Kind;

constexpr char kProcess[] = "process";

std::optional<Kind> KindOf(absl::string_view name) {
  for (int k = 0; k <= static_cast<int>(Kind::kFailed); ++k) {
    if (name == TraceKindName(static_cast<Kind>(k))) return static_cast<Kind>(k);
  }
  return std::nullopt;
}

}  // namespace

const char* TraceKindName(Kind kind) {
  switch (kind) {
    case Kind::kRecovered:
      return "recovered";
    case Kind::kFound:
      return "found";
    case Kind::kCounted:
      return "counted";
    case Kind::kUpdateStarted:
      return "update-started";
    case Kind::kUpdated:
      return "updated";
    case Kind::kStepOpened:
      return "step-opened";
    case Kind::kStepComplete:
      return "step-complete";
    case Kind::kRecorded:
      return "recorded";
    case Kind::kPromised:
      return "promised";
    case Kind::kRestored:
      return "restored";
    case Kind::kResumed:
      return "resumed";
    case Kind::kReplayed:
      return "replayed";
    case Kind::kCut:
      return "cut";
    case Kind::kDurable:
      return "durable";
    case Kind::kFailed:
      return "failed";
  }
  return "unknown";
}

std::string TraceLine::ToText() const {
  if (!action.has_value()) return absl::StrCat(ns, " ", kProcess, "\n");
  const TraceAction& a = *action;
  return absl::StrCat(ns, " ", TraceKindName(a.kind), " ", a.term.value(), " ", a.step.value(), " ",
                      a.subject, " ", a.version.value(), " ", a.cut.step.value(), "/",
                      a.cut.term.value(), "\n");
}

absl::StatusOr<TraceLine> TraceLine::Parse(absl::string_view text) {
  const std::vector<absl::string_view> fields = absl::StrSplit(text, absl::ByAnyChar(" /"));
  const auto error = [text] {
    return absl::InvalidArgumentError(absl::StrCat("no line of a trace: \"", text, "\""));
  };
  TraceLine line;
  if (!absl::SimpleAtoi(fields[0], &line.ns)) return error();
  if (fields.size() == 2 && fields[1] == kProcess) return line;
  if (fields.size() != 8) return error();
  const std::optional<Kind> kind = KindOf(fields[1]);
  uint64_t numbers[6];
  for (size_t i = 0; i < 6; ++i) {
    if (!absl::SimpleAtoi(fields[i + 2], &numbers[i])) return error();
  }
  if (!kind.has_value()) return error();
  line.action =
      TraceAction{*kind,      Term(numbers[0]),    Step(numbers[1]),
                  numbers[2], Version(numbers[3]), CutId{Step(numbers[4]), Term(numbers[5])}};
  return line;
}

}  // namespace eps
