// Steps of GPT-2 4.0B whose state lies on storage devices (Smart-Infinity, section 7): RAID0 with
// updates on the host, updates in devices as in the paper, and ours. Real devices in processes of
// their own, as slow as the paper's by rates; a GPU that sleeps. All variants make their steps in
// alternating rounds, and end with the state of a backend in memory.
//
// Usage: csd_bench [a5000|a100] [rounds] [scale] [devices,…] [folder] [eps-csd]. The goals are
// those for the A5000. Exits with 1 if one is missed, with 2 after an error or if a state differs.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "bench/near/near_flow.h"
#include "bench/near/near_variant.h"
#include "bench/near/near_world.h"
#include "bench/peers/timing.h"
#include "planner/papers/smart_infinity_model.h"

namespace eps {
namespace {

namespace smart = planner::smart_infinity;

constexpr int kChunks = 100;  // as many subgroups as the paper's 4.0B parameters have
constexpr int kSets = 3;
constexpr int kHostChunks = 2;  // per device, in flight on a host that updates

// The variants in the order of Variants().
enum Variant : size_t { kBase, kLink, kNaive, kHandover, kTopk, kSealed, kEager };

std::vector<NearVariant> Variants() {
  std::vector<NearVariant> all(kEager + 1);
  all[kBase].name = "RAID0, paper's host";
  all[kBase].host_updates = all[kBase].host_is_papers = true;
  all[kBase].sets = kHostChunks;
  all[kLink] = all[kBase];
  all[kLink].name = "RAID0, link alone";
  all[kLink].host_is_papers = false;
  all[kNaive].name = "SU";
  all[kNaive].host_is_papers = true;
  all[kHandover] = all[kNaive];
  all[kHandover].name = "SU+O";
  all[kHandover].hands_buffers_over = true;
  // Smart-Infinity sends 8 bytes for each of 1 % of the elements; bf16 values take 6.
  all[kTopk] = all[kHandover];
  all[kTopk].name = "SU+O+C, top 1 %";
  all[kTopk].gradients = "topk:0.01:raw32";
  all[kTopk].gradient_bytes = 0.06;
  all[kSealed].name = "ours, sealed";
  all[kSealed].sets = kSets;
  all[kSealed].gradients_in_memory = all[kSealed].encodes_weights = true;
  all[kEager] = all[kSealed];
  all[kEager].name = "ours, eager";
  all[kEager].eager = true;
  all[kEager].gradients_in_memory = false;
  return all;
}

// Returns the seconds of the paper, as planner/papers has them; 0 if it has no such variant.
double PaperSeconds(size_t variant, const NearJob& job) {
  smart::Method method;
  switch (variant) {
    case kBase:
      method.variant = smart::Variant::kBase;
      break;
    case kNaive:
      method.variant = smart::Variant::kNaive;
      break;
    case kHandover:
      method.variant = smart::Variant::kHandover;
      break;
    case kTopk:
      method.variant = smart::Variant::kTopK;
      break;
    default:
      return 0;
  }
  return smart::Simulate(job.machine, job.gpu, method, job.full_parameters, job.devices)
      .total()
      .value();
}

// The seconds of each variant's steps with one number of devices.
class Row {
 public:
  Row(const NearJob& job, const std::string& folder, const std::string& program) : job_(job) {
    for (const NearVariant& variant : variants_) {
      const std::string own = absl::StrCat(folder, "/", worlds_.size());
      std::filesystem::create_directories(own);
      worlds_.push_back(std::make_unique<NearWorld>(variant, job, kChunks, own, program));
    }
    seconds_.resize(variants_.size());
    updates_.resize(variants_.size());
  }

  void Measure(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < worlds_.size(); ++i) {
        const NearStep step = worlds_[i]->Step();
        seconds_[i].push_back(step.total());
        updates_[i].push_back(step.update);
      }
    }
  }

  void Print() const {
    for (size_t i = 0; i < variants_.size(); ++i) {
      const Spread spread = SpreadOf(seconds_[i]);
      const double flows = SimulateNear(variants_[i], job_, kChunks).total();
      const double paper = PaperSeconds(i, job_);
      std::printf("%2d  %-20s %5.1f [%5.1f..%5.1f] %6.1f %6.1f %5.2f  %5s %5.2f %5.2f\n",
                  job_.devices, variants_[i].name.c_str(), spread.median, spread.low, spread.high,
                  SpreadOf(updates_[i]).median, flows, spread.median / flows,
                  paper > 0 ? absl::StrFormat("%.1f", paper).c_str() : "-", Gain(kBase, i).median,
                  Gain(kLink, i).median);
    }
    std::fflush(stdout);
  }

  // Returns how much faster variant i is than variant `over`, per round.
  std::vector<double> Gains(size_t over, size_t i) const {
    std::vector<double> gains;
    for (size_t round = 0; round < seconds_[i].size(); ++round) {
      gains.push_back(seconds_[over][round] / seconds_[i][round]);
    }
    return gains;
  }

  // `digests` are those of memory, by codec of gradients.
  void CheckStates(const std::map<std::string, std::string>& digests) {
    for (size_t i = 0; i < worlds_.size(); ++i) {
      if (worlds_[i]->Digest() == digests.at(variants_[i].gradients)) continue;
      std::printf("%s: the state differs from that of memory\n", variants_[i].name.c_str());
      std::exit(2);
    }
  }

 private:
  Spread Gain(size_t over, size_t i) const { return SpreadOf(Gains(over, i)); }

  const NearJob job_;
  const std::vector<NearVariant> variants_ = Variants();
  std::vector<std::unique_ptr<NearWorld>> worlds_;
  std::vector<std::vector<double>> seconds_;  // by variant and round
  std::vector<std::vector<double>> updates_;
};

// Returns eps-csd as bazel has built it: `bazel run` starts in the folder of its outputs.
std::string DeviceProgram() {
  const std::string program = "storage/csd/process/eps-csd";
  return std::filesystem::exists(program) ? program : "bazel-bin/" + program;
}

bool Run(NearJob job, int rounds, const std::vector<int>& devices, const std::string& folder,
         const std::string& program) {
  std::printf(
      "%s; %s, %d rounds, %d chunks, rates divided by %g\n"
      "n: devices. s: median of a step of 4.0B with its extremes. update: after backward.\n"
      "flows: s of the simulation. /: s over those. paper: s of the paper, as planner/papers has\n"
      "it. gains: over RAID0 with the paper's host, and with the link alone.\n"
      " n  variant                  s                  update  flows     /  paper  gains\n",
      MachineName().c_str(), job.gpu.name, rounds, kChunks, job.scale);
  std::map<std::string, std::string> digests;
  for (const NearVariant& variant : Variants()) {
    std::string& digest = digests[variant.gradients];
    if (digest.empty()) digest = NearWorld::DigestOfMemory(variant.gradients, kChunks, rounds);
  }
  const bool judged = job.gpu.name == smart::kA5000.name;
  bool reached = true;
  for (const int count : devices) {
    job.devices = count;
    Row row(job, folder, program);
    row.Measure(rounds);
    row.Print();
    row.CheckStates(digests);
    if (count == 10 && judged) {
      reached &= ReportRatio("10 devices, RAID0 with the paper's host / ours, sealed",
                             row.Gains(kBase, kSealed), 2.2);
      reached &= ReportRatio("10 devices, RAID0 with the paper's host / ours, eager",
                             row.Gains(kBase, kEager), 3.5);
      reached &= ReportRatio("10 devices, RAID0 with the link alone / ours, sealed",
                             row.Gains(kLink, kSealed), 1.0);
    }
    if (count == 20 && judged) {
      reached &= ReportRatio("20 devices, RAID0 with the link alone / ours, sealed",
                             row.Gains(kLink, kSealed), 1.2);
    }
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::filesystem::remove_all(entry);
    }
  }
  return reached;
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) {
  const auto argument = [&](int i, const char* usual) { return argc > i ? argv[i] : usual; };
  eps::NearJob job;
  if (std::string(argument(1, "a5000")) == "a100") job.gpu = eps::planner::smart_infinity::kA100;
  const int rounds = std::atoi(argument(2, "3"));
  job.scale = std::atof(argument(3, "64"));
  std::vector<int> devices;
  for (const auto text : absl::StrSplit(argument(4, "1,4,10"), ',')) {
    if (!absl::SimpleAtoi(text, &devices.emplace_back())) return 2;
  }
  std::string folder = absl::StrCat(argument(5, "/tmp"), "/csd_bench-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) {
    std::perror(folder.c_str());
    return 2;
  }
  const bool reached =
      eps::Run(job, rounds, devices, folder, argc > 6 ? argv[6] : eps::DeviceProgram());
  std::filesystem::remove_all(folder);
  return reached ? 0 : 1;
}
