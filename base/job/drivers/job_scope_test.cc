#include "base/job/drivers/job_scope.h"

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(CallerScopeTest, ReachesAllJobsWithoutALimit) {
  EXPECT_FALSE(CallerScope().is_limited());
  EXPECT_TRUE(CallerScope().Check({"a", 1}).ok());
  EXPECT_TRUE(CallerScope().Check({"", 0}).ok());
  EXPECT_TRUE(CallerScope().CheckUnlimited("a drain").ok());
}

TEST(CallerScopeTest, ReachesTheNamedJobOnly) {
  const CallerScope scope = {"a", 0};
  EXPECT_TRUE(scope.Check({"a", 0}).ok());
  EXPECT_TRUE(scope.Check({"a", 7}).ok());
  for (const char* other : {"b", "", "ab"}) {
    const absl::Status denied = scope.Check({other, 7});
    EXPECT_TRUE(absl::IsPermissionDenied(denied)) << other;
    EXPECT_TRUE(absl::StrContains(denied.message(), "serves job a only")) << denied;
  }
  EXPECT_TRUE(absl::IsPermissionDenied(scope.CheckUnlimited("a drain")));
}

TEST(CallerScopeTest, AUidOutlivesNoName) {
  const CallerScope scope = {"a", 0x17};
  EXPECT_TRUE(scope.Check({"a", 0x17}).ok());
  // The name was given to another job since.
  const absl::Status denied = scope.Check({"a", 0x18});
  EXPECT_TRUE(absl::IsPermissionDenied(denied));
  EXPECT_TRUE(absl::StrContains(denied.message(), "uid 0000000000000017 only")) << denied;
  EXPECT_FALSE(scope.Reaches({"a", 0}));
  EXPECT_FALSE(scope.Reaches({"b", 0x17}));
}

}  // namespace
}  // namespace eps
