// Compares AdamW's kernel with the memory limit of its own access pattern. Both read weights, two
// moments and an FP32 gradient and write weights and moments, 28 bytes per parameter; the limit
// does so with almost no arithmetic. Rounds alternate between limit and kernel, so that a change of
// the machine's speed affects both; the figure is the median of the rounds' ratios.
//
// Usage: adamw_bench [millions of parameters] [rounds] [threads]. Exits with 1 if the kernel's
// result differs from the scalar reference.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/job/layout/chunk_map.h"
#include "base/numerics/flush_denormals.h"
#include "bench/peers/memory_limit.h"
#include "optimizer/kernels.h"
#include "optimizer/rules/adamw.h"

namespace eps {
namespace {

constexpr size_t kMebi = size_t{1} << 20;
constexpr size_t kMatrixCols = 1024;
constexpr double kBytesPerParameter = 28;

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

// Weights, moments and gradient of the benchmark.
struct State {
  explicit State(size_t n) : n(n), grad(n), weight(n), exp_avg(n), exp_avg_sq(n) {
    for (size_t i = 0; i < n; ++i) {
      const float x = static_cast<float>(i * 2654435761u >> 8 & 0xffff) / 65536.0f;
      grad.data()[i] = 1e-3f * (x - 0.5f);
      weight.data()[i] = 0.02f * x - 0.01f;
      exp_avg.data()[i] = 1e-4f * (0.5f - x);
      exp_avg_sq.data()[i] = 1e-8f * (x + 0.1f);
    }
  }

  // Returns the piece [begin, end) as one long row.
  AdamWTile Piece(size_t begin, size_t end) {
    AdamWTile tile;
    tile.rows = 1;
    tile.cols = end - begin;
    tile.grad = grad.data() + begin;
    tile.grad_ld = tile.cols;
    tile.weight = weight.data() + begin;
    tile.exp_avg = exp_avg.data() + begin;
    tile.exp_avg_sq = exp_avg_sq.data() + begin;
    tile.ld = tile.cols;
    return tile;
  }

  size_t n;
  Array grad, weight, exp_avg, exp_avg_sq;
};

AdamWScalars Scalars() {
  AdamWScalars s;
  s.grad_scale = 0.5f;
  s.decay = 1.0f - 1e-5f;
  s.beta1 = 0.9f;
  s.one_minus_beta1 = 0.1f;
  s.beta2 = 0.999f;
  s.one_minus_beta2 = 0.001f;
  s.rsqrt_correction2 = 18.0f;
  s.eps = 1e-8f;
  s.step_size = 3e-3f;
  return s;
}

bool KernelEqualsReference() {
  State found(kMebi + 13);
  State expected(kMebi + 13);
  ScopedFlushDenormals flush;
  AdamW(Scalars(), found.Piece(0, found.n));
  reference::AdamW(Scalars(), expected.Piece(0, expected.n));
  const size_t bytes = found.n * sizeof(float);
  return std::memcmp(found.weight.data(), expected.weight.data(), bytes) == 0 &&
         std::memcmp(found.exp_avg.data(), expected.exp_avg.data(), bytes) == 0 &&
         std::memcmp(found.exp_avg_sq.data(), expected.exp_avg_sq.data(), bytes) == 0;
}

// Returns the seconds for all pieces, one per thread, from a common start.
double Time(State* state, int threads, const std::function<void(const AdamWTile&)>& run) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      ScopedFlushDenormals flush;
      const size_t share = state->n / threads / 16 * 16;
      const AdamWTile piece =
          state->Piece(t * share, t == threads - 1 ? state->n : (t + 1) * share);
      ready.fetch_add(1);
      while (!go.load()) std::this_thread::yield();
      run(piece);
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

// Updates the same elements as the rows of a matrix, tile by tile. This shows the cost of short
// rows in many pages, and why the DRAM backend updates whole row panels.
void RunTiles(const AdamWScalars& scalars, const AdamWTile& piece) {
  for (size_t row = 0; row < piece.cols / kMatrixCols; row += kTileRows) {
    for (size_t col = 0; col < kMatrixCols; col += kTileCols) {
      const size_t i = row * kMatrixCols + col;
      AdamWTile tile;
      tile.rows = std::min<size_t>(kTileRows, piece.cols / kMatrixCols - row);
      tile.cols = kTileCols;
      tile.grad = piece.grad + i;
      tile.grad_ld = kMatrixCols;
      tile.weight = piece.weight + i;
      tile.exp_avg = piece.exp_avg + i;
      tile.exp_avg_sq = piece.exp_avg_sq + i;
      tile.ld = kMatrixCols;
      AdamW(scalars, tile);
    }
  }
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Report(const char* what, State* state, int threads, int rounds,
            const std::function<void(const AdamWTile&)>& kernel) {
  std::vector<double> limit, own, ratio;
  Time(state, threads, MemoryLimit);  // warm-up
  for (int round = 0; round < rounds; ++round) {
    limit.push_back(Time(state, threads, MemoryLimit));
    own.push_back(Time(state, threads, kernel));
    ratio.push_back(limit.back() / own.back());
  }
  const double n = static_cast<double>(state->n);
  std::printf(
      "%-18s %d thread%s: limit %.3f ns/param (%.1f GB/s), AdamW %.3f ns/param, "
      "ratio %.3f [%.3f..%.3f]\n",
      what, threads, threads == 1 ? " " : "s", Median(limit) / n * 1e9,
      kBytesPerParameter * n / Median(limit) / 1e9, Median(own) / n * 1e9, Median(ratio),
      *std::min_element(ratio.begin(), ratio.end()), *std::max_element(ratio.begin(), ratio.end()));
}

int Main(int argc, char** argv) {
  const long mebi = argc > 1 ? std::atol(argv[1]) : 64;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  const int most_threads =
      argc > 3 ? std::atoi(argv[3]) : static_cast<int>(std::thread::hardware_concurrency());
  if (mebi < 1 || rounds < 1 || most_threads < 1) {
    std::fprintf(stderr, "usage: adamw_bench [Mi parameters] [rounds] [threads]\n");
    return 64;
  }
  std::printf("machine: %s, %u threads; instruction set: %s; %ld Mi parameters; %d rounds\n",
              MachineName().c_str(), std::thread::hardware_concurrency(), KernelTarget(), mebi,
              rounds);
  if (!KernelEqualsReference()) {
    std::fprintf(stderr, "AdamW's kernel differs from the scalar reference\n");
    return 1;
  }
  State state(static_cast<size_t>(mebi) * kMebi);
  const AdamWScalars scalars = Scalars();
  for (int threads = 1; threads <= most_threads; threads *= 2) {
    Report("contiguous", &state, threads, rounds,
           [&](const AdamWTile& piece) { AdamW(scalars, piece); });
    Report("tiles of 32 x 128", &state, threads, rounds,
           [&](const AdamWTile& piece) { RunTiles(scalars, piece); });
  }
  return 0;
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) { return eps::Main(argc, argv); }
