#ifndef EPS_BASE_TESTING_FLIPS_H_
#define EPS_BASE_TESTING_FLIPS_H_

// For tests that flip single bits of files, one after the other.
//
// EPS_FLIPS=N sets the number of flips. EPS_FLIPS_TALLY=FILE keeps the counts, so that an
// interrupted run can continue. EPS_FLIP_SEED=N runs only that flip.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "base/testing/tally.h"
#include "gtest/gtest.h"

namespace eps {

// The result of one flip.
struct Flipped {
  std::string outcome;  // what is counted
  absl::Status status;  // not OK: wrong data was served, or the damage was not located
};

// The results of all flips of a test.
struct Flips {
  uint64_t goal = 0;
  Tally tally;  // of outcomes; without a file if only one flip runs

  void ExpectMore(const std::string& outcome, uint64_t count) {
    if (goal == 0) return;
    EXPECT_GT(tally[outcome], count) << outcome;
  }
};

// Draws flip after flip until there are `count`, or a few have failed the test. `flip` draws what
// it flips from the dice.
inline Flips MakeFlips(uint64_t count, const std::function<Flipped(Dice dice)>& flip) {
  const auto make = [&flip](uint64_t seed) {
    Dice dice(seed);
    for (int i = 0; i < 5; ++i) dice(2);  // the first draws of near seeds are alike
    Flipped flipped = flip(dice);
    EXPECT_TRUE(flipped.status.ok())
        << "EPS_FLIP_SEED=" << seed << " does it again: " << flipped.status;
    return flipped;
  };
  if (std::getenv("EPS_FLIP_SEED") != nullptr) {
    make(NumberFromEnvironment("EPS_FLIP_SEED", 0));
    return {0, Tally(nullptr)};
  }
  Flips flips = {NumberFromEnvironment("EPS_FLIPS", count), Tally(std::getenv("EPS_FLIPS_TALLY"))};
  Tally& tally = flips.tally;
  while (tally["flips"] < flips.goal && tally["failed"] <= 5) {
    const Flipped flipped = make(++tally["flips"]);
    ++tally[flipped.outcome];
    if (!flipped.status.ok()) ++tally["failed"];
    if (tally["flips"] % 500 == 0) tally.Save();
  }
  tally.Save();
  std::printf("flips: %s\n", tally.ToString().c_str());
  EXPECT_EQ(tally["failed"], 0u);
  return flips;
}

}  // namespace eps

#endif  // EPS_BASE_TESTING_FLIPS_H_
