// Compares every codec of fixed size with the memory limit of its own traffic: encoding reads 4
// bytes per element and writes n past the caches, decoding reads n and writes 4. The chunks have 1
// Mi elements, as matrices of 1024 columns; together they exceed the caches, and every page is
// touched before. Rounds alternate between limit and codec, so that a change of the machine's speed
// affects both; the figure is the median of the rounds' ratios of times, limit / codec. The
// speed-up over the scalar reference, on one thread, is printed next to it.
//
// Usage: codec_bench [Mi elements] [rounds] [most threads] [names,...]. Exits with 1 if bytes
// differ from the reference's or a goal is missed, with 64 after a wrong call.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/numerics/flush_denormals.h"
#include "bench/peers/codec_limit.h"
#include "bench/peers/timing.h"
#include "compression/codec.h"
#include "compression/reference_codec.h"

namespace eps {
namespace {

constexpr size_t kChunkElements = size_t{1} << 20;
constexpr uint32_t kCols = 1024;
constexpr double kBlockGoal = 0.80;
constexpr double kElementGoal = 0.90;
constexpr double kReferenceGoal = 15;

double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Returns the processor seconds of the slowest thread for work(chunk) over all chunks, a contiguous
// share per thread. Nothing waits, and time that other programs take of the cores does not count.
double Time(size_t chunks, int threads, const std::function<void(size_t)>& work) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<double> seconds(threads);
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      ScopedFlushDenormals flush;
      ready.fetch_add(1);
      while (!go.load()) std::this_thread::yield();
      const double start = ThreadSeconds();
      for (size_t i = chunks * t / threads; i < chunks * (t + 1) / threads; ++i) work(i);
      seconds[t] = ThreadSeconds() - start;
    });
  }
  while (ready.load() != threads) std::this_thread::yield();
  go.store(true);
  for (std::thread& w : workers) w.join();
  return *std::max_element(seconds.begin(), seconds.end());
}

Chunk MatrixChunk() {
  Chunk chunk;
  Segment segment;
  segment.rows = kChunkElements / kCols;
  segment.cols = kCols;
  chunk.segments = {segment};
  chunk.elements = segment.elements();
  return chunk;
}

// Two arrays of floats, and the encoded chunks.
struct Memory {
  explicit Memory(size_t n)
      : chunks(n),
        in(4 * n * kChunkElements),
        out(4 * n * kChunkElements),
        limit(4 * n * kChunkElements) {
    uint64_t random = 1;
    float* values = static_cast<float*>(in.data());
    for (size_t i = 0; i < chunks * kChunkElements; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      const float uniform = static_cast<float>(random >> 40) * 0x1p-24f - 0.5f;
      values[i] = uniform * uniform * uniform;  // heavy-tailed
    }
  }
  const float* In(size_t chunk) const {
    return static_cast<const float*>(in.data()) + chunk * kChunkElements;
  }
  float* Out(size_t chunk) const {
    return static_cast<float*>(out.data()) + chunk * kChunkElements;
  }
  // Where the limit writes or reads encoded bytes.
  uint8_t* Limit(size_t chunk, size_t bytes) const {
    return static_cast<uint8_t*>(limit.data()) + chunk * (bytes / 64 * 64);
  }

  const size_t chunks;
  const PageArray in, out, limit;
  std::vector<Bytes> encoded;
};

// One codec and axis under test.
class Subject {
 public:
  Subject(const Codec& codec, Axis axis, Memory* memory)
      : codec_(codec), memory_(*memory), chunk_(MatrixChunk()) {
    options_.axis = axis;
    bytes_ = codec.MaxEncodedSize(chunk_, axis);
    memory->encoded.assign(memory->chunks, Bytes());
    for (size_t i = 0; i < memory_.chunks; ++i) EncodeOne(i);
  }

  // Compares the first chunk with the reference. Sets how much slower the reference is.
  bool EqualsReference(double* encode_ratio, double* decode_ratio) {
    const auto reference = NewReferenceCodec(codec_.name());
    if (!reference.ok()) return false;
    const double t0 = ThreadSeconds();
    const std::string expected =
        (*reference)->Encode(chunk_, options_.axis, memory_.In(0), nullptr);
    const double t1 = ThreadSeconds();
    std::vector<float> decoded(chunk_.elements);
    const double t2 = ThreadSeconds();
    (*reference)->Decode(chunk_, options_.axis, expected, decoded.data());
    const double t3 = ThreadSeconds();
    EncodeOne(0);
    DecodeOne(0);
    *encode_ratio = t1 - t0;
    *decode_ratio = t3 - t2;
    return memory_.encoded[0].view() == expected &&
           std::memcmp(memory_.Out(0), decoded.data(), 4 * decoded.size()) == 0;
  }

  double TimeEncode(int threads) {
    return Time(memory_.chunks, threads, [&](size_t i) { EncodeOne(i); });
  }
  double TimeDecode(int threads) {
    return Time(memory_.chunks, threads, [&](size_t i) { DecodeOne(i); });
  }
  double TimeEncodeLimit(int threads) {
    return Time(memory_.chunks, threads, [&](size_t i) {
      EncodeLimit(memory_.In(i), kChunkElements, bytes_, memory_.Limit(i, bytes_));
    });
  }
  double TimeDecodeLimit(int threads) {
    return Time(memory_.chunks, threads, [&](size_t i) {
      DecodeLimit(memory_.Limit(i, bytes_), bytes_, kChunkElements, memory_.Out(i));
    });
  }

 private:
  void EncodeOne(size_t i) {
    memory_.encoded[i] = EncodeChunk(codec_, chunk_, options_, memory_.In(i));
  }
  void DecodeOne(size_t i) {
    const auto opened = codec_.Open(chunk_, options_.axis, memory_.encoded[i], Content::kWeights);
    if (!opened.ok()) std::abort();
    DecodeChunk(**opened, chunk_, memory_.Out(i));
  }

  const Codec& codec_;
  Memory& memory_;
  const Chunk chunk_;
  EncodeOptions options_;
  size_t bytes_ = 0;
};

// Runs rounds of a limit and a codec. Returns false if the goal is missed. Sets the codec's median
// seconds.
bool Compare(const std::string& name, int rounds, double goal, size_t elements,
             const std::function<double()>& limit, const std::function<double()>& codec,
             double* seconds) {
  std::vector<double> ratios, times;
  limit();  // warm-up
  codec();
  for (int round = 0; round < rounds; ++round) {
    const double of_limit = limit();
    times.push_back(codec());
    ratios.push_back(of_limit / times.back());
  }
  *seconds = SpreadOf(times).median;
  return ReportRatio(absl::StrCat(name, ", ", std::round(elements / *seconds / 1e7) / 100, " G/s"),
                     ratios, goal);
}

bool Run(const Codec& codec, Axis axis, Memory* memory, int rounds, int most_threads) {
  Subject subject(codec, axis, memory);
  double reference[2];
  const std::string title = absl::StrCat(
      codec.name(), codec.traits().block > 1 ? axis == Axis::kRow ? " row" : " column" : "");
  if (!subject.EqualsReference(&reference[0], &reference[1])) {
    std::fprintf(stderr, "%s differs from the scalar reference\n", title.c_str());
    return false;
  }
  const double goal = codec.traits().block > 1 ? kBlockGoal : kElementGoal;
  const size_t elements = memory->chunks * kChunkElements;
  bool reached = true;
  for (int threads = 1; threads <= most_threads; threads *= 2) {
    double seconds[2];
    reached &= Compare(
        absl::StrCat(title, " encode, ", threads, " thr"), rounds, goal, elements,
        [&] { return subject.TimeEncodeLimit(threads); },
        [&] { return subject.TimeEncode(threads); }, &seconds[0]);
    reached &= Compare(
        absl::StrCat(title, " decode, ", threads, " thr"), rounds, goal, elements,
        [&] { return subject.TimeDecodeLimit(threads); },
        [&] { return subject.TimeDecode(threads); }, &seconds[1]);
    if (threads > 1) continue;
    const double encode_gain = reference[0] * memory->chunks / seconds[0];
    const double decode_gain = reference[1] * memory->chunks / seconds[1];
    std::printf("  against the scalar reference: encode %.1fx, decode %.1fx\n", encode_gain,
                decode_gain);
    if (codec.traits().block > 1) reached &= encode_gain >= kReferenceGoal;
  }
  std::fflush(stdout);
  return reached;
}

// Returns the commit of the tree, "unknown" outside of a repository.
std::string Commit() {
  std::string commit;
  if (FILE* pipe = popen("git describe --always --dirty 2>/dev/null", "r")) {
    char line[128] = {};
    if (std::fgets(line, sizeof(line), pipe) != nullptr) commit = line;
    pclose(pipe);
  }
  commit.erase(std::remove(commit.begin(), commit.end(), '\n'), commit.end());
  return commit.empty() ? "unknown" : commit;
}

int Main(int argc, char** argv) {
  const long mebi = argc > 1 ? std::atol(argv[1]) : 64;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  const int most_threads =
      argc > 3 ? std::atoi(argv[3]) : static_cast<int>(std::thread::hardware_concurrency());
  if (mebi < 1 || rounds < 1 || most_threads < 1) {
    std::fprintf(stderr, "usage: codec_bench [Mi elements] [rounds] [most threads] [names,...]\n");
    return 64;
  }
  std::vector<std::string> names = CodecExamples();
  if (argc > 4) names = absl::StrSplit(argv[4], ',');
  std::printf("machine: %s, %u threads; commit %s; %ld Mi elements; %d rounds\n",
              MachineName().c_str(), std::thread::hardware_concurrency(), Commit().c_str(), mebi,
              rounds);
  std::printf("time of the memory's limit / of the codec: median [least..most]\n");
  Memory memory(static_cast<size_t>(mebi));
  bool reached = true;
  for (const std::string& name : names) {
    const auto codec = FindCodec(name);
    if (!codec.ok()) {
      std::fprintf(stderr, "%s\n", std::string(codec.status().message()).c_str());
      return 64;
    }
    if (!(*codec)->traits().fixed_size) continue;
    reached &= Run(**codec, Axis::kRow, &memory, rounds, most_threads);
    if ((*codec)->traits().block > 1) {
      reached &= Run(**codec, Axis::kColumn, &memory, rounds, most_threads);
    }
  }
  return reached ? 0 : 1;
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) { return eps::Main(argc, argv); }
