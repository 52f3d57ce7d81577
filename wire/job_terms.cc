#include "wire/job_terms.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace eps {

bool IsJobName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxJobNameBytes && name.front() != '-' &&
         name.back() != '-' && std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
         });
}

std::string PhaseName(v1::JobPhase phase) {
  const std::string& name = v1::JobPhase_Name(phase);
  if (name.empty()) return absl::StrCat(static_cast<int>(phase));
  return std::string(absl::StripPrefix(name, "JOB_PHASE_"));
}

bool HasEnded(v1::JobPhase phase) {
  return phase == v1::JOB_PHASE_SUCCEEDED || phase == v1::JOB_PHASE_FAILED ||
         phase == v1::JOB_PHASE_CANCELLED;
}

}  // namespace eps
