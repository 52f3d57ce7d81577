#ifndef EPS_COMPRESSION_TESTING_ROW_CODEC_H_
#define EPS_COMPRESSION_TESTING_ROW_CODEC_H_

// Codecs by name over a chunk of one row, for tests. Each call expects that the name is known.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "compression/codec.h"
#include "compression/testing/codec_testing.h"
#include "gtest/gtest.h"

namespace eps {

inline const Codec& Named(absl::string_view name) {
  const absl::StatusOr<const Codec*> codec = FindCodec(name);
  EXPECT_TRUE(codec.ok()) << codec.status();
  return **codec;
}

inline Chunk RowChunk(size_t n) { return MatrixChunk(1, static_cast<uint32_t>(n)); }

inline Bytes Encoded(absl::string_view name, const std::vector<float>& values,
                     std::vector<float>* residual_or_null = nullptr) {
  EncodeOptions options;
  if (residual_or_null != nullptr) options.residual_or_null = residual_or_null->data();
  return EncodeChunk(Named(name), RowChunk(values.size()), options, values.data());
}

// Returns the decoded elements, written over others.
inline std::vector<float> Decoded(absl::string_view name, size_t n, const Bytes& bytes) {
  const Chunk chunk = RowChunk(n);
  const auto opened = Named(name).Open(chunk, Axis::kRow, bytes, Content::kWeights);
  EXPECT_TRUE(opened.ok()) << opened.status();
  std::vector<float> values(n, 77.0f);
  if (opened.ok()) DecodeChunk(**opened, chunk, values.data());
  return values;
}

inline absl::Status OpenStatus(absl::string_view name, size_t n, const std::string& bytes,
                               Content content = Content::kGradient) {
  return Named(name).Open(RowChunk(n), Axis::kRow, Bytes::CopyOf(bytes), content).status();
}

}  // namespace eps

#endif  // EPS_COMPRESSION_TESTING_ROW_CODEC_H_
