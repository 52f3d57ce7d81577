// Compares the server's one pass over a chunk (decode the parts, sum them along the tree, sum of
// squares, AdamW, encode) with the same work in separate passes, with other AdamW kernels, and with
// memory. Ours is the DRAM backend as the server runs it; the others process the same contributions
// with their own arrays on as many threads, and without the sum of squares. Rounds alternate; the
// figures are medians of the rounds' ratios. Before any timing, all variants must produce the same
// weights, moments and encoded bytes.
//
// Usage: one_pass_bench [Mi parameters] [rounds] [threads] [weights codec]. Exits with 1 if a goal
// is missed, with 2 if results differ.

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/peers/one_pass_peers.h"
#include "bench/peers/one_pass_world.h"
#include "bench/peers/timing.h"
#include "compression/codecs/floats/kernels.h"
#include "hwy/cache_control.h"
#include "optimizer/kernels.h"
#include "optimizer/rules/adamw.h"
#include "optimizer/strip_kernels.h"
#include "optimizer/update_rule.h"

namespace eps {
namespace {

constexpr uint32_t kParts = 4;

// Elapsed and processor time.
struct Time {
  double elapsed = 0;
  double processor = 0;  // of all threads
};

double SecondsOf(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}
Time Now() { return {SecondsOf(CLOCK_MONOTONIC), SecondsOf(CLOCK_PROCESS_CPUTIME_ID)}; }

// The benchmark for one number of threads.
class Bench {
 public:
  Bench(const JobSpec& spec, const ChunkMap& chunks, const Gradients& gradients, Arrays* arrays,
        const Codec* codec, int threads)
      : spec_(spec),
        chunks_(chunks),
        gradients_(gradients),
        arrays_(*arrays),
        codec_(codec),
        bf16_(*FindCodec("bf16")),
        encoded_(chunks.chunks().size()),
        crew_(threads),
        server_(spec, chunks, &crew_) {
    for (const std::vector<Encoded>& part : gradients.bf16) parts_.push_back(&part);
    for (const std::vector<Encoded>& part : gradients.opaque) opaque_.push_back(&part);
  }

  bool Verify() {
    const std::vector<UpdateRequest::Encode> to_bf16 = {{bf16_, Axis::kRow}};
    bool equal = Same(
        "six passes", [&] { OnePass(); }, [&] { SixPasses(); });
    equal = Same(
                "span kernel and cast", [&] { server_.Update({&gradients_.fp32}, to_bf16); },
                [&] { SpanAndCast(); }) &&
            equal;
    equal = Same(
                "unfused passes and cast", [&] { server_.Update({&gradients_.fp32}, to_bf16); },
                [&] { UnfusedAndCast(); }) &&
            equal;
    equal = Same(
                "bf16 in place", [&] { server_.Update({parts_[0]}, {}); }, [&] { InPlace(); }) &&
            equal;
    equal = Same(
                "panels", [&] { server_.Update({parts_[0]}, {}); }, [&] { Panels(); }) &&
            equal;
    return Same(
               "tile by tile", [&] { server_.Update(opaque_, {}); }, [&] { SixPasses(); }) &&
           equal;
  }

  bool Measure(int rounds) {
    const std::string codec(codec_->name());
    const std::vector<UpdateRequest::Encode> encode = {{codec_, Axis::kRow}};
    const std::vector<UpdateRequest::Encode> to_bf16 = {{bf16_, Axis::kRow}};
    enum {
      kOne,
      kSix,
      kPlain,
      kWith,
      kBf16,
      kLimit,
      kFp32,
      kSpan,
      kUnfused,
      kTiles,
      kRegisters,
      kTilesStats,
      kRegistersStats,
      kInPlace,
      kPanels,
      kCount
    };
    const std::pair<std::string, std::function<void()>> candidates[kCount] = {
        {"4 bf16 parts + AdamW + " + codec + ", one pass", [&] { OnePass(); }},
        {"the same in six passes", [&] { SixPasses(); }},
        {"1 bf16 part + AdamW", [&] { server_.Update({parts_[0]}, {}); }},
        {"1 bf16 part + AdamW + " + codec, [&] { server_.Update({parts_[0]}, encode); }},
        {"1 bf16 part + AdamW + bf16", [&] { server_.Update({parts_[0]}, to_bf16); }},
        {"memory traffic of that", [&] { MemoryLimit(); }},
        {"1 fp32 part + AdamW + bf16", [&] { server_.Update({&gradients_.fp32}, to_bf16); }},
        {"span kernel (fp32 gradient), cast to bf16", [&] { SpanAndCast(); }},
        {"unfused passes (fp32 gradient), cast", [&] { UnfusedAndCast(); }},
        {"4 bf16 parts + AdamW, tile by tile", [&] { server_.Update(opaque_, {}); }},
        {"4 bf16 parts + AdamW, in registers", [&] { server_.Update(parts_, {}); }},
        {"Stats of 4 bf16 parts, tile by tile", [&] { server_.Stats(opaque_); }},
        {"Stats of 4 bf16 parts, in registers", [&] { server_.Stats(parts_); }},
        {"squares, then AdamW, bf16 in place", [&] { InPlace(); }},
        {"panel, squares, then AdamW", [&] { Panels(); }},
    };
    std::vector<double> elapsed[kCount];
    std::vector<double> seconds[kCount];             // of each thread's processor
    for (int round = -1; round < rounds; ++round) {  // the first round warms up
      for (int i = 0; i < kCount; ++i) {
        const Time begin = Now();
        candidates[i].second();
        const Time end = Now();
        if (round < 0) continue;
        elapsed[i].push_back(end.elapsed - begin.elapsed);
        seconds[i].push_back((end.processor - begin.processor) / crew_.threads());
      }
    }
    std::vector<std::string> names;
    for (const auto& candidate : candidates) names.push_back(candidate.first);
    Print(names, seconds, elapsed);
    const auto ratio = [&](const char* name, int of, int by, double goal) {
      return Ratio(name, seconds[of], seconds[by], goal);
    };
    bool reached = ratio("six passes / one pass", kSix, kOne, 2.0);
    // With encoding, an update may take at most 1.10 times as long as without.
    reached = ratio("update / with encoding", kPlain, kWith, 1 / 1.10) && reached;
    reached = ratio("memory traffic / bf16 to bf16", kLimit, kBf16, 0.90) && reached;
    reached = ratio("span kernel, cast / fp32 to bf16", kSpan, kFp32, 1.3) && reached;
    reached = ratio("unfused, cast / fp32 to bf16", kUnfused, kFp32, 5.0) && reached;
    ratio("tile by tile / in registers", kTiles, kRegisters, 0);
    ratio("tile by tile / in registers, Stats", kTilesStats, kRegistersStats, 0);
    ratio("panel, then AdamW / on the way", kPanels, kPlain, 0);
    ratio("bf16 in place / on the way", kInPlace, kPlain, 0);
    return reached;
  }

 private:
  static bool Ratio(const char* name, const std::vector<double>& of, const std::vector<double>& by,
                    double goal) {
    std::vector<double> ratios;
    for (size_t i = 0; i < of.size(); ++i) ratios.push_back(of[i] / by[i]);
    return ReportRatio(std::string("  ") + name, ratios, goal);
  }

  // Prints nanoseconds per parameter of each candidate, by processor time and elapsed.
  void Print(const std::vector<std::string>& names, const std::vector<double>* seconds,
             const std::vector<double>* elapsed) const {
    std::printf("%d thread%s\n", crew_.threads(), crew_.threads() == 1 ? "" : "s");
    const double n = static_cast<double>(arrays_.elements()) * 1e-9;
    for (size_t i = 0; i < names.size(); ++i) {
      const Spread spread = SpreadOf(seconds[i]);
      std::printf("  %-42s %.3f [%.3f..%.3f] ns/param, elapsed %.3f\n", names[i].c_str(),
                  spread.median / n, spread.low / n, spread.high / n,
                  SpreadOf(elapsed[i]).median / n);
    }
  }

  // Returns whether the server and another variant reach the same state from the same state, and
  // the same encoded bytes if there are any.
  bool Same(const char* what, const std::function<void()>& ours,
            const std::function<void()>& other) {
    arrays_.Reset();
    server_.WriteState(arrays_);
    ours();
    other();
    const std::vector<Bytes> states = server_.ReadState();
    for (const Chunk& chunk : chunks_.chunks()) {
      const uint32_t id = chunk.id.value();
      const AdamWTile row = arrays_.Row(chunk, nullptr);
      const std::vector<Bytes>& encoded = server_.results()[id].encoded;
      const size_t bytes = 4 * chunk.elements;
      if (std::memcmp(states[id].data(), row.weight, bytes) != 0 ||
          std::memcmp(states[id].data() + bytes, row.exp_avg, bytes) != 0 ||
          std::memcmp(states[id].data() + 2 * bytes, row.exp_avg_sq, bytes) != 0 ||
          (!encoded.empty() && encoded[0].view() != encoded_[id].view())) {
        std::fprintf(stderr, "%s: results differ in chunk %u\n", what, id);
        return false;
      }
    }
    return true;
  }

  void OnePass() { server_.Update(parts_, {{codec_, Axis::kRow}}); }

  // Adds each part to an FP32 sum as it arrives, then updates and encodes.
  void SixPasses() {
    for (size_t p = 0; p < parts_.size(); ++p) {
      crew_.ForEachChunk(chunks_, [&](const Chunk& chunk) {
        const uint8_t* const in = (*parts_[p])[chunk.id.value()]->bytes().data();
        const size_t n = chunk.elements;
        const auto add = p == 0 ? float_kernels::DecodeBf16 : float_kernels::AccumulateBf16;
        add(in, n, 1, n, n, arrays_.SumOf(chunk));
      });
    }
    crew_.ForEachChunk(chunks_, [&](const Chunk& chunk) {
      AdamW(OnePassScalars(spec_, chunk), arrays_.Row(chunk, arrays_.SumOf(chunk)));
    });
    EncodeAll(*codec_);
  }

  void EncodeAll(const Codec& codec) {
    crew_.ForEachChunk(chunks_, [&](const Chunk& chunk) {
      encoded_[chunk.id.value()] = Bytes();
      encoded_[chunk.id.value()] =
          EncodeChunk(codec, chunk, EncodeOptions(), arrays_.Row(chunk, nullptr).weight);
    });
  }

  // The gradient of the first part as a kernel for contiguous FP32 sees it.
  AdamWTile Fp32Row(const Chunk& chunk) const {
    const uint8_t* const gradient = gradients_.fp32[chunk.id.value()]->bytes().data();
    return arrays_.Row(chunk, reinterpret_cast<const float*>(gradient));
  }
  void SpanAndCast() {
    crew_.ForEachChunk(chunks_, [&](const Chunk& chunk) {
      peers::SpanAdamW(OnePassScalars(spec_, chunk), Fp32Row(chunk));
    });
    Cast();
  }
  void UnfusedAndCast() {
    for (int pass = 0; pass < peers::kUnfusedPasses; ++pass) {
      crew_.ForEachChunk(chunks_, [&](const Chunk& chunk) {
        peers::UnfusedAdamW(pass, OnePassScalars(spec_, chunk), Fp32Row(chunk),
                            arrays_.SumOf(chunk));
      });
    }
    Cast();
  }
  // Converts the weights to bf16 in a separate pass.
  void Cast() {
    crew_.ForEachChunk(chunks_, [&](const Chunk& chunk) {
      const size_t n = chunk.elements;
      encoded_[chunk.id.value()] = Bytes();
      Buffer out(2 * n);
      float_kernels::EncodeBf16(arrays_.Row(chunk, nullptr).weight, n, 1, n, n,
                                /*past_caches=*/true, out.data());
      hwy::FlushStream();
      encoded_[chunk.id.value()] = std::move(out).Freeze();
    });
  }

  void MemoryLimit() {
    crew_.ForEachChunk(chunks_, [&](const Chunk& chunk) {
      encoded_[chunk.id.value()] = Bytes();
      Buffer out(2 * chunk.elements);
      peers::MemoryLimitOfBf16(arrays_.Row(chunk, nullptr),
                               (*parts_[0])[chunk.id.value()]->bytes().data(), out.data());
      encoded_[chunk.id.value()] = std::move(out).Freeze();
    });
  }

  // Calls `update(chunk, panel, first element of its gradient, panel of floats)` for the first
  // part, in the backend's panels of 32 rows.
  void ForEachPanel(
      const std::function<void(const Chunk&, const AdamWTile&, uint64_t, float*)>& update) {
    crew_.ForEachChunk(chunks_, [&](const Chunk& chunk) {
      Buffer floats(kTileRows * kOnePassWidth * sizeof(float));
      const Segment& segment = chunk.segments[0];
      for (uint32_t row = 0; row < segment.rows; row += kTileRows) {
        AdamWTile panel = arrays_.Row(chunk, floats.floats());
        const uint64_t first = uint64_t{row} * segment.cols;
        panel.rows = std::min(kTileRows, segment.rows - row);
        panel.cols = panel.ld = panel.grad_ld = segment.cols;
        panel.weight += first;
        panel.exp_avg += first;
        panel.exp_avg_sq += first;
        update(chunk, panel, first, floats.floats());
      }
    });
  }
  // Works without a panel of floats: decodes tile by tile for the squares and drops the values.
  void InPlace() {
    ForEachPanel([&](const Chunk& chunk, const AdamWTile& panel, uint64_t first, float* floats) {
      const EncodedChunk& gradient = *(*parts_[0])[chunk.id.value()];
      SquareSum squares;
      Tile tile;
      tile.row = static_cast<uint32_t>(first / panel.cols);
      tile.rows = static_cast<uint32_t>(panel.rows);
      for (tile.col = 0; tile.col < panel.cols; tile.col += kTileCols) {
        tile.cols = std::min<uint32_t>(kTileCols, static_cast<uint32_t>(panel.cols) - tile.col);
        gradient.Read(tile, /*accumulate=*/false, tile.cols, floats);
        squares.Add(floats, tile.rows, tile.cols, tile.cols, 1.0f);
      }
      peers::AdamWOfBf16(OnePassScalars(spec_, chunk), panel, gradient.bytes().data() + 2 * first,
                         panel.cols);
    });
  }
  void Panels() {
    ForEachPanel([&](const Chunk& chunk, const AdamWTile& panel, uint64_t first, float* floats) {
      const strip_kernels::Step read = {strip_kernels::StepKind::kReadBf16,
                                        (*parts_[0])[chunk.id.value()]->bytes().data()};
      SquareSum squares;
      strip_kernels::Reduce(&read, 1, first, panel.rows * panel.cols, floats);
      for (size_t col = 0; col < panel.cols; col += kTileCols) {
        squares.Add(floats + col, static_cast<uint32_t>(panel.rows),
                    static_cast<uint32_t>(std::min<size_t>(kTileCols, panel.cols - col)),
                    panel.cols, 1.0f);
      }
      AdamW(OnePassScalars(spec_, chunk), panel);
    });
  }

  const JobSpec& spec_;
  const ChunkMap& chunks_;
  const Gradients& gradients_;
  Arrays& arrays_;
  const Codec* const codec_;
  const Codec* const bf16_;
  std::vector<const std::vector<Encoded>*> parts_;
  std::vector<const std::vector<Encoded>*> opaque_;
  std::vector<Bytes> encoded_;  // by chunk: the weights as the other variants encode them
  Crew crew_;
  Server server_;
};

int Main(int argc, char** argv) {
  const int mebi = argc > 1 ? std::atoi(argv[1]) : 64;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  const int most_threads =
      argc > 3 ? std::atoi(argv[3]) : static_cast<int>(std::thread::hardware_concurrency());
  const absl::StatusOr<const Codec*> codec = FindCodec(argc > 4 ? argv[4] : "mx9");
  if (mebi < 1 || rounds < 1 || most_threads < 1 || !codec.ok()) {
    std::fprintf(stderr,
                 "usage: one_pass_bench [Mi parameters] [rounds] [threads] [weights codec]\n%s\n",
                 std::string(codec.status().message()).c_str());
    return 64;
  }
  std::printf("machine: %s, %u threads; instruction set: %s; %d Mi parameters; %d rounds\n",
              MachineName().c_str(), std::thread::hardware_concurrency(), KernelTarget(), mebi,
              rounds);
  const JobSpec spec = OnePassSpec(mebi);
  const ChunkMap chunks = ChunkMap::Build(spec);
  const Gradients gradients(chunks, kParts);
  Arrays arrays(chunks);
  bool reached = true;
  for (int threads = 1; threads <= most_threads; threads *= 2) {
    Bench bench(spec, chunks, gradients, &arrays, *codec, threads);
    if (!bench.Verify()) return 2;
    reached = bench.Measure(rounds) && reached;
  }
  return reached ? 0 : 1;
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) { return eps::Main(argc, argv); }
