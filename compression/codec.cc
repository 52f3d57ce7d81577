#include "compression/codec.h"

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compression/float_codecs.h"

namespace eps {
namespace {

// Every codec of this build, in the order of their numbers.
std::vector<const Codec*> AllCodecs() { return {Fp32Codec(), Bf16Codec()}; }

constexpr char kElementPayload[] = "eps/inadmissible_element";

}  // namespace

absl::optional<uint64_t> InadmissibleElement(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kElementPayload);
  uint64_t element = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &element)) {
    return absl::nullopt;
  }
  return element;
}

absl::Status WithInadmissibleElement(absl::Status status, uint64_t element) {
  status.SetPayload(kElementPayload, absl::Cord(absl::StrCat(element)));
  return status;
}

absl::StatusOr<const Codec*> FindCodec(absl::string_view name) {
  for (const Codec* codec : AllCodecs()) {
    if (codec->name() == name) return codec;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("quantization.weights, quantization.gradients: there is no codec \"", name,
                   "\"; known are ", absl::StrJoin(CodecNames(), ", ")));
}

absl::StatusOr<const Codec*> FindCodec(CodecId id) {
  for (const Codec* codec : AllCodecs()) {
    if (codec->traits().id == id) return codec;
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no codec number ", static_cast<int>(id),
                                                 "; known are ",
                                                 absl::StrJoin(CodecNames(), ", ")));
}

std::vector<std::string> CodecNames() {
  std::vector<std::string> names;
  for (const Codec* codec : AllCodecs()) names.emplace_back(codec->name());
  return names;
}

Bytes EncodeChunk(const Codec& codec, const Chunk& chunk, Axis axis, const RngKey& rng,
                  const float* elements, MemoryKind kind, MemoryAccount* account) {
  const std::unique_ptr<TileEncoder> encoder =
      codec.NewEncoder(chunk, axis, rng, /*residual_or_null=*/nullptr, kind, account);
  ForEachTile(chunk, [&](const Tile& tile) {
    const Segment& s = chunk.segments[tile.segment];
    encoder->Write(tile, s.cols, elements + tile.offset(s));
  });
  return encoder->Finish();
}

void DecodeChunk(const EncodedChunk& encoded, const Chunk& chunk, float* elements) {
  ForEachTile(chunk, [&](const Tile& tile) {
    const Segment& s = chunk.segments[tile.segment];
    encoded.Read(tile, /*accumulate=*/false, s.cols, elements + tile.offset(s));
  });
}

}  // namespace eps
