// Objects that are no updaters are refused with the reason, and no code of an unexpected one runs.

#include "optimizer/plugin/updater_plugin.h"

#include <stdlib.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/plugin/shared_object.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optimizer/plugin/testing/objects.h"

namespace eps {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

std::string InTmp(const std::string& name) { return testing::TempDir() + "/" + name; }

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteAll(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// An object, and words of the reason for which it is refused.
struct Refused {
  const char* bad;
  const char* words;
};

class RefusedTest : public testing::TestWithParam<Refused> {};

TEST_P(RefusedTest, SaysWhy) {
  const std::string path = BadUpdater(GetParam().bad);
  const absl::Status status = LoadUpdaterPlugin(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith(path + ": "), HasSubstr(GetParam().words)));
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedTest,
    testing::Values(Refused{"symbol", "exports no function eps_updater_v1"},
                    Refused{"null", "eps_updater_v1() returned null"},
                    Refused{"version", "has version 2 of the interface; expected 1"},
                    Refused{"name", "the name of the updater is \"bad-updater\""},
                    Refused{"field_name", "the name of state field 0 is \"Momentum\""},
                    Refused{"field_twice", "two state fields have the same name"},
                    Refused{"many_fields", "has 5 state fields; expected at most 4"},
                    Refused{"parameter_twice", "two parameters are called momentum"},
                    Refused{"usual_value", "parameter momentum: expected finite numbers"},
                    Refused{"range", "found 0, 0.9 and inf"},
                    Refused{"no_update", "update is null"}),
    [](const auto& info) { return std::string(info.param.bad); });

TEST(UpdaterPluginTest, LoadsAnUpdater) {
  const auto plugin = LoadUpdaterPlugin(kGoodUpdater);
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  EXPECT_EQ((*plugin)->name, "rmsprop");
  EXPECT_EQ((*plugin)->path, kGoodUpdater);
  EXPECT_THAT((*plugin)->fields, ElementsAre("square_avg"));
  ASSERT_EQ((*plugin)->parameters.size(), 2U);
  EXPECT_EQ((*plugin)->parameters[0].name, "alpha");
  EXPECT_EQ((*plugin)->parameters[0].usual, 0.99);
  // torch.optim.RMSprop: v = 0.01 * 4, and the weight sinks by 0.5 * 2 / (0.2 + 1e-8).
  const eps_updater_step step = {1, 0.5, 0, 1};
  const double parameters[] = {0.99, 1e-8};
  for (eps_updater_update* const function : {(*plugin)->update, (*plugin)->reference}) {
    float weight = 1;
    float square_avg = 0;
    float* const fields[] = {&square_avg};
    const float grad = 2;
    function(&step, parameters, 1, &grad, &weight, fields);
    EXPECT_NEAR(square_avg, 0.04, 1e-8);
    EXPECT_NEAR(weight, 1 - 5, 1e-5);
  }
}

TEST(UpdaterPluginTest, OtherFilesAreRefused) {
  const auto code_of = [](const std::string& path) {
    const absl::Status status = LoadUpdaterPlugin(path).status();
    EXPECT_THAT(std::string(status.message()), StartsWith(path + ": "));
    return status.code();
  };
  EXPECT_EQ(code_of(InTmp("gone.so")), absl::StatusCode::kNotFound);
  EXPECT_EQ(code_of(testing::TempDir()), absl::StatusCode::kInvalidArgument);
  WriteAll(InTmp("empty.so"), "");
  EXPECT_EQ(code_of(InTmp("empty.so")), absl::StatusCode::kInvalidArgument);
  WriteAll(InTmp("text.so"), "not an object");
  EXPECT_EQ(code_of(InTmp("text.so")), absl::StatusCode::kInvalidArgument);
  const std::string whole = ReadAll(kGoodUpdater);
  for (const size_t size : {size_t{10}, size_t{64}, size_t{1000}, whole.size() / 2}) {
    WriteAll(InTmp("cut.so"), whole.substr(0, size));
    EXPECT_EQ(code_of(InTmp("cut.so")), absl::StatusCode::kInvalidArgument);
  }
  WriteAll(InTmp("large.so"), "");
  ASSERT_EQ(truncate(InTmp("large.so").c_str(), kMaxPluginBytes + 1), 0);
  EXPECT_EQ(code_of(InTmp("large.so")), absl::StatusCode::kInvalidArgument);
}

TEST(UpdaterPluginTest, NoCodeOfAnotherFileRuns) {
  const std::string trace = InTmp("trace");
  std::remove(trace.c_str());
  setenv("EPS_TRACE", trace.c_str(), /*overwrite=*/1);
  const std::string expected(64, 'a');
  const absl::Status status = LoadUpdaterPlugin(BadUpdater("constructor"), expected).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(expected));
  EXPECT_NE(access(trace.c_str(), F_OK), 0) << "its constructor ran";
  // The expected file does run it: the trace works.
  const auto plugin = LoadUpdaterPlugin(BadUpdater("constructor"));
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  EXPECT_EQ(access(trace.c_str(), F_OK), 0);
  EXPECT_TRUE(LoadUpdaterPlugin(BadUpdater("constructor"), (*plugin)->sha256).ok());
}

TEST(UpdaterPluginTest, EqualBytesAreLoadedOnce) {
  const auto first = LoadUpdaterPlugin(kGoodUpdater);
  ASSERT_TRUE(first.ok()) << first.status();
  WriteAll(InTmp("copy.so"), ReadAll(kGoodUpdater));
  const auto second = LoadUpdaterPlugin(InTmp("copy.so"));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*first, *second);
  EXPECT_EQ(FindLoadedPlugin((*first)->sha256), *first);
  EXPECT_EQ(FindLoadedPlugin(std::string(64, '0')), nullptr);
}

TEST(UpdaterPluginTest, AReplacedFileIsAnotherPlugin) {
  const std::string path = InTmp("replaced.so");
  WriteAll(path, ReadAll(kGoodUpdater));
  const auto old = LoadUpdaterPlugin(path);
  ASSERT_TRUE(old.ok()) << old.status();
  WriteAll(path, ReadAll(BadUpdater("nothing")));  // in place: a mapped file would change
  const auto fresh = LoadUpdaterPlugin(path);
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_NE(*old, *fresh);
  EXPECT_EQ((*fresh)->name, "bad_updater");
  const eps_updater_step step = {1, 0, 0, 1};
  const double parameters[] = {0.99, 1e-8};
  float weight = 1;
  float field = 0;
  float* const fields[] = {&field};
  const float grad = 2;
  (*old)->update(&step, parameters, 1, &grad, &weight, fields);
  EXPECT_NEAR(field, 0.04, 1e-8);
}

}  // namespace
}  // namespace eps
