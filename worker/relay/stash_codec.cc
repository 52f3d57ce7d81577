#include "worker/relay/stash_codec.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compression/codecs/floats/kernels.h"

namespace eps {

absl::StatusOr<const StashCodec*> StashCodec::Find(absl::string_view name) {
  namespace kernels = float_kernels;
  static const StashCodec kCodecs[] = {
      {"fp32", Format::kFp32, 4, nullptr, nullptr},
      {"bf16", Format::kBf16, 2, &kernels::EncodeBf16, &kernels::DecodeBf16},
      {"fp16", Format::kFp16, 2, &kernels::EncodeFp16, &kernels::DecodeFp16},
      {"fp8_e4m3", Format::kE4m3, 1, &kernels::EncodeE4m3, &kernels::DecodeE4m3},
      {"fp8_e5m2", Format::kE5m2, 1, &kernels::EncodeE5m2, &kernels::DecodeE5m2},
  };
  std::string names;
  for (const StashCodec& codec : kCodecs) {
    if (name == codec.name_) return &codec;
    absl::StrAppend(&names, names.empty() ? "" : ", ", codec.name_);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("worker.stash_codec is \"", name, "\", expected one of ", names));
}

}  // namespace eps
