#include "verify/compare.h"

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace eps {
namespace {

JobSpec TwoTensors() {
  JobSpec spec;
  TensorSpec matrix;
  matrix.name = "matrix";
  matrix.rows = 2;
  matrix.cols = 3;
  TensorSpec vector;
  vector.name = "vector";
  vector.rank = 1;
  vector.rows = 1;
  vector.cols = 4;
  spec.tensors = {matrix, vector};
  spec.groups.emplace_back();
  return spec;
}

// Writes the vector first: the order of the tensors in the file must not matter.
std::unique_ptr<SafetensorsReader> FileOf(const TensorValues& values) {
  const std::string path = testing::TempDir() + "/compare.safetensors";
  SafetensorsEntry vector, matrix;
  vector.name = "vector";
  vector.shape = {4};
  matrix.name = "matrix";
  matrix.shape = {2, 3};
  auto writer = SafetensorsWriter::Create(path, {vector, matrix});
  EXPECT_TRUE(writer.ok()) << writer.status();
  EXPECT_TRUE((*writer)->Write(0, 0, values[1]).ok());
  EXPECT_TRUE((*writer)->Write(1, 0, values[0]).ok());
  EXPECT_TRUE((*writer)->Finish().ok());
  auto reader = SafetensorsReader::Open(path);
  EXPECT_TRUE(reader.ok()) << reader.status();
  return *std::move(reader);
}

RecordedArray ArrayOf(const TensorValues& values) {
  auto array = RecordedArray::Open(FileOf(values)->path(), TwoTensors(), /*weights=*/false);
  EXPECT_TRUE(array.ok()) << array.status();
  return *std::move(array);
}

const TensorValues kValues = {{1, 2, 3, 4, 5, 6}, {0, 0.5f, -1, 7}};

TEST(CompareResiduals, TreatsAMissingReferenceResidualAsZeros) {
  const auto compare = [](const std::map<std::string, std::vector<float>>& expected,
                          const SafetensorsReader* found) {
    ArraySums sums;
    const auto difference = CompareResiduals(expected, found, &sums);
    EXPECT_TRUE(difference.ok()) << difference.status();
    const bool equal = sums.expected.Finish() == sums.found.Finish();
    return difference.value_or("?") + (equal ? "" : ", other sums");
  };
  const auto all = FileOf(kValues);
  EXPECT_EQ(compare({{"matrix", kValues[0]}, {"vector", kValues[1]}}, all.get()), "");
  EXPECT_EQ(compare({}, nullptr), "");
  EXPECT_EQ(compare({{"matrix", kValues[0]}}, nullptr),
            "residual of matrix: expected one, found none");
  EXPECT_EQ(compare({{"matrix", kValues[0]}}, all.get()),
            "residual of vector: 3 of 4 elements differ, the first at element 1: expected 0 "
            "(0x00000000), found 0.5 (0x3f000000), other sums");
  EXPECT_EQ(compare({{"matrix@1", kValues[0]}}, all.get()),
            "residual of matrix@1: expected one, found none, other sums");
  EXPECT_EQ(compare({{"matrix", kValues[0]}}, FileOf({kValues[0], {0, 0, 0, 0}}).get()), "");
}

TEST(CompareTensors, FindsNoDifferenceInEqualBits) {
  ArraySums sums;
  const auto difference = CompareTensors(TwoTensors(), kValues, ArrayOf(kValues), &sums);
  ASSERT_TRUE(difference.ok()) << difference.status();
  EXPECT_FALSE(difference->has_value());
  const Sha256Digest expected = sums.expected.Finish();
  EXPECT_EQ(expected, sums.found.Finish());
  std::vector<float> all = kValues[0];
  all.insert(all.end(), kValues[1].begin(), kValues[1].end());
  EXPECT_EQ(expected, Sha256Of(absl::string_view(reinterpret_cast<const char*>(all.data()),
                                                 all.size() * sizeof(float))));
}

TEST(CompareTensors, NamesTheFirstAndCountsAllDifferences) {
  TensorValues found = kValues;
  found[0][4] = 5.5f;
  found[0][5] = std::nextafter(6.0f, 7.0f);
  found[1][0] = 1;
  ArraySums sums;
  const auto difference = CompareTensors(TwoTensors(), kValues, ArrayOf(found), &sums);
  ASSERT_TRUE(difference.ok() && difference->has_value());
  EXPECT_EQ(Describe(TwoTensors(), "weights", **difference),
            "weights of matrix [2 x 3]: 2 of 6 elements differ, the first at element 4 (row 1, "
            "column 1): expected 5 (0x40a00000), found 5.5 (0x40b00000)");
  EXPECT_NE(sums.expected.Finish(), sums.found.Finish());
}

TEST(CompareTensors, ComparesBitsNotValues) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  TensorValues with_nan = kValues;
  with_nan[1][2] = nan;
  auto difference = CompareTensors(TwoTensors(), with_nan, ArrayOf(with_nan), nullptr);
  ASSERT_TRUE(difference.ok());
  EXPECT_FALSE(difference->has_value());

  TensorValues negative_zero = kValues;
  negative_zero[1][0] = -0.0f;
  difference = CompareTensors(TwoTensors(), kValues, ArrayOf(negative_zero), nullptr);
  ASSERT_TRUE(difference.ok() && difference->has_value());
  EXPECT_EQ(Describe(TwoTensors(), "exp_avg", **difference),
            "exp_avg of vector [4]: 1 of 4 elements differ, the first at element 0: expected 0 "
            "(0x00000000), found -0 (0x80000000)");
}

TEST(CompareFigure, ShowsBothSides) {
  EXPECT_EQ(CompareFigure("loss", 5.5, 5.5), "");
  EXPECT_EQ(CompareFigure("loss", NAN, -NAN), "");
  EXPECT_EQ(CompareFigure("loss", 0.1, std::nextafter(0.1, 1.0)),
            "loss: expected 0.10000000000000001 (0x3fb999999999999a), found 0.10000000000000002 "
            "(0x3fb999999999999b)");
}

}  // namespace
}  // namespace eps
