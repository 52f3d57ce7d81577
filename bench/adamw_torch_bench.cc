// Compares AdamW's kernel with the kernel of torch.optim.AdamW(fused=True) on the same
// processor: the same number of parameters and threads and the same gradient, in alternating
// rounds. Each works on the memory that it normally uses: ours on huge pages as in the servers'
// arena, torch's on tensors that torch allocates. Reported without a goal: torch on huge pages too,
// and torch with the extra pass that clipping costs it. The figure is the median over rounds of
// torch's time / ours.
//
// Usage: adamw_torch_bench [Mi parameters] [rounds] [threads]. Exits with 1 if the results differ
// or the goal is missed, with 64 after a wrong call.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "bench/peers/adamw_torch.h"
#include "bench/peers/timing.h"
#include "optimizer/kernels.h"
#include "torch/version.h"

namespace eps {
namespace {

constexpr double kGoal = 1.2;
constexpr double kBytesPerParameter = 28;

// Returns what differs after two updates of a length that no vector divides; empty if nothing does.
std::string Check(int threads, TorchMemory memory) {
  AdamWPair pair((size_t{1} << 20) + 13, memory);
  for (int i = 0; i < 2; ++i) {
    pair.TimeOurs(threads);
    pair.TimeTorch(threads);
  }
  return pair.Difference();
}

void Print(const char* what, double seconds, double n) {
  std::printf("  %-24s %.3f ns/param, 28 bytes of it at %.1f GB/s\n", what, seconds / n * 1e9,
              kBytesPerParameter * n / seconds / 1e9);
}

// Runs rounds on `threads` threads. Returns false if the results differ or a goal is missed.
bool Compare(AdamWPair* pair, TorchMemory memory, int threads, int rounds, double goal) {
  const std::string difference = Check(threads, memory);
  if (!difference.empty()) {
    std::fprintf(stderr, "the results differ: %s\n", difference.c_str());
    return false;
  }
  pair->TimeOurs(threads);  // warm-up
  pair->TimeTorch(threads);
  std::vector<double> ours, torchs, clipped, ratios, clipped_ratios;
  for (int round = 0; round < rounds; ++round) {
    ours.push_back(pair->TimeOurs(threads));
    torchs.push_back(pair->TimeTorch(threads));
    clipped.push_back(pair->TimeTorch(threads, /*clips=*/true));
    ratios.push_back(torchs.back() / ours.back());
    clipped_ratios.push_back(clipped.back() / ours.back());
  }
  const double n = static_cast<double>(pair->size());
  const bool tensors = memory == TorchMemory::kTensors;
  std::printf("%d thread%s, torch %s\n", threads, threads == 1 ? "" : "s",
              tensors ? "on its own tensors" : "on huge pages as ours");
  Print("ours", SpreadOf(ours).median, n);
  Print("torch, fused", SpreadOf(torchs).median, n);
  Print("torch, scaled and fused", SpreadOf(clipped).median, n);
  ReportRatio("  time of torch, scaled and fused / ours", clipped_ratios, 0);
  return ReportRatio("  time of torch, fused / ours", ratios, goal);
}

int Main(int argc, char** argv) {
  const long mebi = argc > 1 ? std::atol(argv[1]) : 64;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  const int most_threads =
      argc > 3 ? std::atoi(argv[3]) : static_cast<int>(std::thread::hardware_concurrency());
  if (mebi < 1 || rounds < 1 || most_threads < 1) {
    std::fprintf(stderr, "usage: adamw_torch_bench [Mi parameters] [rounds] [threads]\n");
    return 64;
  }
  std::printf("machine: %s, %u threads; ours on %s; torch %s; %ld Mi parameters; %d rounds\n",
              MachineName().c_str(), std::thread::hardware_concurrency(), KernelTarget(),
              TORCH_VERSION, mebi, rounds);
  bool reached = true;
  for (const TorchMemory memory : {TorchMemory::kTensors, TorchMemory::kHugePages}) {
    AdamWPair pair(static_cast<size_t>(mebi) << 20, memory);
    const double goal = memory == TorchMemory::kTensors ? kGoal : 0;
    for (int threads = 1; threads <= most_threads; threads *= 2) {
      if (!Compare(&pair, memory, threads, rounds, goal)) reached = false;
    }
  }
  return reached ? 0 : 1;
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) { return eps::Main(argc, argv); }
