#ifndef EPS_COMPRESSION_CODECS_FLOATS_KERNELS_H_
#define EPS_COMPRESSION_CODECS_FLOATS_KERNELS_H_

// The inner loops of the float codecs, for the best instruction set of the machine. Every function
// gives the same bits as its namesake in float_reference.h on every instruction set. Encoded
// elements are little-endian at any alignment; no function touches a byte outside of the elements
// that it names. This header stays free of the standard library's templates, because the file that
// implements it is compiled once per instruction set.

#include <cstddef>
#include <cstdint>

namespace eps::float_kernels {

// The index of the first of `n` encoded elements whose magnitude is 2^50 or more or that is NaN;
// `n` if there is none.
size_t FirstInadmissibleFp32(const uint8_t* in, size_t n);
size_t FirstInadmissibleBf16(const uint8_t* in, size_t n);

// out[r * ld + c] = element r * in_ld + c of `in`, for r < rows and c < cols; bits are kept, also
// those of denormals and NaN.
void DecodeFp32(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld, float* out);
void DecodeBf16(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld, float* out);

// out[r * ld + c] += that element, FTZ+DAZ whatever the thread's mode.
void AccumulateFp32(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out);
void AccumulateBf16(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out);

// Element r * out_ld + c of `out` = in[r * ld + c], rounded as float_reference::RoundToBf16.
void EncodeBf16(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld, uint8_t* out);

}  // namespace eps::float_kernels

#endif  // EPS_COMPRESSION_CODECS_FLOATS_KERNELS_H_
