// Top-k gradients against dense bf16 ones: the time to encode a chunk, the bits of the index
// against the entropy of random positions, and the time of an update from one contribution, tile by
// tile and panel by panel as the DRAM backend does it. Both sides of a ratio run in each round; the
// figure is the median of the rounds' ratios. Usage: topk_bench [millions of parameters] [rounds]
// [threads]. Exits with 1 if an encoded chunk is not the reference's, or an update from top-k is
// not bit for bit the one from the same gradient in FP32.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/timing.h"
#include "common/check.h"
#include "common/flush_denormals.h"
#include "compression/codec.h"
#include "compression/reference_codec.h"
#include "optimizer/kernels.h"
#include "optimizer/update_rule.h"

namespace eps {
namespace {

constexpr uint32_t kRows = 1024;
constexpr uint32_t kCols = 1024;
constexpr size_t kElements = size_t{kRows} * kCols;
constexpr double kNanoseconds = 1e9;

struct Density {
  const char* codec;
  const char* text;
};
constexpr Density kDensities[] = {
    {"topk:0.001", "0.1 %"}, {"topk:0.01", "1 %"}, {"topk:0.1", "10 %"}};

Chunk MatrixChunk() {
  Chunk chunk;
  Segment segment;
  segment.rows = kRows;
  segment.cols = kCols;
  chunk.segments = {segment};
  chunk.elements = segment.elements();
  return chunk;
}

// Sums of uniform numbers: tails like a gradient's, equal on every machine.
std::vector<float> Gradient(uint64_t seed) {
  std::vector<float> values(kElements);
  uint64_t state = seed * 2 + 1;
  for (float& value : values) {
    double sum = -3;
    for (int i = 0; i < 6; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      sum += static_cast<double>(state >> 32) / 4294967296.0;
    }
    value = static_cast<float>(1e-3 * sum * sum * sum);
  }
  return values;
}

const Codec& Named(const std::string& name) {
  const absl::StatusOr<const Codec*> codec = FindCodec(name);
  EPS_CHECK_MSG(codec.ok(), codec.status());
  return **codec;
}

using Opened = std::shared_ptr<const EncodedChunk>;

Opened Open(const Codec& codec, const Chunk& chunk, const Bytes& bytes) {
  absl::StatusOr<Opened> opened = codec.Open(chunk, Axis::kRow, bytes, Content::kGradient);
  EPS_CHECK_MSG(opened.ok(), opened.status());
  return *std::move(opened);
}

double Seconds(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Weights and moments of all chunks, each chunk's elements in one piece.
class State {
 public:
  explicit State(size_t chunks)
      : n_(chunks * kElements), weight_(4 * n_), exp_avg_(4 * n_), exp_avg_sq_(4 * n_) {
    for (size_t i = 0; i < n_; ++i) {
      const float x = static_cast<float>(i * 2654435761u >> 8 & 0xffff) / 65536.0f;
      Floats(weight_)[i] = 0.02f * x - 0.01f;
      Floats(exp_avg_)[i] = 1e-4f * (0.5f - x);
      Floats(exp_avg_sq_)[i] = 1e-8f * (x + 0.1f);
    }
  }

  // The panel that begins at `element` and takes its gradient from `grad`.
  AdamWTile Panel(size_t element, size_t rows, const float* grad) const {
    AdamWTile tile;
    tile.rows = rows;
    tile.cols = tile.grad_ld = tile.ld = kCols;
    tile.grad = grad;
    tile.weight = Floats(weight_) + element;
    tile.exp_avg = Floats(exp_avg_) + element;
    tile.exp_avg_sq = Floats(exp_avg_sq_) + element;
    return tile;
  }

  bool operator==(const State& other) const {
    return std::memcmp(weight_.data(), other.weight_.data(), 4 * n_) == 0 &&
           std::memcmp(exp_avg_.data(), other.exp_avg_.data(), 4 * n_) == 0 &&
           std::memcmp(exp_avg_sq_.data(), other.exp_avg_sq_.data(), 4 * n_) == 0;
  }

 private:
  static float* Floats(const PageArray& array) { return static_cast<float*>(array.data()); }

  const size_t n_;
  PageArray weight_, exp_avg_, exp_avg_sq_;
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

// Updates chunk number `index` of the state from one contribution. Returns the sum of squares.
double Update(const Chunk& chunk, const EncodedChunk& part, size_t index, State* state) {
  alignas(64) float gradient[kTileRows * kTileCols];
  Buffer panel(size_t{kTileRows} * kCols * sizeof(float));
  const AdamWScalars scalars = Scalars();
  SquareSum squares;
  ForEachTile(chunk, [&](const Tile& tile) {
    part.Read(tile, /*accumulate=*/false, tile.cols, gradient);
    squares.Add(gradient, tile.rows, tile.cols, tile.cols, scalars.grad_scale);
    for (size_t r = 0; r < tile.rows; ++r) {
      std::memcpy(panel.floats() + r * kCols + tile.col, gradient + r * tile.cols,
                  tile.cols * sizeof(float));
    }
    if (tile.col + tile.cols < kCols) return;
    AdamW(scalars,
          state->Panel(index * kElements + size_t{tile.row} * kCols, tile.rows, panel.floats()));
  });
  return squares.Fold();
}

// All chunks' contributions in one codec.
struct Contributions {
  const Codec* codec = nullptr;
  std::vector<Bytes> bytes;
  std::vector<Opened> opened;
};

// Seconds to update all chunks, shared out to `threads`; `open`: from the bytes.
double TimeUpdates(const Chunk& chunk, const Contributions& parts, bool open, int threads,
                   State* state) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      ScopedFlushDenormals flush;
      ready.fetch_add(1);
      while (!go.load()) std::this_thread::yield();
      for (size_t i = static_cast<size_t>(t); i < parts.bytes.size();
           i += static_cast<size_t>(threads)) {
        Update(chunk, open ? *Open(*parts.codec, chunk, parts.bytes[i]) : *parts.opened[i], i,
               state);
      }
    });
  }
  while (ready.load() != threads) std::this_thread::yield();
  return Seconds([&] {
    go.store(true);
    for (std::thread& worker : workers) worker.join();
  });
}

bool Verify(const Chunk& chunk, const std::string& name) {
  const std::vector<float> gradient = Gradient(99);
  std::vector<float> residual = Gradient(98);
  std::vector<float> expected_residual = residual;
  EncodeOptions options;
  options.residual_or_null = residual.data();
  const Bytes bytes = EncodeChunk(Named(name), chunk, options, gradient.data());
  const auto reference = NewReferenceCodec(name);
  EPS_CHECK_MSG(reference.ok(), reference.status());
  const std::string expected =
      (*reference)->Encode(chunk, Axis::kRow, gradient.data(), expected_residual.data());
  std::vector<float> sent(kElements);
  (*reference)->Decode(chunk, Axis::kRow, expected, sent.data());
  const Codec& fp32 = Named("fp32");
  const Bytes dense = EncodeChunk(fp32, chunk, EncodeOptions(), sent.data());
  State found_state(1);
  State expected_state(1);
  const double found_squares =
      Update(chunk, *Open(Named(name), chunk, bytes), /*index=*/0, &found_state);
  const double expected_squares =
      Update(chunk, *Open(fp32, chunk, dense), /*index=*/0, &expected_state);
  return bytes.view() == expected && found_state == expected_state &&
         found_squares == expected_squares &&
         std::memcmp(residual.data(), expected_residual.data(), 4 * kElements) == 0;
}

void ReportIndex(const Chunk& chunk, const Density& density) {
  const std::vector<float> gradient = Gradient(97);
  const Bytes bytes = EncodeChunk(Named(density.codec), chunk, EncodeOptions(), gradient.data());
  uint32_t count = 0;
  uint32_t index_bytes = 0;
  std::memcpy(&count, bytes.data(), 4);
  std::memcpy(&index_bytes, bytes.data() + 8, 4);
  const double p = static_cast<double>(count) / kElements;
  const double entropy = -(p * std::log2(p) + (1 - p) * std::log2(1 - p)) / p;
  const double bits = 8.0 * index_bytes / count;
  const char* const formats[] = {"raw32", "delta8", "delta16", "bitmap"};
  std::printf(
      "%-6s index: %-8s %6.2f bits per number, entropy %6.2f, ratio %.3f; the chunk is "
      "1/%.1f of dense bf16\n",
      density.text, formats[bytes.data()[4] & 3], bits, entropy, bits / entropy,
      2.0 * kElements / static_cast<double>(bytes.size()));
}

// Encoding of chunks that lie in memory, with residuals and without, against bf16.
void ReportEncoding(const Chunk& chunk, int rounds) {
  constexpr size_t kChunks = 16;
  std::vector<std::vector<float>> gradients;
  std::vector<std::vector<float>> residuals;
  for (size_t i = 0; i < kChunks; ++i) {
    gradients.push_back(Gradient(i));
    residuals.push_back(Gradient(100 + i));
  }
  const auto encode = [&](const std::string& name, bool feedback) {
    const Codec& codec = Named(name);
    return Seconds([&] {
      for (size_t i = 0; i < kChunks; ++i) {
        EncodeOptions options;
        if (feedback) options.residual_or_null = residuals[i].data();
        EncodeChunk(codec, chunk, options, gradients[i].data());
      }
    });
  };
  struct Case {
    std::string name;
    bool feedback;
    std::vector<double> ratio;
    std::vector<double> seconds;
  };
  std::vector<Case> cases;
  for (const Density& density : kDensities) {
    cases.push_back({density.codec, false, {}, {}});
    cases.push_back({density.codec, true, {}, {}});
    cases.push_back({absl::StrCat(density.codec, ":sampled"), true, {}, {}});
  }
  std::vector<double> dense;
  for (int round = 0; round < rounds; ++round) {
    for (Case& c : cases) {
      dense.push_back(encode("bf16", false));
      c.seconds.push_back(encode(c.name, c.feedback));
      c.ratio.push_back(dense.back() / c.seconds.back());
    }
  }
  const double n = kChunks * kElements / kNanoseconds;
  std::printf("encoding, dense bf16 %.3f ns/element; speed relative to it:\n",
              SpreadOf(dense).median / n);
  for (const Case& c : cases) {
    ReportRatio(absl::StrCat("  ", c.name, c.feedback ? " with residual, " : ", ",
                             std::round(1000 * SpreadOf(c.seconds).median / n) / 1000, " ns"),
                c.ratio, /*goal=*/0);
  }
}

bool ReportUpdates(const Chunk& chunk, size_t chunks, int rounds, int most_threads) {
  State state(chunks);
  Contributions dense;
  dense.codec = &Named("bf16");
  std::vector<Contributions> sparse(std::size(kDensities));
  for (size_t d = 0; d < sparse.size(); ++d) sparse[d].codec = &Named(kDensities[d].codec);
  const auto add = [&chunk](const std::vector<float>& gradient, Contributions* parts) {
    parts->bytes.push_back(EncodeChunk(*parts->codec, chunk, EncodeOptions(), gradient.data()));
    parts->opened.push_back(Open(*parts->codec, chunk, parts->bytes.back()));
  };
  for (size_t i = 0; i < chunks; ++i) {
    const std::vector<float> gradient = Gradient(i);
    add(gradient, &dense);
    for (Contributions& parts : sparse) add(gradient, &parts);
  }
  bool reached = true;
  for (int threads = 1; threads <= most_threads; threads *= 2) {
    TimeUpdates(chunk, dense, /*open=*/false, threads, &state);  // warms up
    for (const bool open : {false, true}) {
      std::vector<double> dense_seconds;
      std::vector<std::vector<double>> ratios(sparse.size());
      for (int round = 0; round < rounds; ++round) {
        for (size_t d = 0; d < sparse.size(); ++d) {
          dense_seconds.push_back(TimeUpdates(chunk, dense, open, threads, &state));
          ratios[d].push_back(dense_seconds.back() /
                              TimeUpdates(chunk, sparse[d], open, threads, &state));
        }
      }
      std::printf(
          "%s update, %d thread%s, dense bf16 %.3f ns/parameter; speed relative to it:\n",
          open ? "opening and" : "opened,", threads, threads == 1 ? "" : "s",
          SpreadOf(dense_seconds).median / static_cast<double>(chunks * kElements) * kNanoseconds);
      for (size_t d = 0; d < sparse.size(); ++d) {
        reached &= ReportRatio(absl::StrCat("  ", kDensities[d].codec), ratios[d], /*goal=*/1.0);
      }
    }
  }
  return reached;
}

int Main(int argc, char** argv) {
  const long mebi = argc > 1 ? std::atol(argv[1]) : 64;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  const int most_threads =
      argc > 3 ? std::atoi(argv[3]) : static_cast<int>(std::thread::hardware_concurrency());
  if (mebi < 1 || rounds < 1 || most_threads < 1) {
    std::fprintf(stderr, "usage: topk_bench [Mi parameters] [rounds] [threads]\n");
    return 64;
  }
  std::printf("machine: %s, %u threads; instruction set: %s; %ld Mi parameters; %d rounds\n",
              MachineName().c_str(), std::thread::hardware_concurrency(), KernelTarget(), mebi,
              rounds);
  ScopedFlushDenormals flush;
  const Chunk chunk = MatrixChunk();
  for (const Density& density : kDensities) {
    for (const char* variant : {"", ":raw32", ":sampled"}) {
      const std::string name = absl::StrCat(density.codec, variant);
      if (Verify(chunk, name)) continue;
      std::fprintf(stderr, "%s differs from the reference\n", name.c_str());
      return 1;
    }
  }
  for (const Density& density : kDensities) ReportIndex(chunk, density);
  ReportEncoding(chunk, rounds);
  ReportUpdates(chunk, static_cast<size_t>(mebi), rounds, most_threads);
  return 0;
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) { return eps::Main(argc, argv); }
