// Compares the kernel of each update rule with the memory limit of its own access pattern. Both
// read an FP32 gradient, and read and write the weights and the fields of the rule's state; the
// limit does so with almost no arithmetic. Rounds alternate between limit and kernel, so that a
// change of the machine's speed affects both; the figure is the median of the rounds' ratios.
//
// Usage: rules_bench [Mi parameters] [rounds] [threads]. Exits with 1 if a goal is missed, with 2
// if a kernel's result differs from the rule's scalar reference.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/job/optimizers.h"
#include "base/numerics/flush_denormals.h"
#include "bench/peers/memory_limit.h"
#include "optimizer/kernels.h"
#include "optimizer/update_rule.h"

namespace eps {
namespace {

constexpr size_t kMebi = size_t{1} << 20;
constexpr double kGoal = 0.90;

// Floats on huge pages where available, with every page touched.
class Array {
 public:
  explicit Array(size_t n) : n_(n) {
    mapped_ = mmap(nullptr, n * sizeof(float) + 2 * kMebi, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) {
      std::fprintf(stderr, "cannot allocate %zu floats\n", n);
      std::exit(71);
    }
    const uintptr_t address = reinterpret_cast<uintptr_t>(mapped_);
    data_ = reinterpret_cast<float*>((address + 2 * kMebi - 1) / (2 * kMebi) * (2 * kMebi));
    madvise(data_, n * sizeof(float), MADV_HUGEPAGE);
    std::memset(data_, 0, n * sizeof(float));
  }
  ~Array() { munmap(mapped_, n_ * sizeof(float) + 2 * kMebi); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  float* data() { return data_; }

 private:
  const size_t n_;
  void* mapped_ = nullptr;
  float* data_ = nullptr;
};

// Gradient, weights and state of a rule with `fields` fields.
struct State {
  State(size_t n, size_t fields) : n(n), grad(n) {
    for (size_t i = 0; i < 1 + fields; ++i) arrays.emplace_back(n);
    for (size_t i = 0; i < n; ++i) {
      const float x = static_cast<float>(i * 2654435761u >> 8 & 0xffff) / 65536.0f;
      grad.data()[i] = 1e-3f * (x - 0.5f);
      arrays[0].data()[i] = 0.02f * x - 0.01f;
      for (size_t f = 1; f <= fields; ++f) arrays[f].data()[i] = 1e-8f * (x + 0.1f);
    }
  }

  // Weights and state from the element `begin` on.
  TileState From(size_t begin) {
    TileState state;
    state.weight = arrays[0].data() + begin;
    for (size_t f = 1; f < arrays.size(); ++f) state.field[f - 1] = arrays[f].data() + begin;
    return state;
  }

  size_t n;
  Array grad;
  std::deque<Array> arrays;  // weights, then the fields
};

StepScalars Step() {
  StepScalars step;
  step.lr = 1e-4;
  step.bias_correction1 = 0.1;
  step.bias_correction2 = 0.001;
  step.grad_scale = 0.5f;
  step.update = 1;
  return step;
}

GroupScalars Group() {
  GroupScalars group;
  group.weight_decay = 0.1;
  return group;
}

// The rule of an optimizer, ready to update.
std::unique_ptr<const PreparedUpdate> Prepared(const OptimizerSpec& spec, Kernel kernel) {
  return (*NewUpdateRule(spec, kernel))->Prepare(Step(), Group());
}

bool KernelEqualsReference(const OptimizerSpec& spec) {
  const size_t fields = StateFields(spec).size();
  State found(kMebi + 13, fields);
  State expected(kMebi + 13, fields);
  ScopedFlushDenormals flush;
  Prepared(spec, Kernel::kBest)->Run(found.n, found.grad.data(), found.From(0));
  Prepared(spec, Kernel::kReference)->Run(expected.n, expected.grad.data(), expected.From(0));
  for (size_t i = 0; i < found.arrays.size(); ++i) {
    if (std::memcmp(found.arrays[i].data(), expected.arrays[i].data(), found.n * sizeof(float)) !=
        0) {
      return false;
    }
  }
  return true;
}

using Update = std::function<void(size_t n, const float* grad, const TileState& state)>;

// Returns the seconds for all pieces, one per thread, from a common start.
double Time(State* state, int threads, const Update& run) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      ScopedFlushDenormals flush;
      const size_t share = state->n / threads / 16 * 16;
      const size_t begin = t * share;
      const size_t elements = (t == threads - 1 ? state->n : begin + share) - begin;
      ready.fetch_add(1);
      while (!go.load()) std::this_thread::yield();
      run(elements, state->grad.data() + begin, state->From(begin));
    });
  }
  while (ready.load() != threads) std::this_thread::yield();
  const auto start = std::chrono::steady_clock::now();
  go.store(true);
  for (std::thread& w : workers) w.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string MachineName() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Prints the figures of a rule. Returns whether it reached the goal.
bool Report(const std::string& name, const PreparedUpdate& rule, State* state, int threads,
            int rounds) {
  const Update limit_run = [&](size_t n, const float* grad, const TileState& arrays) {
    MemoryLimit(n, grad, arrays.weight, arrays.field.data(), state->arrays.size() - 1);
  };
  const Update own_run = [&](size_t n, const float* grad, const TileState& arrays) {
    rule.Run(n, grad, arrays);
  };
  std::vector<double> limit, own, ratio;
  Time(state, threads, limit_run);  // warm-up
  for (int round = 0; round < rounds; ++round) {
    limit.push_back(Time(state, threads, limit_run));
    own.push_back(Time(state, threads, own_run));
    ratio.push_back(limit.back() / own.back());
  }
  const double n = static_cast<double>(state->n);
  const size_t bytes = 4 + 8 * state->arrays.size();  // of the gradient, and twice of the others
  const std::string label =
      absl::StrCat(name, ", ", threads, threads == 1 ? " thread" : " threads");
  const bool reached = Median(ratio) >= kGoal;
  std::printf("%-42s %zu B/param, limit %.3f ns/param (%.1f GB/s), rule %.3f ns/param\n",
              label.c_str(), bytes, Median(limit) / n * 1e9,
              static_cast<double>(bytes) * n / Median(limit) / 1e9, Median(own) / n * 1e9);
  std::printf("  limit / %-44s %.2f [%.2f..%.2f]  goal >= %.2f: %s\n", label.c_str(), Median(ratio),
              *std::min_element(ratio.begin(), ratio.end()),
              *std::max_element(ratio.begin(), ratio.end()), kGoal, reached ? "reached" : "MISSED");
  std::fflush(stdout);
  return reached;
}

// All optimizers with their defaults, SGD with momentum, too.
std::vector<std::pair<std::string, OptimizerSpec>> AllSpecs() {
  std::vector<std::pair<std::string, OptimizerSpec>> specs;
  for (const OptimizerRow& row : Optimizers()) {
    OptimizerSpec spec;
    static_cast<OptimizerSettings&>(spec) = row.defaults;
    specs.emplace_back(NameOf(spec.name), spec);
    if (!StateFields(spec).empty()) continue;
    spec.momentum = 0.9;
    specs.emplace_back(absl::StrCat(NameOf(spec.name), " with momentum"), spec);
  }
  return specs;
}

int Main(int argc, char** argv) {
  const long mebi = argc > 1 ? std::atol(argv[1]) : 64;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  const int threads =
      argc > 3 ? std::atoi(argv[3]) : static_cast<int>(std::thread::hardware_concurrency());
  if (mebi < 1 || rounds < 1 || threads < 1) {
    std::fprintf(stderr, "usage: rules_bench [Mi parameters] [rounds] [threads]\n");
    return 64;
  }
  std::printf("machine: %s, %u threads; instruction set: %s; %ld Mi parameters; %d rounds\n",
              MachineName().c_str(), std::thread::hardware_concurrency(), KernelTarget(), mebi,
              rounds);
  bool reached = true;
  for (const auto& [name, spec] : AllSpecs()) {
    if (!KernelEqualsReference(spec)) {
      std::fprintf(stderr, "the kernel of %s differs from its scalar reference\n", name.c_str());
      return 2;
    }
    State state(static_cast<size_t>(mebi) * kMebi, StateFields(spec).size());
    const auto rule = Prepared(spec, Kernel::kBest);
    reached = Report(name, *rule, &state, threads, rounds) && reached;
  }
  return reached ? 0 : 1;
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) { return eps::Main(argc, argv); }
