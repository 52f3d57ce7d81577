#include "base/job/layout/visits.h"

#include <cstddef>
#include <cstdint>

namespace eps {
namespace {

std::optional<Visit> NextVisit(const JobSpec& spec, const Visit& visit) {
  const uint32_t stage = visit.stage.value();
  if (!visit.backward && stage + 1 < spec.stages.size()) {
    return Visit{StageId(stage + 1), /*backward=*/stage + 2 == spec.stages.size()};
  }
  if (!visit.backward || visit.stage == spec.LowestTrainableStage()) return std::nullopt;
  return Visit{StageId(stage - 1), /*backward=*/true};
}

}  // namespace

std::vector<Visit> VisitsOfStep(const JobSpec& spec) {
  std::vector<Visit> visits;
  std::optional<Visit> visit = Visit{StageId(0), /*backward=*/spec.stages.size() == 1};
  for (; visit.has_value(); visit = NextVisit(spec, *visit)) visits.push_back(*visit);
  return visits;
}

bool FetchesWeights(const JobSpec& spec, const Visit& visit) {
  const size_t stage = visit.stage.value();
  return !visit.backward || stage + 1 == spec.stages.size() ||
         spec.stages[stage].backward_needs_weights;
}

std::optional<Visit> NextFetch(const JobSpec& spec, const Visit& visit) {
  std::optional<Visit> next = NextVisit(spec, visit);
  while (next.has_value() && !FetchesWeights(spec, *next)) next = NextVisit(spec, *next);
  return next;
}

}  // namespace eps
