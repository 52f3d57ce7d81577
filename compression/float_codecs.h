#ifndef EPS_COMPRESSION_FLOAT_CODECS_H_
#define EPS_COMPRESSION_FLOAT_CODECS_H_

#include "compression/codec.h"

namespace eps {

// The codecs whose encoded chunk is its elements one after the other (docs/formats/codecs.md).
// One object each for the life of the process; callers look them up with FindCodec.
const Codec* Fp32Codec();
const Codec* Bf16Codec();

}  // namespace eps

#endif  // EPS_COMPRESSION_FLOAT_CODECS_H_
