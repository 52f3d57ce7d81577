#ifndef EPS_WORKER_EXEC_CUDA_CODEC_LAUNCHES_H_
#define EPS_WORKER_EXEC_CUDA_CODEC_LAUNCHES_H_

// Launches the kernels that decode and encode a chunk of a dense codec on a launcher (grid.h). The
// results are those of the functions with the same names in kernels.h.

#include <cstdint>

#include "worker/exec/cuda/codec_arithmetic.h"
#include "worker/exec/cuda/float_bodies.h"
#include "worker/exec/cuda/grid.h"
#include "worker/exec/cuda/kernels.h"
#include "worker/exec/cuda/tile_bodies.h"

namespace eps::grid {

// Calls visit(TileSegments, tiles) for parts of the chunk until a call returns an error.
template <class Codec, class Visitor>
int ForEachPart(const eps_cuda_chunk& chunk, Visitor visit) {
  TileSegments part = {};
  part.column = chunk.column != 0;
  uint32_t tiles = 0;
  uint64_t element = 0;
  uint64_t byte = 0;
  for (uint32_t i = 0; i < chunk.count; ++i) {
    const eps_cuda_segment& s = chunk.segments[i];
    const uint64_t in_segment = DivideUp(s.rows, kTileRows) * DivideUp(s.cols, kTileCols);
    if (in_segment == 0) continue;
    if (in_segment > 0x7fffffffu) return kInvalidValue;
    if (part.count == TileSegments::kMax || tiles + in_segment > 0x7fffffffu) {
      const int error = visit(part, tiles);
      if (error != 0) return error;
      part.count = 0;
      tiles = 0;
    }
    part.segments[part.count++] = {element, byte, tiles, s.rows, s.cols};
    tiles += static_cast<uint32_t>(in_segment);
    element += uint64_t{s.rows} * s.cols;
    byte += s.rows / kTileRows * BandBytes<Codec>(part.column, kTileRows, s.cols) +
            BandBytes<Codec>(part.column, s.rows % kTileRows, s.cols);
  }
  return tiles == 0 ? 0 : visit(part, tiles);
}

inline uint64_t ElementsOf(const eps_cuda_chunk& chunk) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < chunk.count; ++i) {
    n += uint64_t{chunk.segments[i].rows} * chunk.segments[i].cols;
  }
  return n;
}

// Calls use.Floats<Codec>() or use.Tiles<Codec>() for the codec with that number.
template <class Use>
int WithCodec(uint32_t codec, const Use& use) {
  namespace arithmetic = codec_arithmetic;
  switch (codec) {
    case 1:
      return use.template Floats<arithmetic::Fp32Codec>();
    case 2:
      return use.template Floats<arithmetic::Bf16Codec>();
    case 3:
      return use.template Floats<arithmetic::Fp16Codec>();
    case 4:
      return use.template Floats<arithmetic::E4m3Codec>();
    case 5:
      return use.template Floats<arithmetic::E5m2Codec>();
    case 8:
      return use.template Tiles<arithmetic::MxCodec<7>>();
    case 9:
      return use.template Tiles<arithmetic::MxCodec<4>>();
    case 10:
      return use.template Tiles<arithmetic::MxCodec<2>>();
    case 16:
      return use.template Tiles<arithmetic::OcpFloatCodec<arithmetic::E4m3>>();
    case 17:
      return use.template Tiles<arithmetic::OcpFloatCodec<arithmetic::E5m2>>();
    case 18:
      return use.template Tiles<arithmetic::OcpFloatCodec<arithmetic::E2m3>>();
    case 19:
      return use.template Tiles<arithmetic::OcpFloatCodec<arithmetic::E3m2>>();
    case 20:
      return use.template Tiles<arithmetic::OcpFloatCodec<arithmetic::E2m1>>();
    case 21:
      return use.template Tiles<arithmetic::OcpInt8Codec>();
    default:
      return kInvalidValue;
  }
}

// One call of LaunchDecodeChunk; WithCodec selects the member to call.
template <class Element, class Launcher>
struct Decoding {
  const eps_cuda_chunk& chunk;
  const void* in;
  Element* out;
  Launcher& launcher;

  template <class Codec>
  int Floats() const {
    const uint64_t n = ElementsOf(chunk);
    if (n == 0) return 0;
    const uint32_t blocks = BlocksFor(n);
    return launcher.template Run<DecodeFloatsBody<Codec, Element>>(
        blocks, {static_cast<const typename Codec::Code*>(in), n, blocks, out});
  }
  template <class Codec>
  int Tiles() const {
    return ForEachPart<Codec>(chunk, [this](const TileSegments& part, uint32_t tiles) {
      return launcher.template Run<DecodeTilesBody<Codec, Element>>(
          tiles, {static_cast<const uint8_t*>(in), out, part});
    });
  }
};

// One call of LaunchEncodeChunk; WithCodec selects the member to call.
template <class Launcher>
struct Encoding {
  const eps_cuda_chunk& chunk;
  bool truncate;
  const float* in;
  void* out;
  Launcher& launcher;

  template <class Codec>
  int Floats() const {
    const uint64_t n = ElementsOf(chunk);
    if (n == 0) return 0;
    const uint32_t blocks = BlocksFor(n);
    return launcher.template Run<EncodeFloatsBody<Codec>>(
        blocks, {in, n, blocks, static_cast<typename Codec::Code*>(out)});
  }
  template <class Codec>
  int Tiles() const {
    return ForEachPart<Codec>(chunk, [this](const TileSegments& part, uint32_t tiles) {
      return launcher.template Run<EncodeTilesBody<Codec>>(
          tiles, {in, static_cast<uint8_t*>(out), truncate, part});
    });
  }
};

// Element is float, or uint16_t for bfloat16.
template <class Element, class Launcher>
int LaunchDecodeChunk(uint32_t codec, const eps_cuda_chunk& chunk, const void* in, Element* out,
                      Launcher& launcher) {
  return WithCodec(codec, Decoding<Element, Launcher>{chunk, in, out, launcher});
}

// Only the codecs 8 to 10 have a truncating variant.
template <class Launcher>
int LaunchEncodeChunk(uint32_t codec, bool truncate, const eps_cuda_chunk& chunk, const float* in,
                      void* out, Launcher& launcher) {
  if (truncate && (codec < 8 || codec > 10)) return kInvalidValue;
  return WithCodec(codec, Encoding<Launcher>{chunk, truncate, in, out, launcher});
}

}  // namespace eps::grid

#endif  // EPS_WORKER_EXEC_CUDA_CODEC_LAUNCHES_H_
