// Steps of GPT-2 4.0B whose state lies on storage devices (Smart-Infinity, section 7): RAID0 with
// updates on the host, updates in devices as in the paper, and ours. Real devices in processes of
// their own, as slow as the paper's by rates; a GPU that sleeps. All variants make their steps in
// alternating rounds, and end with the state of a backend in memory.
//
// Usage: csd_bench [experiment] [rounds] [scale] [devices,...] [folder] [eps-csd]. Experiments:
//   a5000, a100  all variants with that GPU. The goals are those for the A5000.
//   optimizers   SGD with momentum, and AdaGrad, in the paper's forms (figure 12)
//   ratios       SU+O+C by ratio of compression (figure 16)
//   congested    GPUs that share the host link with the devices (section 8-A)
//   unpaced      one device and the NVMe backend, both as fast as this machine
// Exits with 1 if a goal is missed, with 2 after an error or if a state differs.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/job/optimizers.h"
#include "bench/near/near_flow.h"
#include "bench/near/near_variant.h"
#include "bench/near/near_world.h"
#include "bench/peers/timing.h"
#include "planner/papers/smart_infinity_model.h"

namespace eps {
namespace {

namespace smart = planner::smart_infinity;

constexpr int kChunks = 100;  // as many subgroups as the paper's 4.0B parameters have
constexpr NearRule kAdam{OptimizerName::kAdamW, smart::kAdam};

// Variants of one job, whose steps alternate. The first two are RAID0 with the paper's host and
// with the link alone, or NVMe backends.
struct Group {
  std::string title;  // empty for the usual job
  NearJob job;
  std::vector<NearVariant> variants;
};
// The order of AllVariants().
enum Variant : size_t { kBase, kLink, kNaive, kHandover, kTopk, kSealed, kEager };

std::vector<NearVariant> AllVariants(const NearRule& rule) {
  return {Raid0(rule, true), Raid0(rule, false), Naive(rule),     Handover(rule),
          TopK(rule, 0.02),  Ours(rule, false),  Ours(rule, true)};
}

std::vector<Group> OptimizerGroups(const NearJob& job) {
  std::vector<Group> groups;
  for (const NearRule& rule : {NearRule{OptimizerName::kSgdSmartInfinity, smart::kSgdMomentum, 0.9},
                               NearRule{OptimizerName::kAdagradSmartInfinity, smart::kAdaGrad}}) {
    groups.push_back({rule.paper.name, job, AllVariants(rule)});
  }
  return groups;
}

std::vector<Group> RatioGroups(const NearJob& job) {
  Group group{"ratios", job, {Raid0(kAdam, true), Raid0(kAdam, false), Handover(kAdam)}};
  for (const double c : {0.10, 0.05, 0.02, 0.01}) group.variants.push_back(TopK(kAdam, c));
  return {group};
}

std::vector<Group> CongestedGroups(NearJob job) {
  std::vector<Group> groups;
  for (const int gpus : {1, 3}) {
    // Tensor parallelism: each computes its part. Its messages are not modelled.
    NearJob shared = job;
    shared.gpu.forward = job.gpu.forward / gpus;
    shared.gpu.backward = job.gpu.backward / gpus;
    for (const bool share : {false, true}) {
      shared.gpus_share_link = share;
      groups.push_back({absl::StrCat(gpus, gpus == 1 ? " GPU, " : " GPUs, ",
                                     share ? "sharing the host link" : "with links of their own"),
                        shared, AllVariants(kAdam)});
    }
  }
  return groups;
}

// Returns the seconds of the paper, as planner/papers has them; 0 if it has no such variant.
double PaperSeconds(const NearVariant& variant, const NearJob& job) {
  if (!variant.paper.has_value() || job.gpus_share_link) return 0;
  smart::Method method;
  method.variant = *variant.paper;
  method.optimizer = variant.rule.paper;
  method.c = variant.gradient_bytes / 4;
  return smart::Simulate(job.machine, job.gpu, method, job.full_parameters, job.devices)
      .total()
      .value();
}

// The seconds of each variant's steps with one number of devices.
class Row {
 public:
  Row(const Group& group, int chunks, const std::string& folder, const std::string& program)
      : job_(group.job), chunks_(chunks), variants_(group.variants) {
    for (const NearVariant& variant : variants_) {
      const std::string own = absl::StrCat(folder, "/", worlds_.size());
      std::filesystem::create_directories(own);
      worlds_.push_back(std::make_unique<NearWorld>(variant, job_, chunks, own, program));
    }
    seconds_.resize(variants_.size());
    updates_.resize(variants_.size());
    busy_.resize(variants_.size());
  }

  void Measure(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < worlds_.size(); ++i) {
        const NearStep step = worlds_[i]->Step();
        seconds_[i].push_back(step.total());
        updates_[i].push_back(step.update);
        busy_[i].push_back(step.busiest / step.update);
      }
    }
  }

  void Print() const {
    for (size_t i = 0; i < variants_.size(); ++i) {
      const Spread spread = SpreadOf(seconds_[i]);
      const double flows = SimulateNear(variants_[i], job_, chunks_).total();
      const double paper = PaperSeconds(variants_[i], job_);
      std::printf("%2d  %-20s %5.1f [%5.1f..%5.1f] %6.1f %6.1f %5.2f  %5s %5.2f %5.2f\n",
                  job_.devices, variants_[i].name.c_str(), spread.median, spread.low, spread.high,
                  SpreadOf(updates_[i]).median, flows, spread.median / flows,
                  paper > 0 ? absl::StrFormat("%.1f", paper).c_str() : "-", Gain(kBase, i).median,
                  Gain(kLink, i).median);
    }
    std::fflush(stdout);
  }

  // Prints the seconds alone, as those of this machine.
  void PrintPlain() const {
    for (size_t i = 0; i < variants_.size(); ++i) {
      const Spread spread = SpreadOf(seconds_[i]);
      std::printf("%-14s %6.2f s of a step of 4.0B [%.2f..%.2f]\n", variants_[i].name.c_str(),
                  spread.median, spread.low, spread.high);
    }
  }

  // Returns how much faster variant i is than variant `over`, per round.
  std::vector<double> Gains(size_t over, size_t i) const {
    std::vector<double> gains;
    for (size_t round = 0; round < seconds_[i].size(); ++round) {
      gains.push_back(seconds_[over][round] / seconds_[i][round]);
    }
    return gains;
  }

  const std::vector<double>& update(size_t i) const { return updates_[i]; }
  // Returns for which part of an update the busiest medium or link carried bytes, per round.
  const std::vector<double>& busy(size_t i) const { return busy_[i]; }
  NearWorld* world(size_t i) const { return worlds_[i].get(); }

  // Exits with 2 if a state is not that of memory.
  void CheckStates(int steps) const {
    std::map<std::string, std::string> digests;
    for (size_t i = 0; i < worlds_.size(); ++i) {
      std::string& digest = digests[variants_[i].gradients];
      if (digest.empty()) digest = NearWorld::DigestOfMemory(variants_[i], chunks_, steps);
      if (worlds_[i]->Digest() == digest) continue;
      std::printf("%s: the state differs from that of memory\n", variants_[i].name.c_str());
      std::exit(2);
    }
  }

 private:
  Spread Gain(size_t over, size_t i) const { return SpreadOf(Gains(over, i)); }

  const NearJob job_;
  const int chunks_;
  const std::vector<NearVariant> variants_;
  std::vector<std::unique_ptr<NearWorld>> worlds_;
  std::vector<std::vector<double>> seconds_;  // by variant and round
  std::vector<std::vector<double>> updates_;
  std::vector<std::vector<double>> busy_;
};

// Returns eps-csd as bazel has built it: `bazel run` starts in the folder of its outputs.
std::string DeviceProgram() {
  const std::string program = "storage/csd/process/eps-csd";
  return std::filesystem::exists(program) ? program : "bazel-bin/" + program;
}

// The folder of the media, and what runs the devices.
struct Where {
  std::string folder;
  std::string program;
};

void Empty(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::filesystem::remove_all(entry);
  }
}

// Judges the variants of AllVariants() with that number of devices.
bool Judge(const Row& row, int devices) {
  bool reached = true;
  const auto judge = [&](const char* over, size_t base, const char* name, size_t ours,
                         double goal) {
    reached &= ReportRatio(absl::StrCat(devices, " devices, RAID0 with ", over, " / ours, ", name),
                           row.Gains(base, ours), goal);
  };
  if (devices == 10) {
    judge("the paper's host", kBase, "sealed", kSealed, 2.2);
    judge("the paper's host", kBase, "eager", kEager, 3.5);
    judge("the link alone", kLink, "sealed", kSealed, 1.0);
    reached &= ReportRatio("10 devices, use of the busiest link while ours, sealed, updates",
                           row.busy(kSealed), 0.9);
  }
  if (devices == 20) judge("the link alone", kLink, "sealed", kSealed, 1.2);
  return reached;
}

bool RunPaced(const std::string& experiment, std::vector<Group> groups, int rounds,
              const std::vector<int>& devices, const Where& where) {
  const NearJob& first = groups.front().job;
  std::printf(
      "%s; %s, %d rounds, %d chunks, rates divided by %g\n"
      "n: devices. s: median of a step of 4.0B with its extremes. update: after backward.\n"
      "flows: s of the simulation. /: s over those. paper: s of the paper, as planner/papers has\n"
      "it. gains: over RAID0 with the paper's host, and with the link alone.\n"
      " n  variant                  s                  update  flows     /  paper  gains\n",
      MachineName().c_str(), experiment.c_str(), rounds, kChunks, first.scale);
  bool reached = true;
  for (Group& group : groups) {
    if (groups.size() > 1) std::printf("%s:\n", group.title.c_str());
    for (const int count : devices) {
      group.job.devices = count;
      Row row(group, kChunks, where.folder, where.program);
      row.Measure(rounds);
      row.Print();
      row.CheckStates(rounds);
      if (experiment == smart::kA5000.name) reached &= Judge(row, count);
      Empty(where.folder);
    }
  }
  return reached;
}

// Compares a device that is as fast as this machine with the NVMe backend on the same disk, and its
// update with the reads and writes alone.
bool RunUnpaced(NearJob job, int rounds, const Where& where) {
  constexpr int kManyChunks = 4 * kChunks;
  job.paced = false;
  job.scale = 1;
  Group group{"", job, {}};
  for (const bool eager : {false, true}) {
    NearVariant disk = Ours(kAdam, eager);
    disk.name = eager ? "NVMe, eager" : "NVMe, sealed";
    disk.has_devices = false;
    group.variants.push_back(disk);
    group.variants.push_back(Ours(kAdam, eager));
  }
  Row row(group, kManyChunks, where.folder, where.program);
  std::vector<double> moving;  // over the time of the update
  for (int round = 0; round < rounds; ++round) {
    row.Measure(1);
    moving.push_back(row.world(1)->MoveStates() / row.update(1).back());
  }
  std::printf("%s; unpaced, %d rounds, %d chunks\n", MachineName().c_str(), rounds, kManyChunks);
  row.PrintPlain();
  row.CheckStates(rounds);
  bool reached = ReportRatio("time of the NVMe backend / one device, sealed", row.Gains(0, 1), 0.9);
  reached &= ReportRatio("time of the NVMe backend / one device, eager", row.Gains(2, 3), 0.9);
  return ReportRatio("reads and writes alone / update of one device, sealed", moving, 0.9) &&
         reached;
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) {
  namespace smart = eps::planner::smart_infinity;
  const auto argument = [&](int i, const char* usual) { return argc > i ? argv[i] : usual; };
  const std::string experiment = argument(1, "a5000");
  eps::NearJob job;
  const int rounds = std::atoi(argument(2, "3"));
  job.scale = std::atof(argument(3, "64"));
  std::vector<int> devices;
  for (const auto text : absl::StrSplit(argument(4, "1,4,10"), ',')) {
    if (!absl::SimpleAtoi(text, &devices.emplace_back())) return 2;
  }
  eps::Where where{absl::StrCat(argument(5, "/tmp"), "/csd_bench-XXXXXX"),
                   argc > 6 ? argv[6] : eps::DeviceProgram()};
  if (mkdtemp(where.folder.data()) == nullptr) {
    std::perror(where.folder.c_str());
    return 2;
  }
  const auto paced = [&](const std::string& name, std::vector<eps::Group> groups) {
    return eps::RunPaced(name, std::move(groups), rounds, devices, where);
  };
  const auto with_gpu = [&](const smart::Gpu& gpu) {
    job.gpu = gpu;
    return paced(gpu.name, {{"", job, eps::AllVariants(eps::kAdam)}});
  };
  std::optional<bool> reached;
  if (experiment == "a5000") reached = with_gpu(smart::kA5000);
  if (experiment == "a100") reached = with_gpu(smart::kA100);
  if (experiment == "optimizers") reached = paced(experiment, eps::OptimizerGroups(job));
  if (experiment == "ratios") reached = paced(experiment, eps::RatioGroups(job));
  if (experiment == "congested") reached = paced(experiment, eps::CongestedGroups(job));
  if (experiment == "unpaced") reached = eps::RunUnpaced(job, rounds, where);
  std::filesystem::remove_all(where.folder);
  if (!reached.has_value()) {
    std::fprintf(stderr, "csd_bench: no experiment %s\n", experiment.c_str());
    return 2;
  }
  return *reached ? 0 : 1;
}
