#include "base/job/differences/spec_differences.h"

#include "gtest/gtest.h"

namespace eps {
namespace {

std::vector<std::string> Texts(absl::string_view theirs, absl::string_view ours) {
  std::vector<std::string> found;
  for (const SpecDifference& difference : AllDifferences(theirs, ours)) {
    found.push_back(difference.text);
  }
  return found;
}

TEST(AllDifferences, NamesEveryKey) {
  EXPECT_EQ(Texts("a = 1\nb = 2\n", "a = 1\nb = 2\n"), std::vector<std::string>());
  EXPECT_EQ(Texts("a = 1\nb = 2\nd = 4\ne = x\ne = y\n", "a = 0\nc = 3\nd = 5\ne = x\ne = z\n"),
            (std::vector<std::string>{"a: 1 there, 0 here", "c: absent there, 3 here",
                                      "d: 4 there, 5 here", "e: x, y there, x, z here",
                                      "b: 2 there, absent here"}));
}

TEST(AllDifferences, NamesTheFirstLineOfAList) {
  EXPECT_EQ(
      Texts("a.1 = x\na.2 = y\na.3 = z\nb.1 = x\nv2 = 1\nc.4 = 1\n",
            "a.1 = x\na.2 = u\na.3 = v\nb.1 = y\nv2 = 2\n"),
      (std::vector<std::string>{"a.2: y there, u here (and 1 more of a.N)", "b.1: x there, y here",
                                "v2: 1 there, 2 here", "c.4: 1 there, absent here"}));
}

}  // namespace
}  // namespace eps
