// Compares top-k gradients with dense bf16 gradients: the time to encode a chunk, the bits of the
// index against the entropy of random positions, and the time of an update from one contribution by
// the server's DRAM backend. Both sides of a ratio run in each round; the figure is the median of
// the rounds' ratios. Times are processor seconds of the whole process, because elapsed time would
// include the turns of other programs.
//
// Usage: topk_bench [millions of parameters] [rounds] [threads]. Exits with 1 if an encoded chunk
// differs from the reference's, or if an update from top-k differs in any bit from the update from
// the same gradient in FP32.

#include <time.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/job/layout/chunk_map.h"
#include "base/numerics/flush_denormals.h"
#include "bench/peers/one_pass_world.h"
#include "bench/peers/timing.h"
#include "compression/codec.h"
#include "compression/reference_codec.h"
#include "optimizer/kernels.h"

namespace eps {
namespace {

constexpr uint32_t kRows = 1024;
constexpr uint32_t kCols = 1024;
constexpr size_t kElements = size_t{kRows} * kCols;
constexpr double kNanoseconds = 1e9;

// A share of elements that top-k sends.
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

// Sums of uniform numbers: their tails resemble a gradient's, and they are equal on every machine.
std::vector<float> Gradient(uint64_t seed, size_t n = kElements) {
  std::vector<float> values(n);
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

Encoded Open(const Codec& codec, const Chunk& chunk, const Bytes& bytes) {
  absl::StatusOr<Encoded> opened = codec.Open(chunk, Axis::kRow, bytes, Content::kGradient);
  EPS_CHECK_MSG(opened.ok(), opened.status());
  return *std::move(opened);
}

// Returns processor seconds of all threads.
double Seconds(const std::function<void()>& run) {
  const auto now = [] {
    timespec t;
    EPS_CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double start = now();
  run();
  return now() - start;
}

// One contribution to all chunks, in one codec.
struct Contribution {
  explicit Contribution(const Codec& codec) : codec(&codec) {}

  void Add(const Chunk& chunk, const std::vector<float>& gradient) {
    bytes.push_back(EncodeChunk(*codec, chunk, EncodeOptions(), gradient.data()));
    opened.push_back(Open(*codec, chunk, bytes.back()));
  }
  void OpenAgain(const ChunkMap& chunks) {
    for (const Chunk& chunk : chunks.chunks()) {
      const size_t i = chunk.id.value();
      opened[i] = Open(*codec, chunk, bytes[i]);
    }
  }

  const Codec* codec;
  std::vector<Bytes> bytes;     // by chunk
  std::vector<Encoded> opened;  // by chunk
};

bool EncodesLikeTheReference(const Chunk& chunk, const std::string& name) {
  const std::vector<float> gradient = Gradient(99);
  std::vector<float> residual = Gradient(98);
  std::vector<float> expected_residual = residual;
  EncodeOptions options;
  options.residual_or_null = residual.data();
  const Bytes bytes = EncodeChunk(Named(name), chunk, options, gradient.data());
  const auto reference = NewReferenceCodec(name);
  EPS_CHECK_MSG(reference.ok(), reference.status());
  return bytes.view() ==
             (*reference)->Encode(chunk, Axis::kRow, gradient.data(), expected_residual.data()) &&
         std::memcmp(residual.data(), expected_residual.data(), 4 * kElements) == 0;
}

// Returns whether updates from top-k, and from the FP32 values that the reference decodes, give the
// same state.
bool UpdatesLikeFp32(const std::string& name) {
  const JobSpec spec = OnePassSpec(2);
  const ChunkMap chunks = ChunkMap::Build(spec);
  const auto reference = NewReferenceCodec(name);
  EPS_CHECK_MSG(reference.ok(), reference.status());
  Contribution sparse(Named(name));
  Contribution dense(Named("fp32"));
  for (const Chunk& chunk : chunks.chunks()) {
    sparse.Add(chunk, Gradient(chunk.id.value(), chunk.elements));
    std::vector<float> decoded(chunk.elements);
    (*reference)->Decode(chunk, Axis::kRow, sparse.bytes.back().view(), decoded.data());
    dense.Add(chunk, decoded);
  }
  Crew crew(/*threads=*/2);
  Server server(spec, chunks, &crew);
  const Arrays arrays(chunks);
  std::vector<std::string> states;
  for (const Contribution* contribution : {&sparse, &dense}) {
    server.WriteState(arrays);
    server.Update({&contribution->opened}, {});
    std::string state;
    for (const Bytes& bytes : server.ReadState()) absl::StrAppend(&state, bytes.view());
    for (const UpdateResult& result : server.results()) {
      absl::StrAppend(&state, result.sum_squares, " ");
    }
    states.push_back(std::move(state));
  }
  return states[0] == states[1];
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

// Reports the encoding of chunks in memory, with and without residuals, against bf16.
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

void ReportUpdates(int mebi, int rounds, int threads) {
  const JobSpec spec = OnePassSpec(mebi);
  const ChunkMap chunks = ChunkMap::Build(spec);
  Contribution dense(Named("bf16"));
  std::vector<Contribution> sparse;
  for (const Density& density : kDensities) sparse.emplace_back(Named(density.codec));
  uint64_t elements = 0;
  for (const Chunk& chunk : chunks.chunks()) {
    const std::vector<float> gradient = Gradient(chunk.id.value(), chunk.elements);
    dense.Add(chunk, gradient);
    for (Contribution& contribution : sparse) contribution.Add(chunk, gradient);
    elements += chunk.elements;
  }
  Crew crew(threads);
  Server server(spec, chunks, &crew);
  server.WriteState(Arrays(chunks));
  const auto update = [&](Contribution* contribution, bool open) {
    return Seconds([&] {
      if (open) contribution->OpenAgain(chunks);
      server.Update({&contribution->opened}, {});
    });
  };
  update(&dense, /*open=*/false);  // warm-up
  for (const bool open : {false, true}) {
    std::vector<double> dense_seconds;
    std::vector<std::vector<double>> ratios(sparse.size());
    for (int round = 0; round < rounds; ++round) {
      for (size_t d = 0; d < sparse.size(); ++d) {
        dense_seconds.push_back(update(&dense, open));
        ratios[d].push_back(dense_seconds.back() / update(&sparse[d], open));
      }
    }
    std::printf("%s, %d thread%s: dense bf16 %.3f ns/parameter; speed relative to it:\n",
                open ? "opening and updating" : "updating", threads, threads == 1 ? "" : "s",
                SpreadOf(dense_seconds).median / static_cast<double>(elements) * kNanoseconds);
    for (size_t d = 0; d < sparse.size(); ++d) {
      ReportRatio(absl::StrCat("  ", kDensities[d].codec), ratios[d], /*goal=*/1.0);
    }
  }
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
    for (const char* variant : {"", ":raw32", ":raw32:fp32", ":sampled"}) {
      const std::string name = absl::StrCat(density.codec, variant);
      if (EncodesLikeTheReference(chunk, name) && UpdatesLikeFp32(name)) continue;
      std::fprintf(stderr, "%s differs from the reference\n", name.c_str());
      return 1;
    }
  }
  for (const Density& density : kDensities) ReportIndex(chunk, density);
  ReportEncoding(chunk, rounds);
  for (int threads = 1; threads <= most_threads; threads *= 2) {
    ReportUpdates(static_cast<int>(mebi), rounds, threads);
  }
  return 0;
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) { return eps::Main(argc, argv); }
