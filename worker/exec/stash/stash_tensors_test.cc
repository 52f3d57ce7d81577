#include "worker/exec/stash/stash_tensors.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "ATen/ops/empty.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using at::Tensor;

// Bit patterns from the whole range and of both signs, without NaN.
Tensor Samples() {
  std::vector<uint32_t> patterns;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 9973) {
    patterns.push_back(static_cast<uint32_t>(bits));
  }
  for (const float x : {0.0f, 448.0f, 464.0f, 480.0f, 57344.0f, 61440.0f, 65504.0f, 65520.0f, 3e38f,
                        std::numeric_limits<float>::infinity(), 1e-40f, 0x1p-10f, 0x1p-17f}) {
    for (const float signed_x : {x, -x}) {
      uint32_t bits;
      std::memcpy(&bits, &signed_x, sizeof(bits));
      patterns.push_back(bits);
    }
  }
  const Tensor x = at::empty({static_cast<int64_t>(patterns.size())});
  float* const values = x.mutable_data_ptr<float>();
  std::memcpy(values, patterns.data(), patterns.size() * sizeof(float));
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (std::isnan(values[i])) values[i] = 1.0f;
  }
  return x;
}

bool SameBits(const Tensor& a, const Tensor& b) {
  return a.nbytes() == b.nbytes() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

TEST(StashTensors, ADeviceEncodesLikeACpu) {
  const Tensor x = Samples();
  for (const char* const name : {"bf16", "fp16", "fp8_e4m3", "fp8_e5m2"}) {
    const auto codec = StashCodec::Find(name);
    ASSERT_TRUE(codec.ok()) << codec.status();
    const Tensor by_kernel = EncodeForStash(**codec, x);
    const Tensor by_torch = EncodeByTorch(**codec, x);
    EXPECT_EQ(by_kernel.nbytes(), x.nbytes() / 4 * (*codec)->bytes_per_element());
    EXPECT_EQ(by_kernel.scalar_type(), by_torch.scalar_type());
    EXPECT_TRUE(SameBits(by_kernel, by_torch)) << name;
    const Tensor decoded = at::empty(x.sizes());
    DecodeFromStash(**codec, by_kernel, decoded);
    EXPECT_TRUE(SameBits(decoded, by_kernel.to(at::kFloat))) << name;
    EXPECT_FALSE(SameBits(decoded, x)) << name;
    EXPECT_TRUE(SameBits(EncodeForStash(**codec, decoded), by_kernel)) << name << ": twice";
  }
}

TEST(StashTensors, KeepTheShape) {
  const auto codec = StashCodec::Find("fp8_e5m2");
  const Tensor x = at::empty({2, 3, 5}).fill_(1.25f);
  const Tensor encoded = EncodeForStash(**codec, x);
  EXPECT_EQ(encoded.sizes(), x.sizes());
  const Tensor decoded = at::empty(x.sizes());
  DecodeFromStash(**codec, encoded, decoded);
  EXPECT_TRUE(SameBits(decoded, x));
}

TEST(StashCodec, RefusalNamesKeyAndKnownCodecs) {
  for (const char* const name : {"mx9", "topk:0.1", "mxfp8_e4m3", "", "fp8"}) {
    const absl::Status status = StashCodec::Find(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    const std::string text(status.message());
    EXPECT_NE(text.find("worker.stash_codec"), std::string::npos) << text;
    EXPECT_NE(text.find("fp32, bf16, fp16, fp8_e4m3, fp8_e5m2"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace eps
