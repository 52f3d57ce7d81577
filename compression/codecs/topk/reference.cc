// Top-k in plain scalar C++: docs/formats/codecs.md, element by element.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/numerics/flush_denormals.h"
#include "compression/reference_codec.h"

namespace eps {
namespace {

uint32_t ToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float ToFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

bool IsNan(float value) { return (ToBits(value) & 0x7fffffffu) > 0x7f800000u; }

// Returns a key that orders by magnitude; all NaNs are equal and above infinity.
uint32_t MagnitudeOrder(float value) {
  return IsNan(value) ? 0x7f800001u : ToBits(value) & 0x7fffffffu;
}

uint16_t RoundToBf16(float value) {
  const uint32_t bits = ToBits(value);
  if (IsNan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  const uint32_t lower = bits & 0xffffu;
  uint32_t upper = bits >> 16;
  if (lower > 0x8000u || (lower == 0x8000u && upper % 2 == 1)) ++upper;
  return static_cast<uint16_t>(upper);
}

void Put(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

uint64_t Get(absl::string_view in, size_t at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) {
    value |= uint64_t{static_cast<uint8_t>(in[at + static_cast<size_t>(i)])} << (8 * i);
  }
  return value;
}

std::string Raw32(const std::vector<uint64_t>& chosen) {
  std::string out;
  for (const uint64_t i : chosen) Put(i, 4, &out);
  return out;
}

std::string Deltas(const std::vector<uint64_t>& chosen, int word_bytes) {
  const uint64_t escape = (uint64_t{1} << (8 * word_bytes)) - 1;
  std::string out;
  int64_t before = -1;
  for (const uint64_t i : chosen) {
    uint64_t difference = static_cast<uint64_t>(static_cast<int64_t>(i) - before - 1);
    while (difference >= escape) {
      Put(escape, word_bytes, &out);
      difference -= escape;
    }
    Put(difference, word_bytes, &out);
    before = static_cast<int64_t>(i);
  }
  return out;
}

std::string Bitmap(const std::vector<uint64_t>& chosen, uint64_t n) {
  std::string out((n + 7) / 8, '\0');
  for (const uint64_t i : chosen) out[i / 8] = static_cast<char>(out[i / 8] | 1 << i % 8);
  return out;
}

std::vector<uint64_t> ReadIndex(int format, absl::string_view index, uint64_t n, uint64_t k) {
  std::vector<uint64_t> chosen;
  if (format == 0) {
    for (uint64_t i = 0; i < k; ++i) chosen.push_back(Get(index, 4 * i, 4));
  } else if (format == 3) {
    for (uint64_t i = 0; i < n; ++i) {
      if (Get(index, i / 8, 1) >> i % 8 & 1) chosen.push_back(i);
    }
  } else {
    const int word_bytes = format;
    const uint64_t escape = (uint64_t{1} << (8 * word_bytes)) - 1;
    uint64_t next = 0;
    for (size_t at = 0; at < index.size(); at += static_cast<size_t>(word_bytes)) {
      const uint64_t word = Get(index, at, word_bytes);
      next += word;
      if (word != escape) chosen.push_back(next++);
    }
  }
  EPS_CHECK(chosen.size() == k);
  return chosen;
}

// The reference of top-k. With `tensor` it treats a chunk as its whole tensor.
class TopkReference final : public ReferenceCodec {
 public:
  // `decimals` are the digits after "0." of the fraction.
  TopkReference(const std::string& decimals, bool raw32, bool fp32, bool sampled)
      : raw32_(raw32), fp32_(fp32), sampled_(sampled) {
    for (const char c : decimals) {
      numerator_ = 10 * numerator_ + static_cast<uint64_t>(c - '0');
      denominator_ *= 10;
    }
  }

  std::string Encode(const Chunk& chunk, Axis /*axis*/, const float* elements,
                     float* residual_or_null) const override {
    const uint64_t n = chunk.elements;
    std::vector<float> values(elements, elements + n);
    if (residual_or_null != nullptr) {
      ScopedFlushDenormals flush;
      for (uint64_t i = 0; i < n; ++i) values[i] = elements[i] + residual_or_null[i];
    }
    const std::vector<uint64_t> chosen = sampled_ ? BySample(values) : Largest(values);
    int format = 0;
    std::string index = Raw32(chosen);
    if (!raw32_) {
      const std::string others[] = {Deltas(chosen, 1), Deltas(chosen, 2), Bitmap(chosen, n)};
      format = 1;
      for (int f = 2; f <= 3; ++f) {
        if (others[f - 1].size() < others[format - 1].size()) format = f;
      }
      index = others[format - 1];
    }
    std::string out;
    Put(chosen.size(), 4, &out);
    Put(static_cast<uint64_t>(format), 1, &out);
    Put(0, 3, &out);
    Put(index.size(), 4, &out);
    out += index;
    std::vector<float> sent(n, 0.0f);
    for (const uint64_t i : chosen) {
      if (fp32_) {
        Put(ToBits(values[i]), 4, &out);
        sent[i] = values[i];
      } else {
        Put(RoundToBf16(values[i]), 2, &out);
        sent[i] = ToFloat(uint32_t{RoundToBf16(values[i])} << 16);
      }
    }
    if (residual_or_null != nullptr) {
      ScopedFlushDenormals flush;
      for (uint64_t i = 0; i < n; ++i) residual_or_null[i] = values[i] - sent[i];
    }
    return out;
  }

  void Decode(const Chunk& chunk, Axis /*axis*/, absl::string_view bytes,
              float* elements) const override {
    const uint64_t k = Get(bytes, 0, 4);
    const uint64_t index_bytes = Get(bytes, 8, 4);
    const std::vector<uint64_t> chosen = ReadIndex(
        static_cast<int>(Get(bytes, 4, 1)), bytes.substr(12, index_bytes), chunk.elements, k);
    std::fill(elements, elements + chunk.elements, 0.0f);
    for (uint64_t i = 0; i < k; ++i) {
      const uint32_t value =
          static_cast<uint32_t>(fp32_ ? Get(bytes, 12 + index_bytes + 4 * i, 4)
                                      : Get(bytes, 12 + index_bytes + 2 * i, 2) << 16);
      std::memcpy(elements + chosen[i], &value, sizeof(value));
    }
  }

 private:
  uint64_t CountOf(uint64_t n) const { return (numerator_ * n + denominator_ - 1) / denominator_; }

  std::vector<uint64_t> Largest(const std::vector<float>& values) const {
    std::vector<uint64_t> order(values.size());
    std::iota(order.begin(), order.end(), uint64_t{0});
    std::stable_sort(order.begin(), order.end(), [&values](uint64_t a, uint64_t b) {
      return MagnitudeOrder(values[a]) > MagnitudeOrder(values[b]);
    });
    order.resize(CountOf(values.size()));
    while (!order.empty() && MagnitudeOrder(values[order.back()]) == 0) order.pop_back();
    std::sort(order.begin(), order.end());
    return order;
  }

  std::vector<uint64_t> BySample(const std::vector<float>& values) const {
    std::vector<uint32_t> sample;
    for (size_t i = 0; i < values.size(); i += 64) sample.push_back(MagnitudeOrder(values[i]));
    std::sort(sample.rbegin(), sample.rend());
    const uint32_t threshold = sample[CountOf(sample.size()) - 1];
    std::vector<uint64_t> chosen;
    for (uint64_t i = 0; i < values.size() && chosen.size() < 2 * CountOf(values.size()); ++i) {
      const uint32_t magnitude = MagnitudeOrder(values[i]);
      if (magnitude >= threshold && magnitude > 0) chosen.push_back(i);
    }
    return chosen;
  }

  const bool raw32_;
  const bool fp32_;
  const bool sampled_;
  uint64_t numerator_ = 0;
  uint64_t denominator_ = 1;
};

absl::StatusOr<std::unique_ptr<ReferenceCodec>> New(const std::vector<std::string>& parameters) {
  if (parameters.empty() || parameters[0].substr(0, 2) != "0.") {
    return absl::InvalidArgumentError("topk needs a fraction like 0.01");
  }
  const auto has = [&parameters](const char* name) {
    return std::find(parameters.begin() + 1, parameters.end(), name) != parameters.end();
  };
  std::unique_ptr<ReferenceCodec> codec = std::make_unique<TopkReference>(
      parameters[0].substr(2), has("raw32"), has("fp32"), has("sampled"));
  return codec;
}

const ReferenceRegistration kTopk("topk", &New);

}  // namespace
}  // namespace eps
