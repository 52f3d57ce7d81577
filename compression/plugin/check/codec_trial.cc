#include "compression/plugin/check/codec_trial.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/numerics/flush_denormals.h"
#include "base/status_macros.h"

namespace eps {
namespace {

// The arrays of a caller.
constexpr size_t kElements = 0;  // of encode
constexpr size_t kRoom = 1;      // of encode
constexpr size_t kBytes = 2;     // of decode
constexpr size_t kDecoded = 3;   // of decode
// Room around the smallest arrays.
constexpr size_t kAround = 256;

}  // namespace

absl::StatusOr<CodecArrays> CodecArrays::New(const CodecPlugin* plugin) {
  constexpr size_t kElementBytes = kMostCodecElements * sizeof(float) + kAround;
  const size_t most = plugin->MostBytes(kMostCodecElements) + kAround;
  const std::pair<size_t, GuardedArray::Access> wanted[] = {
      {kElementBytes, GuardedArray::Access::kReadOnly},
      {most, GuardedArray::Access::kReadWrite},
      {most, GuardedArray::Access::kReadOnly},
      {kElementBytes, GuardedArray::Access::kReadWrite}};
  std::vector<GuardedArray> arrays;
  for (const auto& [bytes, access] : wanted) {
    EPS_ASSIGN_OR_RETURN(const GuardedArray array, GuardedArray::New(bytes, access));
    arrays.push_back(array);
  }
  return CodecArrays(plugin, std::move(arrays));
}

CodecArrays::Span CodecArrays::PlaceBytes(size_t array, size_t size,
                                          const CodecPlacement& place) const {
  return {&arrays_[array], place.at_end ? arrays_[array].size() - size : place.bytes, size};
}

CodecArrays::Span CodecArrays::PlaceElements(size_t array, size_t n,
                                             const CodecPlacement& place) const {
  CodecPlacement in_bytes = place;
  in_bytes.bytes = place.elements * sizeof(float);
  return PlaceBytes(array, n * sizeof(float), in_bytes);
}

void CodecArrays::Fill(const Span& written, uint8_t fill) {
  written_ = written;
  fill_ = fill;
  std::memset(written.array->own(), fill, written.array->size());
}

Encoding CodecArrays::Encode(const std::vector<float>& elements, const CodecPlacement& place,
                             uint8_t fill) {
  n_ = elements.size();
  const Span from = PlaceElements(kElements, n_, place);
  const Span to = PlaceBytes(kRoom, plugin_->MostBytes(n_), place);
  std::memcpy(from.own(), elements.data(), from.size);
  Fill(to, fill);
  shown_elements_ = reinterpret_cast<float*>(from.shown());
  shown_bytes_ = to.shown();
  {
    const ScopedFlushDenormals flush;
    EncodeOnly();
  }
  return {size_, {to.own(), to.own() + std::min(size_, to.size)}};
}

Decoding CodecArrays::Decode(const std::vector<uint8_t>& bytes, size_t n,
                             const CodecPlacement& place, uint8_t fill) {
  n_ = n;
  size_ = bytes.size();
  const Span from = PlaceBytes(kBytes, size_, place);
  const Span to = PlaceElements(kDecoded, n_, place);
  if (size_ > 0) std::memcpy(from.own(), bytes.data(), size_);
  Fill(to, fill);
  shown_bytes_ = from.shown();
  shown_elements_ = reinterpret_cast<float*>(to.shown());
  {
    const ScopedFlushDenormals flush;
    DecodeOnly();
  }
  Decoding decoding = {code_, std::vector<float>(n)};
  std::memcpy(decoding.elements.data(), to.own(), to.size);
  return decoding;
}

bool CodecArrays::SurroundingsAreUntouched() const {
  const uint8_t* const own = written_.array->own();
  const auto untouched = [this](uint8_t byte) { return byte == fill_; };
  return std::all_of(own, own + written_.begin, untouched) &&
         std::all_of(own + written_.begin + written_.size, own + written_.array->size(), untouched);
}

std::vector<float> TrialElements(TrialValues values, size_t n, uint64_t seed) {
  std::vector<float> elements(n);
  for (size_t i = 0; i < n; ++i) elements[i] = TrialValue(values, MixedNumber(seed, i));
  return elements;
}

std::string ElementDifference(const std::vector<float>& found, const std::vector<float>& expected) {
  for (size_t i = 0; i < found.size(); ++i) {
    if (SameBits(found[i], expected[i])) continue;
    return absl::StrFormat("element %d is %.9g (0x%08x), expected %.9g (0x%08x)", i, found[i],
                           BitsOf(found[i]), expected[i], BitsOf(expected[i]));
  }
  return "";
}

std::string DecodingDifference(const Decoding& found, const Decoding& expected) {
  if (found.code != expected.code) {
    return absl::StrFormat("returns %d, expected %d", found.code, expected.code);
  }
  return found.code == 0 ? ElementDifference(found.elements, expected.elements) : "";
}

std::string EncodingDifference(const Encoding& found, const Encoding& expected) {
  if (found.size != expected.size) {
    return absl::StrFormat("returns %d bytes, expected %d", found.size, expected.size);
  }
  const auto [a, b] = std::mismatch(found.bytes.begin(), found.bytes.end(), expected.bytes.begin());
  if (a == found.bytes.end()) return "";
  return absl::StrFormat("byte %d is 0x%02x, expected 0x%02x", a - found.bytes.begin(), *a, *b);
}

bool IsAdmissible(float element) { return std::abs(element) < 0x1p50F; }

}  // namespace eps
