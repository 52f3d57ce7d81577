// A fuzz target for libFuzzer; compression/codec_corpus_test.cc calls the same function in every
// test run. compression/testdata/README.md has the command that builds and runs the fuzzer.

#include "compression/testing/codec_fuzz.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/job/layout/chunk_map.h"
#include "base/numerics/flush_denormals.h"
#include "compression/codec.h"

namespace eps {
namespace {

constexpr size_t kHeader = 6;
constexpr size_t kMaxMessage = 1024;
constexpr uint32_t kVectorCols = 37;
constexpr size_t kMargin = 64;  // around the chunk, and between the rows of a tile
constexpr float kUntouched = 77.25f;

// A parsed input.
struct Untrusted {
  const Codec* codec = nullptr;
  Axis axis = Axis::kRow;
  Content content = Content::kWeights;
  Chunk chunk;
  absl::string_view bytes;
};

const Codec* ExampleOf(uint8_t number, uint8_t variant) {
  std::vector<const Codec*> examples;
  for (const std::string& name : CodecExamples()) {
    const auto codec = FindCodec(name);
    EPS_CHECK_MSG(codec.ok(), codec.status().ToString());
    if (static_cast<int>((*codec)->traits().id) == number) examples.push_back(*codec);
  }
  return examples.empty() ? nullptr : examples[variant % examples.size()];
}

Untrusted Parse(absl::string_view input) {
  Untrusted parsed;
  uint8_t header[kHeader] = {};
  std::memcpy(header, input.data(), input.size() < kHeader ? input.size() : kHeader);
  parsed.codec = ExampleOf(header[0], header[1]);
  parsed.axis = (header[2] & 1) != 0 ? Axis::kColumn : Axis::kRow;
  parsed.content = (header[2] & 2) != 0 ? Content::kGradient : Content::kWeights;
  Segment matrix;
  matrix.rows = 1 + header[3] % 80u;
  matrix.cols = 1 + uint32_t{header[4]};
  parsed.chunk.segments.push_back(matrix);
  for (uint32_t i = 0; i < header[5] % 3u; ++i) {
    Segment vector;
    vector.tensor = TensorId(1 + i);
    vector.rows = 1;
    vector.cols = kVectorCols;
    parsed.chunk.segments.push_back(vector);
  }
  for (Segment& segment : parsed.chunk.segments) {
    segment.offset = parsed.chunk.elements;
    parsed.chunk.elements += segment.elements();
  }
  if (input.size() > kHeader) parsed.bytes = input.substr(kHeader);
  return parsed;
}

// Returns the same bytes surrounded by `filler`, at an alignment that depends on it.
Bytes Surrounded(absl::string_view bytes, char filler) {
  const size_t before = kMargin + static_cast<uint8_t>(filler) % 3;
  std::string whole(before, filler);
  whole.append(bytes.data(), bytes.size());
  whole.append(kMargin, filler);
  return Bytes::CopyOf(whole).Sub(before, bytes.size());
}

void CheckRefusal(const Untrusted& untrusted, const absl::Status& status) {
  EPS_CHECK_MSG(absl::IsInvalidArgument(status), status.ToString());
  EPS_CHECK_MSG(!status.message().empty() && status.message().size() <= kMaxMessage,
                status.ToString());
  const absl::optional<uint64_t> element = InadmissibleElement(status);
  if (!element.has_value()) return;
  EPS_CHECK(*element < untrusted.chunk.elements);
  EPS_CHECK(untrusted.content == Content::kGradient);
}

// Returns true for equal bits or two NaNs.
bool Same(float a, float b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0 || (std::isnan(a) && std::isnan(b));
}

// Reads a tile, assigned and added, into rows with gaps between them, and compares it with `whole`.
void CheckTile(const Untrusted& untrusted, const EncodedChunk& opened, const Tile& tile,
               const std::vector<float>& whole) {
  const size_t ld = tile.cols + kMargin;
  std::vector<float> assigned(tile.rows * ld, kUntouched);
  std::vector<float> added = assigned;
  opened.Read(tile, /*accumulate=*/false, ld, assigned.data());
  opened.Read(tile, /*accumulate=*/true, ld, added.data());
  const Segment& segment = untrusted.chunk.segments[tile.segment];
  const ScopedFlushDenormals flush;
  for (uint32_t r = 0; r < tile.rows; ++r) {
    for (size_t c = 0; c < ld; ++c) {
      const bool inside = c < tile.cols;
      const float value = inside ? whole[tile.offset(segment) + uint64_t{r} * segment.cols + c] : 0;
      EPS_CHECK(Same(assigned[r * ld + c], inside ? value : kUntouched));
      EPS_CHECK(Same(added[r * ld + c], inside ? kUntouched + value : kUntouched));
    }
  }
}

void CheckAccepted(const Untrusted& untrusted, const EncodedChunk& opened,
                   const std::vector<float>& values) {
  EPS_CHECK(opened.bytes().view() == untrusted.bytes);
  std::vector<Tile> tiles;
  ForEachTile(untrusted.chunk, [&](const Tile& tile) { tiles.push_back(tile); });
  for (size_t i = tiles.size(); i-- > 0;) CheckTile(untrusted, opened, tiles[i], values);
  const bool bounded = untrusted.content == Content::kGradient;
  for (const float value : values) {
    EPS_CHECK_MSG(!bounded || std::fabs(value) < kMaxGradient,
                  untrusted.codec->name() << " let " << value << " through");
  }
  // Values that were read can be encoded again.
  EncodeOptions options;
  options.axis = untrusted.axis;
  const Bytes again = EncodeChunk(*untrusted.codec, untrusted.chunk, options, values.data());
  EPS_CHECK(again.size() <= untrusted.codec->MaxEncodedSize(untrusted.chunk, untrusted.axis));
  const auto reopened =
      untrusted.codec->Open(untrusted.chunk, untrusted.axis, again, untrusted.content);
  EPS_CHECK_MSG(reopened.ok(), reopened.status().ToString());
}

}  // namespace

bool ReadUntrustedChunk(absl::string_view input) {
  const Untrusted untrusted = Parse(input);
  if (untrusted.codec == nullptr) return false;
  const Codec& codec = *untrusted.codec;
  std::vector<float> values[2];
  for (const int i : {0, 1}) {
    const auto opened =
        codec.Open(untrusted.chunk, untrusted.axis,
                   Surrounded(untrusted.bytes, i == 0 ? '\0' : '\x7f'), untrusted.content);
    EPS_CHECK_MSG(i == 0 || opened.ok(), "bytes around the chunk matter");
    if (!opened.ok()) {
      CheckRefusal(untrusted, opened.status());
      const auto again = codec.Open(untrusted.chunk, untrusted.axis,
                                    Surrounded(untrusted.bytes, '\x7f'), untrusted.content);
      EPS_CHECK_MSG(again.status() == opened.status(), "bytes around the chunk matter");
      return false;
    }
    if (codec.traits().fixed_size) {
      EPS_CHECK(untrusted.bytes.size() == codec.MaxEncodedSize(untrusted.chunk, untrusted.axis));
    }
    values[i].assign(untrusted.chunk.elements, kUntouched);
    DecodeChunk(**opened, untrusted.chunk, values[i].data());
    if (i == 0) CheckAccepted(untrusted, **opened, values[0]);
  }
  EPS_CHECK_MSG(std::memcmp(values[0].data(), values[1].data(), 4 * values[0].size()) == 0,
                "bytes around the chunk matter");
  return true;
}

}  // namespace eps

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  eps::ReadUntrustedChunk(absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
