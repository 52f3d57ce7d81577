#ifndef EPS_BASE_PLUGIN_TESTING_OUTCOMES_H_
#define EPS_BASE_PLUGIN_TESTING_OUTCOMES_H_

// The outcomes of checks, for the tests of every kind of plug-in.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/plugin/check/plugin_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {

// Returns a line for each check: its name, its outcome and its finding.
inline std::string OutcomesOf(const std::vector<PluginCheck>& checks) {
  std::string text;
  for (const PluginCheck& check : checks) {
    const bool passed = check.outcome == PluginCheck::Outcome::kPassed;
    const bool failed = check.outcome == PluginCheck::Outcome::kFailed;
    absl::StrAppend(&text, check.name,
                    passed   ? " passed"
                    : failed ? " failed: "
                             : " not run",
                    check.finding, "\n");
  }
  return text;
}

// A bad plug-in, the first check that it fails, and words of the finding.
struct Planted {
  const char* bad;
  const char* check;
  const char* words;
};

// Expects that the first check which did not pass is that of the plug-in.
inline void ExpectFirstFinding(const std::vector<PluginCheck>& checks, const Planted& planted) {
  EXPECT_FALSE(AllPassed(checks));
  for (const PluginCheck& found : checks) {
    if (found.outcome == PluginCheck::Outcome::kPassed) continue;
    EXPECT_EQ(found.name, planted.check) << OutcomesOf(checks);
    EXPECT_THAT(found.finding, testing::HasSubstr(planted.words)) << OutcomesOf(checks);
    break;
  }
}

}  // namespace eps

#endif  // EPS_BASE_PLUGIN_TESTING_OUTCOMES_H_
