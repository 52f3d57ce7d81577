#include "planner/plan.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/config/config.h"
#include "base/config/spec_builder.h"
#include "base/job/cut_interval.h"
#include "base/job/job_spec.h"
#include "base/job/keys.h"
#include "base/testing/test_specs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "planner/hardware.h"
#include "planner/memory_plan.h"
#include "planner/plan_report.h"
#include "planner/step_model.h"
#include "planner/testing/plans.h"
#include "planner/units.h"
#include "planner/walls.h"
#include "planner/workload.h"

namespace eps::planner {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(Workload, CountsEveryPassAndPart) {
  const JobSpec spec = TinyGpt2Spec();
  const Workload work = *WorkloadOf(spec);
  ASSERT_EQ(work.stages.size(), 4u);
  EXPECT_EQ(work.parameters, spec.total_elements());
  EXPECT_EQ(work.state_per_parameter, Bytes(12));
  // FP32 weights: blocks fetch them twice.
  const StageWork& block = work.stages[1];
  EXPECT_EQ(block.fetch_forward, Bytes(4.0 * static_cast<double>(block.elements)));
  EXPECT_EQ(block.fetch_backward, block.fetch_forward);
  EXPECT_EQ(block.push, block.fetch_forward);
  EXPECT_EQ(work.stages[0].fetch_backward, Bytes(0)) << "a lookup's gradient needs no weights";
  EXPECT_EQ(work.stages[3].fetch_backward, Bytes(0));
  EXPECT_EQ(block.backward, 3.0 * block.forward);
  EXPECT_EQ(work.stages[3].backward, 2.0 * work.stages[3].forward);
  EXPECT_EQ(work.stages[0].stash, Bytes(0));
  const TrainingSpec& t = spec.training;
  EXPECT_EQ(block.stash, Bytes(4.0 * 64 * t.seq_len * t.micro_batch_size * t.micro_batches));
}

TEST(StepModel, FreeTransfersLeaveOnlyTheCompute) {
  const Config config = ConfigWith({{"training.clip", "none"}});
  const Workload work = *WorkloadOf(Gpt2Spec(config, 4, 256, 1));
  Hardware hardware = Example("h200_node");
  WorkerKind& worker = hardware.workers[0];
  ServerKind& server = hardware.servers[0];
  for (BytesPerSecond* rate :
       {&worker.receive, &worker.send, &worker.encode, &worker.decode, &worker.device.to_device,
        &worker.device.from_device, &server.encode, &server.update, &server.memory_bandwidth,
        &server.send, &server.receive}) {
    *rate = kNoLimit;
  }
  worker.latency = Seconds(0);
  worker.device.stage_overhead = Seconds(0);
  Flops flops;
  for (const StageWork& stage : work.stages) flops += stage.forward + stage.backward;
  const StepEstimate estimate = EstimateStep(work, hardware, RunShape());
  EXPECT_NEAR(estimate.times.duration.value(),
              (flops / (worker.device.efficiency * worker.device.peak_fp32)).value(),
              1e-9 * estimate.times.duration.value());
  EXPECT_EQ(estimate.times.bottleneck(), Resource::kWorkerCompute);
}

// A job computes at the rate of its type, and MFU is relative to the peak of that type.
TEST(StepModel, RatesFollowThePrecision) {
  const Config config = ConfigWith({{"training.clip", "none"}, {"training.micro_batches", "64"}});
  JobSpec spec = Gpt2Spec(config, 8, 1024, 1);
  Hardware hardware = Example("h100_host");
  Device& device = hardware.workers[0].device;
  device.stage_overhead = Seconds(0);
  const auto plan = [&](Precision precision) {
    spec.training.precision = precision;
    return *MakePlan(config, spec, hardware);
  };
  const auto computing = [](const Plan& plan) {
    return plan.estimate.times.busiest_of(Resource::kWorkerCompute);
  };
  const Plan fp32 = plan(Precision::kFp32);
  const Plan bf16 = plan(Precision::kBf16);
  EXPECT_NEAR(computing(fp32) / computing(bf16), 989 * 0.6 / (67 * 0.8), 1e-9);
  EXPECT_NEAR(bf16.mfu / fp32.mfu, fp32.step() / bf16.step() * 67 / 989, 1e-9);
  EXPECT_LT(bf16.mfu, 0.6);
  device.peak_fp16 = FlopsPerSecond(500e12);
  device.efficiency_16bit.reset();
  EXPECT_NEAR(computing(bf16) / computing(plan(Precision::kCmp)), 500 * 0.8 / (989 * 0.6), 1e-9);
  device.peak_bf16 = FlopsPerSecond(0);  // unknown
  EXPECT_EQ(computing(plan(Precision::kBf16)), computing(fp32));
}

TEST(StepModel, ASlowLinkBoundsTheStep) {
  const Config config = ConfigWith({{"training.clip", "none"}});
  const Workload work = *WorkloadOf(Gpt2Spec(config, 8, 256, 1));
  Hardware hardware = Example("h200_node");
  hardware.workers[0].receive = BytesPerSecond(1e6);
  const StepEstimate estimate = EstimateStep(work, hardware, RunShape());
  const Seconds transfer = work.fetched_by_worker() / BytesPerSecond(1e6);
  EXPECT_EQ(estimate.times.bottleneck(), Resource::kWorkerReceive);
  EXPECT_GE(estimate.times.duration, transfer);
  EXPECT_LT(estimate.times.duration, 1.1 * transfer);
}

// The hardware values that may be scaled up without making anything worse.
std::vector<std::function<void(Hardware*, double)>> Improvements() {
  std::vector<std::function<void(Hardware*, double)>> improvements;
  const auto worker = [&](auto member) {
    improvements.push_back([member](Hardware* h, double factor) {
      for (WorkerKind& w : h->workers) w.*member = factor * (w.*member);
    });
  };
  const auto device = [&](auto member) {
    improvements.push_back([member](Hardware* h, double factor) {
      for (WorkerKind& w : h->workers) w.device.*member = factor * (w.device.*member);
    });
  };
  const auto server = [&](auto member) {
    improvements.push_back([member](Hardware* h, double factor) {
      for (ServerKind& s : h->servers) s.*member = factor * (s.*member);
    });
  };
  worker(&WorkerKind::receive);
  worker(&WorkerKind::send);
  worker(&WorkerKind::encode);
  worker(&WorkerKind::decode);
  worker(&WorkerKind::transport);
  improvements.push_back([](Hardware* h, double factor) {
    for (WorkerKind& w : h->workers) w.chunk_overhead = w.chunk_overhead / factor;
    for (ServerKind& s : h->servers) s.chunk_overhead = s.chunk_overhead / factor;
  });
  device(&Device::peak_fp32);
  device(&Device::peak_bf16);
  device(&Device::to_device);
  device(&Device::from_device);
  device(&Device::activations);
  server(&ServerKind::memory_bandwidth);
  server(&ServerKind::receive);
  server(&ServerKind::send);
  server(&ServerKind::encode);
  server(&ServerKind::update);
  server(&ServerKind::transport);
  const auto disk = [&](auto member) {
    improvements.push_back([member](Hardware* h, double factor) {
      for (ServerKind& s : h->servers) {
        if (s.storage.has_value()) (*s.storage).*member = factor * ((*s.storage).*member);
      }
    });
  };
  disk(&StorageDevices::read);
  disk(&StorageDevices::write);
  return improvements;
}

struct World {
  Config config;
  Hardware hardware;
  JobSpec spec;
};

World RandomWorld(std::mt19937* random) {
  const auto pick = [&](auto... choices) {
    const std::vector<std::string> all = {choices...};
    return all[(*random)() % all.size()];
  };
  World world;
  world.config = ConfigWith({
      {"training.micro_batches", pick("1", "4", "16")},
      {"training.clip", pick("none", "exact")},
      {"quantization.weights", pick("fp32", "bf16", "mx6")},
      {"quantization.gradients", pick("fp32", "bf16", "topk:0.01")},
      {"worker.prefetch", pick("0", "1", "2")},
      {"worker.stash", pick("host", "device")},
      {"servers.threads", pick("1", "8")},
      {"storage.kind", pick("dram", "nvme")},
      {"storage.path", pick("", "state")},
      {"storage.log", pick("none", "contributions")},
      {"storage.cut_steps", pick("1", "7")},
  });
  const std::vector<std::string> names = HardwareExamples();
  world.hardware = Example(names[(*random)() % names.size()]);
  const auto scale = [&](auto* value) {
    *value = (0.05 + static_cast<double>((*random)() % 1000) / 100) * *value;
  };
  for (WorkerKind& w : world.hardware.workers) {
    scale(&w.receive);
    scale(&w.send);
    scale(&w.device.peak_fp32);
    w.device.activations = BytesPerSecond(1e9);
    w.transport = BytesPerSecond(1e9);
    w.chunk_overhead = Seconds(1e-4);
    scale(&w.device.activations);
    scale(&w.transport);
  }
  for (ServerKind& s : world.hardware.servers) {
    scale(&s.update);
    scale(&s.encode);
    scale(&s.memory_bandwidth);
    s.transport = BytesPerSecond(1e9);
    s.chunk_overhead = Seconds(1e-4);
    scale(&s.transport);
  }
  if (!world.hardware.has_storage()) world.config.storage = StorageConfig();
  const int layers = 2 + static_cast<int>((*random)() % 6);
  world.spec = Gpt2Spec(world.config, layers, 128, ShapeOf(world.config, world.hardware).workers);
  if ((*random)() % 2 == 0) world.spec.training.precision = Precision::kBf16;
  return world;
}

TEST(StepModel, BetterHardwareIsNeverSlower) {
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const World world = RandomWorld(&random);
    const Workload work = *WorkloadOf(world.spec);
    const RunShape shape = ShapeOf(world.config, world.hardware);
    const StepEstimate estimate = EstimateStep(work, world.hardware, shape);
    for (const Resource resource : estimate.times.by_use()) {
      EXPECT_LE(estimate.times.busiest_of(resource).value(),
                estimate.times.duration.value() * (1 + 1e-9))
          << i << ": a step is shorter than its " << ResourceName(resource);
    }
    for (const auto& improve : Improvements()) {
      Hardware better = world.hardware;
      improve(&better, 3);
      EXPECT_LE(EstimateStep(work, better, shape).times.duration.value(),
                estimate.times.duration.value() * (1 + 1e-9))
          << i << ", improvement " << (&improve - &Improvements()[0]);
    }
  }
}

// A model of L2L's Table 5 (78 layers of width 4256) on the paper's machine.
JobSpec L2lSpec(const Config& config) {
  ModelSpec model;
  model.gpt2.n_layer = 78;
  model.gpt2.n_embd = 4256;
  model.gpt2.n_head = 32;
  model.gpt2.n_positions = 1024;
  model.gpt2.vocab_size = 30522;
  return *BuildJobSpec(config, model, SomeData(), 1);
}

// 17e9 parameters: 204 GB of FP32 state fit into 512 GB, which hold 42.7e9 parameters of 12 bytes
// (512 / 12). 50e9 (600 GB) would fit only with narrower moments.
TEST(Plan, L2lMachineHoldsSeventeenBillion) {
  const Config config = ConfigWith(
      {{"training.clip", "none"}, {"training.micro_batch_size", "1"}, {"training.seq_len", "64"}});
  const Plan plan = *MakePlan(config, L2lSpec(config), Example("v100_16gb_512gb"));
  EXPECT_NEAR(static_cast<double>(plan.work.parameters), 17e9, 0.2e9);
  EXPECT_TRUE(CheckFits(plan.tiers).ok()) << CheckFits(plan.tiers);
  EXPECT_NEAR(plan.capacities[0].parameters, 42.7e9, 1e9);
  EXPECT_TRUE(plan.capacities[0].built);
  EXPECT_FALSE(plan.capacities[1].built);
}

// The largest model that a plan promises, the same model made deeper, must fit when it is planned
// itself.
TEST(Plan, OnlyModelsUpToTheLargestFit) {
  for (const char* clip : {"none", "exact"}) {
    const Config config = ConfigWith({{"training.clip", clip}, {"training.micro_batches", "4"}});
    const Hardware hardware = Example("v100_16gb_512gb");
    const Plan small = *MakePlan(config, Gpt2Spec(config, 8, 2048, 1), hardware);
    const Plan deeper = *MakePlan(config, Gpt2Spec(config, 16, 2048, 1), hardware);
    const double per_layer =
        static_cast<double>(deeper.work.parameters - small.work.parameters) / 8;
    const double most = small.capacities[0].parameters;
    const int layers =
        8 + static_cast<int>((most - static_cast<double>(small.work.parameters)) / per_layer);
    EXPECT_TRUE(
        CheckFits(MakePlan(config, Gpt2Spec(config, layers * 97 / 100, 2048, 1), hardware)->tiers)
            .ok())
        << clip << ", " << layers;
    EXPECT_FALSE(
        CheckFits(MakePlan(config, Gpt2Spec(config, layers * 103 / 100, 2048, 1), hardware)->tiers)
            .ok())
        << clip << ", " << layers;
  }
}

// The stash of eight devices on one host shares the memory that holds the state.
TEST(Plan, RecomputationLimitsMfu) {
  std::mt19937 random(2);
  for (int i = 0; i < 50; ++i) {
    const World world = RandomWorld(&random);
    const auto plan = MakePlan(world.config, world.spec, world.hardware);
    if (!plan.ok()) continue;  // more servers than chunks
    EXPECT_LE(plan->mfu, 0.76) << i;
    EXPECT_GT(plan->mfu, 0) << i;
  }
}

// A model whose state occupies the disks of a two-core box for a known time.
Plan DurablePlan(const std::vector<std::pair<std::string, std::string>>& settings) {
  std::vector<std::pair<std::string, std::string>> all = {{"training.clip", "none"}};
  all.insert(all.end(), settings.begin(), settings.end());
  const Config config = ConfigWith(all);
  return *MakePlan(config, Gpt2Spec(config, 4, 256, 1), Example("two_core_box"));
}

TEST(Plan, CutsOccupyTheDisksProportionally) {
  const Plan bare = DurablePlan({});
  EXPECT_FALSE(bare.written_per_day.has_value());
  const Plan often = DurablePlan({{"storage.path", "state"}, {"storage.cut_steps", "4"}});
  Bytes state;
  for (const StageWork& stage : bare.work.stages) {
    state += 12.0 * Bytes(static_cast<double>(stage.elements));
  }
  const Seconds written = state / BytesPerSecond(2.5e9);
  EXPECT_NEAR(often.estimate.times.busiest_of(Resource::kServerDisks).value(), written.value() / 4,
              0.03 * written.value())
      << "shared tensors are in two stages";
  EXPECT_GE(often.step(), bare.step());
  EXPECT_LE(often.step(), bare.step() + written / 4.0);
  EXPECT_NEAR(often.written_per_day->value() * often.step().value() / 86400,
              12.0 * static_cast<double>(bare.work.parameters) / 4, 1);
  // A long step hides the cut; `auto` spaces cuts as AutoCutSteps does.
  const Plan rare = DurablePlan({{"storage.path", "state"}});
  EXPECT_EQ(rare.estimate.held, Seconds(0));
  EXPECT_EQ(rare.step(), bare.step());
  Seconds cut;
  for (const StageTimes& stage : rare.estimate.stages) cut += stage.cut;
  EXPECT_EQ(rare.estimate.cut_steps, AutoCutSteps(cut.value(), bare.step().value()));
}

TEST(Plan, TheLogOccupiesTheDisks) {
  const Plan logged = DurablePlan({{"storage.path", "state"},
                                   {"storage.cut_steps", "0"},
                                   {"storage.cut_seconds", "0"},
                                   {"storage.log", "contributions"}});
  EXPECT_EQ(logged.estimate.cut_steps, 0u);
  EXPECT_NEAR(logged.estimate.times.busiest_of(Resource::kServerDisks).value(),
              logged.pushed.value() / 2.5e9, 1e-9);
  EXPECT_NEAR(logged.written_per_day->value() * logged.step().value() / 86400,
              logged.pushed.value(), 1);
}

// Per parameter on n devices: the updater reads 16 B and writes 12 B, after the gradient's 4 B are
// written; the host reads 4 B for each of two fetches (Smart-Infinity, Table I).
TEST(Plan, PredictsUpdatesInsideTheStorage) {
  const Config config = ConfigWith({{"training.clip", "none"}, {"storage.kind", "nvme"}});
  Hardware hardware = Example("a5000_smartssd_6");
  hardware.servers[0].storage->write = BytesPerSecond(1e7);  // only writes take time
  hardware.servers[0].storage->read = BytesPerSecond(1e13);
  const Plan plan = *MakePlan(config, Gpt2Spec(config, 4, 256, 1), hardware);
  double elements = 0;
  for (const StageWork& stage : plan.work.stages) elements += static_cast<double>(stage.elements);
  EXPECT_NEAR(plan.step().value(), 12 * elements / 6e7, 0.02 * plan.step().value());
  EXPECT_NEAR(plan.step_in_storage->value(), 16 * elements / 6e7, 0.02 * plan.step().value());
  // A slow link slows the host's reads and writes, but of the devices only what the host sends
  // them.
  hardware.servers[0].storage->write = BytesPerSecond(1e13);
  hardware.servers[0].storage->link = BytesPerSecond(1e7);
  const Plan linked = *MakePlan(config, Gpt2Spec(config, 4, 256, 1), hardware);
  EXPECT_NEAR(linked.estimate.stages[1].disk.value() /
                  (24 * static_cast<double>(linked.work.stages[1].elements) / 1e7),
              1, 1e-3);
  EXPECT_LT(*linked.step_in_storage, linked.step());
  const Config inside = ConfigWith({{"training.clip", "none"}, {"storage.kind", "csd"}});
  const Plan planned = *MakePlan(inside, Gpt2Spec(inside, 4, 256, 1), hardware);
  EXPECT_EQ(planned.step(), *linked.step_in_storage);
  EXPECT_FALSE(planned.step_in_storage.has_value());
  hardware.servers[0].storage->kind = StorageDeviceKind::kNvme;
  EXPECT_FALSE(MakePlan(config, Gpt2Spec(config, 4, 256, 1), hardware)->step_in_storage);
}

TEST(Plan, EmulatedDevicesTakeMemory) {
  const auto planned = [](const std::string& kind, const std::string& devices) {
    const Config config = ConfigWith(
        {{"storage.kind", kind}, {"storage.csd.devices", devices}, {"storage.csd.dram", "64MiB"}});
    return *MakePlan(config, Gpt2Spec(config, 4, 256, 1), Example("a5000_smartssd_6"));
  };
  const auto state = [](const Plan& plan) {
    Bytes sum;
    for (const MemoryUse& use : plan.tiers.front().uses) {
      if (use.kind == "state") sum += use.bytes;
    }
    return sum;
  };
  EXPECT_EQ(state(planned("nvme", "4")), Bytes(0));
  EXPECT_EQ(state(planned("csd", "0")), Bytes(64 << 20));
  EXPECT_EQ(state(planned("csd", "4")), Bytes(256 << 20));
}

TEST(PlanReport, TextJsonAndPageAgree) {
  const Config config = ConfigWith({{"training.clip", "none"}, {"storage.kind", "nvme"}});
  const JobSpec spec = Gpt2Spec(config, 12, 768, 8);
  const Plan plan = *MakePlan(config, spec, Example("h200_node"));
  const std::string bottleneck = ResourceName(plan.bottleneck());
  const std::string text = PlanToText(plan);
  EXPECT_THAT(text, HasSubstr("bottleneck: " + bottleneck));
  EXPECT_THAT(text, HasSubstr("h.0 and 11 more alike"));
  EXPECT_THAT(text, HasSubstr("; endurance is reached after"));
  EXPECT_THAT(text, HasSubstr("cost: $"));
  const auto json = nlohmann::json::parse(PlanToJson(plan));
  EXPECT_EQ(json["step"]["seconds"].get<double>(), plan.step().value());
  EXPECT_EQ(json["memory"][0]["uses"].size(), plan.tiers[0].uses.size());
  EXPECT_EQ(json["stages"].size(), 14u);
  EXPECT_EQ(json["resources"][0]["name"], bottleneck);
  EXPECT_THAT(text, HasSubstr("walls, by the tokens of a step"));
  const PassWalls& forward = plan.walls->forward;
  EXPECT_EQ(json["walls"]["forward"]["seconds"], forward.bound.value());
  EXPECT_EQ(json["walls"]["forward"]["ranges"].size(), forward.ranges.size());
  EXPECT_EQ(json["walls"]["forward"]["ranges"].back()["to_tokens"], nullptr);
  const std::string page = PlanToPage(plan);
  EXPECT_THAT(page, HasSubstr("<svg"));
  EXPECT_THAT(page, HasSubstr(bottleneck));
  EXPECT_EQ(page.find("http"), std::string::npos) << "the page needs the network";
}

TEST(PlanReport, WallsNameResourcesAndTokens) {
  const Config config = ConfigWith({{"training.clip", "none"},
                                    {"quantization.weights", "bf16"},
                                    {"quantization.gradients", "bf16"},
                                    {"training.micro_batch_size", "1"}});
  const JobSpec spec = Gpt2Spec(config, 12, 768, 8);
  const Plan plan = *MakePlan(config, spec, Example("h200_node"));
  EXPECT_GE(plan.step(), plan.walls->backward.bound);
  EXPECT_THAT(PlanToText(plan), ContainsRegex("backward +[0-9.]+ .s  [a-z ]+ below [0-9.]+ K, "
                                              "worker compute above"));
  // All work of shared cores adds up.
  const Plan shared = *MakePlan(config, Gpt2Spec(config, 2, 128, 1), Example("two_core_box"));
  EXPECT_FALSE(shared.walls.has_value());
  EXPECT_EQ(PlanToText(shared).find("walls"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(PlanToJson(shared))["walls"], nullptr);
}

TEST(PlanReport, NamesAreEscapedInThePage) {
  Hardware hardware = Example("h200_node");
  hardware.name = "<script>\"&";
  const Config config = ConfigWith({{"training.clip", "none"}});
  const Plan plan = *MakePlan(config, Gpt2Spec(config, 2, 128, 8), hardware);
  const std::string page = PlanToPage(plan);
  EXPECT_EQ(page.find("<script>"), std::string::npos);
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;&quot;&amp;"));
}

}  // namespace
}  // namespace eps::planner
