#include "base/nearest_name.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(NearestName, FindsASlipAndRefusesAnotherWord) {
  const std::vector<std::string> names = {"adamw", "lion", "sgd"};
  EXPECT_EQ(NearestName("adam", names), "adamw");
  EXPECT_EQ(NearestName("lino", {"line", "lion"}), "line");
  EXPECT_EQ(NearestName("trian", {"serve", "train"}), "train");
  EXPECT_EQ(NearestName("muon", names), "");
  EXPECT_EQ(NearestName("", names), "");
  EXPECT_EQ(NearestName("x", {}), "");
}

}  // namespace
}  // namespace eps
