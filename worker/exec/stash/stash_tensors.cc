#include "worker/exec/stash/stash_tensors.h"

#include "ATen/ops/empty.h"
#include "base/check.h"

namespace eps {
namespace {

using at::Tensor;

at::ScalarType TypeOf(const StashCodec& codec) {
  switch (codec.format()) {
    case StashCodec::Format::kFp32:
      break;
    case StashCodec::Format::kBf16:
      return at::kBFloat16;
    case StashCodec::Format::kFp16:
      return at::kHalf;
    case StashCodec::Format::kE4m3:
      return at::kFloat8_e4m3fn;
    case StashCodec::Format::kE5m2:
      return at::kFloat8_e5m2;
  }
  return at::kFloat;
}

}  // namespace

Tensor EncodeByTorch(const StashCodec& codec, const Tensor& x) {
  // The 8-bit formats saturate, but LibTorch's conversions do not.
  if (codec.format() == StashCodec::Format::kE4m3) return x.clamp(-448, 448).to(TypeOf(codec));
  if (codec.format() == StashCodec::Format::kE5m2) return x.clamp(-57344, 57344).to(TypeOf(codec));
  return x.to(TypeOf(codec));
}

Tensor EncodeForStash(const StashCodec& codec, const Tensor& x) {
  EPS_CHECK(!codec.exact() && x.is_contiguous() && x.scalar_type() == at::kFloat);
  if (!x.device().is_cpu()) return EncodeByTorch(codec, x);
  Tensor encoded = at::empty(x.sizes(), at::TensorOptions().dtype(TypeOf(codec)));
  EPS_CHECK(encoded.nbytes() == codec.bytes_per_element() * static_cast<size_t>(x.numel()));
  codec.Encode(x.const_data_ptr<float>(), static_cast<size_t>(x.numel()),
               static_cast<uint8_t*>(encoded.mutable_data_ptr()));
  return encoded;
}

void DecodeFromStash(const StashCodec& codec, const Tensor& encoded, const Tensor& out) {
  EPS_CHECK(out.is_contiguous() && out.sizes() == encoded.sizes());
  if (!out.device().is_cpu()) {
    out.copy_(encoded);
    return;
  }
  codec.Decode(static_cast<const uint8_t*>(encoded.const_data_ptr()),
               static_cast<size_t>(out.numel()), out.mutable_data_ptr<float>());
}

}  // namespace eps
