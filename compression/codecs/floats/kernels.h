#ifndef EPS_COMPRESSION_CODECS_FLOATS_KERNELS_H_
#define EPS_COMPRESSION_CODECS_FLOATS_KERNELS_H_

// The inner loops of the float codecs, for the best instruction set of the machine. Every function
// gives the bits of reference.h on every instruction set, with denormals flushed or not. Encoded
// elements are little-endian at any alignment. No function accesses a byte outside of the elements
// that it names. E4m3 and E5m2 are fp8_e4m3 and fp8_e5m2. This header is free of standard library
// templates, because the file that implements it is compiled once per instruction set.

#include <cstddef>
#include <cstdint>

namespace eps::float_kernels {

// Return the index of the first of `n` encoded elements whose magnitude is 2^50 or more or that is
// NaN; `n` if there is none.
size_t FirstInadmissibleFp32(const uint8_t* in, size_t n);
size_t FirstInadmissibleBf16(const uint8_t* in, size_t n);
size_t FirstInadmissibleFp16(const uint8_t* in, size_t n);
size_t FirstInadmissibleE4m3(const uint8_t* in, size_t n);
size_t FirstInadmissibleE5m2(const uint8_t* in, size_t n);

// out[r * ld + c] = element r * in_ld + c of `in`, for r < rows and c < cols. Bits are kept, also
// those of denormals and NaN, except as docs/formats/codecs.md specifies for NaN.
void DecodeFp32(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld, float* out);
void DecodeBf16(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld, float* out);
void DecodeFp16(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld, float* out);
void DecodeE4m3(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld, float* out);
void DecodeE5m2(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld, float* out);

// out[r * ld + c] += that element, with FTZ+DAZ in any mode of the thread.
void AccumulateFp32(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out);
void AccumulateBf16(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out);
void AccumulateFp16(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out);
void AccumulateE4m3(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out);
void AccumulateE5m2(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                    float* out);

// Element r * out_ld + c of `out` = in[r * ld + c], rounded as by float_reference::RoundToBf16
// (…ToFp16, …). With `past_caches`, whole cache lines of `out` bypass the caches: for large results
// that are not read soon. Call hwy::FlushStream() before another thread may read them.
void EncodeFp32(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                bool past_caches, uint8_t* out);
void EncodeBf16(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                bool past_caches, uint8_t* out);
void EncodeFp16(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                bool past_caches, uint8_t* out);
void EncodeE4m3(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                bool past_caches, uint8_t* out);
void EncodeE5m2(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                bool past_caches, uint8_t* out);

}  // namespace eps::float_kernels

#endif  // EPS_COMPRESSION_CODECS_FLOATS_KERNELS_H_
