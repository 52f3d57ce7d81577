#include "worker/exec/cuda/crc_bodies.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/checksum.h"
#include "base/testing/guarded_memory.h"
#include "gtest/gtest.h"
#include "worker/exec/cuda/testing/simulated_grid.h"

namespace eps::grid {
namespace {

constexpr uint32_t kGarbage = 0xdeadbeef;

// Writes bytes that do not repeat.
void FillBytes(uint32_t seed, uint8_t* bytes, uint64_t n) {
  uint64_t state = seed;
  for (uint64_t i = 0; i < n; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    bytes[i] = static_cast<uint8_t>(state >> 56);
  }
}

// Checks n bytes: those of each piece, and their combination. Threads run in an order by `seed`.
void CheckBytes(const uint8_t* bytes, uint64_t n, uint32_t seed) {
  const uint64_t pieces = (n + kCrcPiece - 1) / kCrcPiece;
  std::vector<uint32_t> crcs(pieces + 1, kGarbage);
  SimulatedGrid grid(seed);
  ASSERT_EQ(LaunchCrc32c(bytes, n, crcs.data(), grid), 0);
  const absl::string_view all(reinterpret_cast<const char*>(bytes), n);
  for (uint64_t i = 0; i < pieces; ++i) {
    ASSERT_EQ(crcs[i], Crc32c(all.substr(i * kCrcPiece, kCrcPiece))) << i << " of " << n;
  }
  ASSERT_EQ(crcs[pieces], kGarbage) << n;
  ASSERT_EQ(CombineCrc32c(crcs.data(), n), Crc32c(all)) << n;
}

TEST(CrcBodiesTest, KnowsThePublishedValue) {
  SimulatedGrid grid(1);
  uint32_t crc = 0;
  ASSERT_EQ(LaunchCrc32c("123456789", 9, &crc, grid), 0);
  EXPECT_EQ(crc, 0xe3069283u);
}

TEST(CrcBodiesTest, EqualsTheChecksumAtEveryAlignment) {
  std::vector<uint64_t> lengths = {1023,  1024,  1025,  2047,   4096,   5000,   65535,  65536,
                                   65537, 65540, 66560, 131071, 131072, 131073, 196609, 200000};
  for (uint64_t n = 1; n < 40; ++n) lengths.push_back(n);
  uint32_t seed = 0;
  for (const uint64_t n : lengths) {
    // The memory after the bytes is inaccessible in the first round.
    for (const uint64_t after : {0, 1, 2, 3}) {
      GuardedMemory memory(n + after);
      FillBytes(++seed, memory.data(), n);
      CheckBytes(memory.data(), n, seed);
    }
  }
}

TEST(CrcBodiesTest, TellsZerosFromNothing) {
  const std::vector<uint8_t> zeros(3 * kCrcPiece + 5);
  for (const uint64_t n : {1u, 4u, 1024u, 65536u, 65537u, 3 * 65536u + 5}) {
    CheckBytes(zeros.data(), n, 7);
  }
}

TEST(CrcBodiesTest, SeesEveryBitOfAPiece) {
  std::vector<uint8_t> bytes(kCrcRound + 3);
  FillBytes(1, bytes.data(), bytes.size());
  SimulatedGrid grid(1);
  uint32_t before = 0;
  ASSERT_EQ(LaunchCrc32c(bytes.data(), bytes.size(), &before, grid), 0);
  for (size_t bit = 0; bit < 8 * bytes.size(); bit += 7) {
    bytes[bit / 8] ^= 1u << bit % 8;
    uint32_t after = 0;
    ASSERT_EQ(LaunchCrc32c(bytes.data(), bytes.size(), &after, grid), 0);
    EXPECT_NE(after, before) << bit;
    bytes[bit / 8] ^= 1u << bit % 8;
  }
}

TEST(CrcBodiesTest, CombinesPiecesOfMoreThanFourGigabytes) {
  // Zeros, of which all whole pieces have one CRC.
  constexpr uint64_t kBytes = (uint64_t{1} << 32) + 70001;
  std::vector<uint32_t> crcs(CrcPieces(kBytes));
  const std::string piece(kCrcPiece, '\0');
  std::fill(crcs.begin(), crcs.end(), Crc32c(piece));
  const uint64_t rest = LastCrcPiece(kBytes);
  crcs.back() = Crc32c(absl::string_view(piece).substr(0, rest));
  uint32_t expected = 0;
  for (size_t i = 0; i + 1 < crcs.size(); ++i) expected = Crc32c(piece, expected);
  EXPECT_EQ(CombineCrc32c(crcs.data(), kBytes),
            Crc32c(absl::string_view(piece).substr(0, rest), expected));
}

TEST(CrcBodiesTest, LaunchesNothingForNothing) {
  SimulatedGrid grid(1);
  EXPECT_EQ(LaunchCrc32c(nullptr, 0, nullptr, grid), 0);
  EXPECT_EQ(grid.launches(), 0);
  EXPECT_EQ(CombineCrc32c(nullptr, 0), Crc32c(""));
}

}  // namespace
}  // namespace eps::grid
