#include "base/job/spec_differences.h"

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(AllDifferences, NamesEveryKey) {
  const auto texts = [](absl::string_view theirs, absl::string_view ours) {
    std::vector<std::string> found;
    for (const SpecDifference& difference : AllDifferences(theirs, ours)) {
      found.push_back(difference.text);
    }
    return found;
  };
  EXPECT_EQ(texts("a = 1\nb = 2\n", "a = 1\nb = 2\n"), std::vector<std::string>());
  EXPECT_EQ(texts("a = 1\nb = 2\nd = 4\ne = x\ne = y\n", "a = 0\nc = 3\nd = 5\ne = x\ne = z\n"),
            (std::vector<std::string>{"a: 1 there, 0 here", "c: absent there, 3 here",
                                      "d: 4 there, 5 here", "e: x, y there, x, z here",
                                      "b: 2 there, absent here"}));
}

}  // namespace
}  // namespace eps
