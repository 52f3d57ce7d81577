#include "planner/hardware.h"

#include <cstdint>
#include <fstream>
#include <random>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/units.h"

namespace eps::planner {
namespace {

using ::testing::HasSubstr;

constexpr char kSmall[] = R"(name: small
source: a test
workers:
  - name: gpu
    device: {name: g, memory: 8GB, peak_fp32: 10TFLOP/s, to_device: 10GB/s, from_device: 9GB/s}
    memory: 32GB
    receive: 1GB/s
    send: 2GB/s
    encode: 3GB/s
    decode: 4GB/s
servers:
  - name: host
    cores: 4
    memory: 64GB
    memory_bandwidth: 50GB/s
    receive: 1GB/s
    send: 1GB/s
    encode: 5GB/s
    update: 2GB/s
    storage: {kind: nvme, capacity: 1TB, read: 3GB/s, write: 2GB/s}
)";

std::string ErrorOf(const std::string& yaml) {
  const auto hardware = ParseHardware(yaml, "file.yaml");
  return hardware.ok() ? "no error" : std::string(hardware.status().message());
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Hardware, ReadsADescription) {
  const Hardware hardware = *ParseHardware(kSmall, "file.yaml");
  EXPECT_EQ(hardware.name, "small");
  ASSERT_EQ(hardware.workers.size(), 1u);
  EXPECT_EQ(hardware.workers[0].count, 1u);
  EXPECT_EQ(hardware.workers[0].device.peak_fp32, FlopsPerSecond(10e12));
  EXPECT_EQ(hardware.workers[0].device.efficiency, 1);
  EXPECT_EQ(hardware.servers[0].cores, 4u);
  ASSERT_TRUE(hardware.servers[0].storage.has_value());
  EXPECT_EQ(hardware.servers[0].storage->write, BytesPerSecond(2e9));
  EXPECT_FALSE(hardware.one_machine);
}

TEST(Hardware, RefusalsNameLineKeyAndExpectation) {
  EXPECT_THAT(ErrorOf(Replaced(kSmall, "cores: 4", "core: 4")), HasSubstr("did you mean cores"));
  EXPECT_THAT(ErrorOf(Replaced(kSmall, "memory: 64GB", "memory: 64")),
              HasSubstr("file.yaml:14: servers[0]: servers[0].memory: found \"64\""));
  EXPECT_THAT(ErrorOf(Replaced(kSmall, "    send: 2GB/s\n", "")), HasSubstr("send is missing"));
  EXPECT_THAT(ErrorOf(Replaced(kSmall, "cores: 4", "cores: 0")),
              HasSubstr("expected a whole number from 1"));
  EXPECT_THAT(ErrorOf(Replaced(kSmall, "kind: nvme", "kind: tape")),
              HasSubstr("expected nvme or csd"));
  EXPECT_THAT(ErrorOf(Replaced(kSmall, "cores: 4", "cores: 4\n    cores: 4")),
              HasSubstr("appears twice"));
  EXPECT_THAT(ErrorOf("workers: 3"), HasSubstr("name is missing"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("expected keys and values"));
  EXPECT_THAT(ErrorOf("{"), HasSubstr("file.yaml"));
}

TEST(Hardware, ExamplesSurviveARoundTrip) {
  ASSERT_GE(HardwareExamples().size(), 8u);
  for (const std::string& name : HardwareExamples()) {
    const auto hardware = ParseHardware(*HardwareExample(name), name);
    ASSERT_TRUE(hardware.ok()) << hardware.status();
    const std::string yaml = HardwareToYaml(*hardware);
    const auto again = ParseHardware(yaml, name);
    ASSERT_TRUE(again.ok()) << again.status() << "\n" << yaml;
    EXPECT_EQ(HardwareToYaml(*again), yaml) << name;
    EXPECT_EQ(again->workers[0].device.peak_fp32, hardware->workers[0].device.peak_fp32);
    EXPECT_EQ(again->workers[0].device.efficiency, hardware->workers[0].device.efficiency);
    EXPECT_EQ(again->workers[0].device.efficiency_16bit,
              hardware->workers[0].device.efficiency_16bit);
    EXPECT_EQ(again->workers[0].device.codes, hardware->workers[0].device.codes);
    EXPECT_EQ(again->workers[0].price, hardware->workers[0].price);
    EXPECT_EQ(again->servers[0].storage.has_value(), hardware->servers[0].storage.has_value());
  }
  EXPECT_THAT(std::string(HardwareExample("nothing").status().message()), HasSubstr("h200_node"));
}

// Jobs in FP32 compute without TF32: a description with the rate of tensor cores would promise
// several times what they do.
TEST(Hardware, ExamplesGiveTheFp32Peak) {
  const auto device = [](const char* name) {
    return ParseHardware(*HardwareExample(name), name)->workers[0].device;
  };
  EXPECT_EQ(device("v100_16gb_512gb").peak_fp32, FlopsPerSecond(15.7e12));
  EXPECT_EQ(device("h200_node").peak_fp32, FlopsPerSecond(67e12));
  for (const std::string& name : HardwareExamples()) {
    const Hardware hardware = *ParseHardware(*HardwareExample(name), name);
    for (const WorkerKind& worker : hardware.workers) {
      EXPECT_LT(worker.device.peak_fp32, FlopsPerSecond(70e12)) << name << ": " << worker.name;
    }
  }
  EXPECT_THAT(ErrorOf(Replaced(kSmall, "peak_fp32: 10", "peak: 10")),
              HasSubstr("unknown key peak"));
}

TEST(Hardware, ReferencePageIsUpToDate) {
  std::ifstream file("docs/reference/hardware.md");
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_TRUE(page.str() == HardwareReference())
      << "regenerate it: bazel-bin/cli/eps plan --schema > docs/reference/hardware.md";
}

// Changes, removes and duplicates bytes: parsing succeeds or fails cleanly, and what is read can be
// written again.
TEST(Hardware, MutatedFilesNeverCrash) {
  std::mt19937 random(1);
  std::vector<std::string> seeds = {kSmall};
  for (const std::string& name : HardwareExamples()) seeds.push_back(*HardwareExample(name));
  const std::string letters = "{}[]:,-&*!|>'\"#%@` \n\t0129eEGBs/.~\x80\xff";
  int parsed = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string yaml = seeds[random() % seeds.size()];
    for (uint32_t edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % yaml.size();
      switch (random() % 4) {
        case 0:
          yaml[at] = letters[random() % letters.size()];
          break;
        case 1:
          yaml.erase(at, 1 + random() % 20);
          break;
        case 2:
          yaml.insert(at, 1, letters[random() % letters.size()]);
          break;
        default:
          yaml.insert(at, yaml.substr(random() % yaml.size(), random() % 30));
          break;
      }
      if (yaml.empty()) yaml = " ";
    }
    const auto hardware = ParseHardware(yaml, "mutated");
    if (!hardware.ok()) continue;
    ++parsed;
    EXPECT_TRUE(ParseHardware(HardwareToYaml(*hardware), "again").ok()) << yaml;
  }
  EXPECT_GT(parsed, 100) << "most mutations were refused: nothing was tested";
}

}  // namespace
}  // namespace eps::planner
