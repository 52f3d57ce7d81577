#include "planner/memory_plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "base/config/config.h"
#include "base/job/job_spec.h"
#include "base/job/keys.h"
#include "base/job/layout/chunk_map.h"
#include "base/numerics/reduction_tree.h"
#include "compression/codec_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/hardware.h"
#include "planner/plan.h"
#include "planner/testing/plans.h"
#include "planner/units.h"

namespace eps::planner {
namespace {

using ::testing::HasSubstr;

TEST(MemoryPlan, StateAndStashAreExact) {
  const Config config =
      ConfigWith({{"training.micro_batches", "4"}, {"training.clip", "none"}, {"servers", "1"}});
  const JobSpec spec = Gpt2Spec(config, 4, 256, 1);
  const Plan plan = *MakePlan(config, spec, Example("two_core_box"));
  EXPECT_EQ(plan.tiers[0].uses[0].kind, "state");
  EXPECT_EQ(plan.tiers[0].uses[0].bytes, Bytes(12.0 * static_cast<double>(spec.total_elements())));
  const TierUse& worker = plan.tiers[1];
  EXPECT_EQ(worker.uses[1].kind, "stash");
  EXPECT_EQ(worker.uses[1].bytes, Bytes(5.0 * 4 * 4 * 1024 * 256 * 4));
}

// FP32 weights on their way to the device, and the copies there.
TEST(MemoryPlan, Bf16HalvesTheStashAndAddsCopies) {
  const Config config =
      ConfigWith({{"training.micro_batches", "4"}, {"training.clip", "none"}, {"servers", "1"}});
  JobSpec spec = Gpt2Spec(config, 4, 256, 1);
  const Plan fp32 = *MakePlan(config, spec, Example("two_core_box"));
  spec.training.precision = Precision::kBf16;
  const Plan bf16 = *MakePlan(config, spec, Example("two_core_box"));
  EXPECT_EQ(bf16.tiers[1].uses[1].kind, "stash");
  EXPECT_EQ(2 * bf16.tiers[1].uses[1].bytes, fp32.tiers[1].uses[1].bytes);
  EXPECT_EQ(bf16.tiers[1].uses[2].kind, "weights");
  // Three sums of four micro-batches, of four bytes, for two copies of two bytes.
  EXPECT_EQ(3 * bf16.tiers[1].uses[2].bytes, bf16.tiers[1].uses[3].bytes);
}

// Adds up `leaves` gradients in the order in which a stage visits its micro-batches, and returns
// the most that are there at a time, the new one included.
double MostSums(uint32_t leaves, bool descending) {
  TreeAccumulator<int, std::plus<>> sum(leaves, std::plus<>());
  size_t most = 0;
  for (uint32_t i = 0; i < leaves; ++i) {
    most = std::max(most, sum.pending() + 1);
    sum.Insert({descending ? leaves - 1 - i : i, 1}, 1);
  }
  EXPECT_EQ(sum.Take(), static_cast<int>(leaves));
  return static_cast<double>(most);
}

TEST(MemoryPlan, GradientsArePartialSumsOfATree) {
  for (const uint32_t micro_batches : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 33}) {
    const Config config = ConfigWith({{"training.micro_batches", std::to_string(micro_batches)},
                                      {"training.clip", "none"},
                                      {"servers", "1"}});
    const JobSpec spec = Gpt2Spec(config, 2, 64, 1);
    const double most = std::max(MostSums(micro_batches, false), MostSums(micro_batches, true));
    const double largest = 4 * FindLargestStage(spec, ChunkMap::Build(spec),
                                                *CodecTable::Build(spec, ChunkMap::Build(spec)))
                                   .gradient;
    for (const char* name : {"two_core_box", "v100_16gb_512gb"}) {
      const Plan plan = *MakePlan(config, spec, Example(name));
      const double copied = plan.tiers.back().tier == Tier::kDevice ? 1 : 0;
      for (const MemoryUse& use : plan.tiers.back().uses) {
        if (use.kind != "gradients") continue;
        EXPECT_EQ(use.bytes, Bytes((most + copied) * largest)) << name << " " << micro_batches;
      }
    }
  }
}

// Returns the bytes of a kind on the servers of a machine with four workers.
Bytes OnServers(const std::string& kind, const std::string& transport, const std::string& limit) {
  const Config config = ConfigWith({{"training.clip", "none"},
                                    {"servers", "1"},
                                    {"worker.count", "4"},
                                    {"training.parts", "4"},
                                    {"worker.transport", transport},
                                    {"servers.shm_gradients", limit}});
  const Plan plan = *MakePlan(config, Gpt2Spec(config, 2, 64, 1), Example("two_core_box"));
  Bytes bytes;
  for (const MemoryUse& use : plan.tiers[0].uses) bytes += use.kind == kind ? use.bytes : Bytes();
  return bytes;
}

TEST(MemoryPlan, SegmentsOfSharedMemoryCount) {
  const Bytes waiting = OnServers("contribution", "grpc", "64MiB");
  EXPECT_EQ(OnServers("contribution", "auto", "8KiB"), waiting + Bytes(4 * 8192));
  // A segment is no larger than what the job can fill, in whole pages.
  const Bytes all = OnServers("contribution", "shm", "1TiB") - waiting;
  EXPECT_GE(all, 4 * waiting);
  EXPECT_LT(all, 4 * (waiting + Bytes(4096)));
  EXPECT_EQ(OnServers("contribution", "auto", "0"), waiting);
  EXPECT_EQ(OnServers("fetch", "auto", "64MiB") - OnServers("fetch", "grpc", "64MiB"),
            Bytes(4 * 65536));
}

TEST(MemoryPlan, RefusalsHaveFiguresAndKeys) {
  const Config config = ConfigWith({{"training.clip", "none"}});
  const JobSpec spec = Gpt2Spec(config, 48, 1600, 1);
  Hardware hardware = Example("two_core_box");
  hardware.servers[0].memory = Bytes(1e9);
  const Plan plan = *MakePlan(config, spec, hardware);
  const absl::Status status = CheckFits(plan.tiers);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("server memory of local"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("servers.addresses"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("are missing"));
}

TEST(MemoryPlan, MoreServersThanChunksAreRefused) {
  Config config = ConfigWith({{"training.clip", "none"}, {"servers", "250"}});
  const JobSpec spec = Gpt2Spec(config, 2, 64, 1);
  const auto plan = MakePlan(config, spec, Example("two_core_box"));
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("servers.addresses"));
}

TEST(MemoryPlan, OneMachineHasOneMemory) {
  const Config config = ConfigWith(
      {{"training.clip", "none"}, {"training.micro_batches", "16"}, {"worker.stash", "host"}});
  Hardware hardware = Example("h200_node");
  const JobSpec spec = Gpt2Spec(config, 40, 1600, 8);
  const Plan plan = *MakePlan(config, spec, hardware);
  const TierUse& servers = plan.tiers[0];
  const TierUse& workers = plan.tiers[1];
  EXPECT_EQ(workers.uses[1].bytes,
            8 * 40.0 * 16 * 4 * 1024 * 1600 * Bytes(4) + 8 * 16.0 * 4 * 1024 * 1600 * Bytes(4));
  EXPECT_EQ(servers.beside, workers.used());
  EXPECT_EQ(workers.beside, servers.used());
  hardware.servers[0].memory = hardware.workers[0].memory =
      servers.used() + workers.used() - Bytes(1);
  EXPECT_FALSE(CheckFits(MakePlan(config, spec, hardware)->tiers).ok());
}

// Returns the bytes of gradients on a device of a node.
Bytes GradientsOnDevice(const std::string& sum, const std::string& micro_batches) {
  const Config config = ConfigWith({{"training.clip", "none"},
                                    {"training.gradient_sum", sum},
                                    {"training.micro_batches", micro_batches}});
  const Plan plan = *MakePlan(config, Gpt2Spec(config, 40, 1600, 8), Example("h200_node"));
  for (const TierUse& of : plan.tiers) {
    for (const MemoryUse& use : of.uses) {
      if (of.tier == Tier::kDevice && use.kind == "gradients") return use.bytes;
    }
  }
  return Bytes(0);
}

TEST(MemoryPlan, OneSumTakesTwoGradients) {
  const Bytes one = GradientsOnDevice("tree", "1") / 2;  // one is on its way to the host
  EXPECT_GT(one, Bytes(0));
  EXPECT_EQ(GradientsOnDevice("tree", "16"), 6 * one);
  EXPECT_EQ(GradientsOnDevice("fused", "16"), 3 * one);
  EXPECT_EQ(GradientsOnDevice("fused", "1"), 2 * one);
}

TEST(MemoryPlan, AFileTakesWhatMemoryCannot) {
  const auto stash_of = [](const std::string& path, const std::string& room) {
    const Config config = ConfigWith({{"training.clip", "none"},
                                      {"training.micro_batches", "16"},
                                      {"worker.stash", "host"},
                                      {"worker.stash_path", path},
                                      {"worker.stash_host", room}});
    Hardware hardware = Example("h200_node");
    hardware.workers[0].memory = Bytes(64e9);  // shared by eight workers
    const Plan plan = *MakePlan(config, Gpt2Spec(config, 40, 1600, 8), hardware);
    for (const MemoryUse& use : plan.tiers[1].uses) {
      if (use.kind == "stash") return use.bytes;
    }
    return Bytes(0);
  };
  EXPECT_GT(stash_of("", "0"), Bytes(64e9));
  EXPECT_EQ(stash_of("/stash", "0"), Bytes(32e9));
  EXPECT_EQ(stash_of("/stash", "1000000000"), Bytes(8e9));
}

TEST(MemoryPlan, KeptPassesSaveTheTimeOfRecomputing) {
  const auto plan_of = [](const std::string& keep, const std::string& memory) {
    const Config config = ConfigWith({{"training.clip", "none"},
                                      {"training.micro_batches", "4"},
                                      {"worker.keep", keep},
                                      {"worker.device_memory", memory}});
    return *MakePlan(config, Gpt2Spec(config, 40, 1600, 8), Example("h200_node"));
  };
  const auto kept = [](const Plan& plan) {
    Bytes bytes;
    for (const TierUse& of : plan.tiers) {
      for (const MemoryUse& use : of.uses) bytes += use.kind == "kept" ? use.bytes : Bytes(0);
    }
    return bytes;
  };
  const Plan none = plan_of("none", "0"), some = plan_of("auto", "60GiB"),
             all = plan_of("auto", "0");
  EXPECT_EQ(kept(none), Bytes(0));
  EXPECT_GT(kept(some), Bytes(0));
  EXPECT_GT(kept(all), kept(some));
  EXPECT_TRUE(CheckFits(some.tiers).ok());
  EXPECT_TRUE(CheckFits(all.tiers).ok());
  const auto backward = [](const Plan& plan) {
    Flops sum;
    for (const StageWork& stage : plan.work.stages) sum += stage.backward;
    return sum;
  };
  EXPECT_LT(backward(some), backward(none));
  EXPECT_LT(backward(all), backward(some));
}

// Returns the bytes of the stash in a tier of a node, for each of its eight workers.
Bytes StashIn(Tier tier, const std::string& where, const std::string& device_memory) {
  const Config config = ConfigWith({{"training.clip", "none"},
                                    {"training.micro_batches", "16"},
                                    {"worker.stash", where},
                                    {"worker.device_memory", device_memory}});
  const Plan plan = *MakePlan(config, Gpt2Spec(config, 40, 1600, 8), Example("h200_node"));
  Bytes bytes;
  for (const TierUse& of : plan.tiers) {
    const double each = of.tier == Tier::kWorkerMemory ? 8 : 1;
    for (const MemoryUse& use : of.uses) {
      if (of.tier == tier && use.kind == "stash") bytes += use.bytes / each;
    }
  }
  return bytes;
}

TEST(MemoryPlan, TheDeviceHoldsTheStashFirst) {
  const Bytes all = StashIn(Tier::kWorkerMemory, "host", "0");
  EXPECT_EQ(StashIn(Tier::kDevice, "auto", "0"), all);
  EXPECT_EQ(StashIn(Tier::kWorkerMemory, "auto", "0"), Bytes(0));
  const Bytes some = StashIn(Tier::kDevice, "auto", "16GiB");
  EXPECT_GT(some, Bytes(1e9));
  EXPECT_LT(some, Bytes(16.0 * 1024 * 1024 * 1024));
  const Bytes rest = StashIn(Tier::kWorkerMemory, "auto", "16GiB");
  EXPECT_NEAR((some + rest) / all, 1, 1e-9);
}

TEST(MemoryPlan, ResidualsCountAtTheirHome) {
  for (const auto& [home, there] :
       {std::pair<const char*, bool>{"server", true}, {"worker", false}}) {
    const Config config = ConfigWith({{"training.clip", "none"},
                                      {"quantization.gradients", "topk:0.01"},
                                      {"quantization.residual_home", home}});
    const Plan plan = *MakePlan(config, Gpt2Spec(config, 4, 256, 1), Example("two_core_box"));
    bool found = false;
    for (const MemoryUse& use : plan.tiers[0].uses) found = found || use.kind == "residual";
    EXPECT_EQ(found, there) << home;
  }
}

}  // namespace
}  // namespace eps::planner
