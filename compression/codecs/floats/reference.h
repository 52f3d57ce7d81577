#ifndef EPS_COMPRESSION_CODECS_FLOATS_REFERENCE_H_
#define EPS_COMPRESSION_CODECS_FLOATS_REFERENCE_H_

// The float formats in plain scalar C++: docs/formats/codecs.md bit by bit. The kernels of
// kernels.h are tested against these functions, which have the same contracts.

#include <cstddef>
#include <cstdint>

namespace eps::float_reference {

// Returns the bits of the bfloat16 nearest to the float of `bits`, ties to even. Values above the
// largest finite bfloat16 by half a unit or more become infinity; denormals are rounded like any
// other value; NaN becomes the quiet NaN with the same sign and upper six payload bits.
uint16_t RoundToBf16(uint32_t bits);

// The same for binary16, and for the 8-bit floats, which saturate (docs/formats/codecs.md).
uint16_t RoundToFp16(uint32_t bits);
uint8_t RoundToE4m3(uint32_t bits);
uint8_t RoundToE5m2(uint32_t bits);
// Return the bits of the float that a code represents.
uint32_t BitsOfFp16(uint16_t code);
uint32_t BitsOfE4m3(uint8_t code);
uint32_t BitsOfE5m2(uint8_t code);

// These have the contracts of kernels.h.
size_t FirstInadmissibleFp32(const uint8_t* in, size_t n);
size_t FirstInadmissibleBf16(const uint8_t* in, size_t n);
void DecodeFp32(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld, float* out);
void DecodeBf16(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld, float* out);
void AccumulateFp32(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out);
void AccumulateBf16(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out);
void EncodeBf16(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld, uint8_t* out);

}  // namespace eps::float_reference

#endif  // EPS_COMPRESSION_CODECS_FLOATS_REFERENCE_H_
