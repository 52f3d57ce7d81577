#ifndef EPS_BASE_TESTING_EVERY_TARGET_H_
#define EPS_BASE_TESTING_EVERY_TARGET_H_

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace eps {

// Runs `body` once for each instruction set that is compiled in and supported by this machine.
// Changes a choice of the whole process: call it from one thread. Records the number of sets as the
// property "targets" of the test.
template <class Body>
void OnEveryTarget(Body body) {
  const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_FALSE(targets.empty());
  for (const int64_t target : targets) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(hwy::TargetName(target));
    body();
  }
  ::testing::Test::RecordProperty("targets", static_cast<int>(targets.size()));
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace eps

#endif  // EPS_BASE_TESTING_EVERY_TARGET_H_
