#ifndef EPS_WORKER_EXEC_CUDA_ELEMENTWISE_H_
#define EPS_WORKER_EXEC_CUDA_ELEMENTWISE_H_

// The CUDA kernels' arithmetic on one element, as functions for both nvcc and a C++ compiler, so
// that the arithmetic that defines bits is tested on a CPU without a device. They depend neither on
// the thread's denormal mode nor on nvcc's -ftz.

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define EPS_HOST_DEVICE __host__ __device__
#else
#define EPS_HOST_DEVICE
#endif

namespace eps::elementwise {

EPS_HOST_DEVICE inline uint32_t BitsOf(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

EPS_HOST_DEVICE inline float FloatOf(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// Replaces a denormal with the zero of its sign; returns everything else unchanged.
EPS_HOST_DEVICE inline uint32_t Flushed(uint32_t bits) {
  return (bits & 0x7f800000u) == 0 ? bits & 0x80000000u : bits;
}

EPS_HOST_DEVICE inline float FlushedFloat(float value) { return FloatOf(Flushed(BitsOf(value))); }

// Returns left + right as base/numerics/tree_add.h does: one rounded addition that reads and writes
// denormals as zero of their sign. Returns NaN where the CPU does, possibly with another payload;
// servers refuse gradients that are not finite, so payloads reach no result.
EPS_HOST_DEVICE inline float TreeAddOne(float left, float right) {
  return FlushedFloat(FlushedFloat(left) + FlushedFloat(right));
}

// Returns the float of a bfloat16's bits, including denormals and NaN.
EPS_HOST_DEVICE inline float DecodeBf16One(uint16_t bits) {
  return FloatOf(static_cast<uint32_t>(bits) << 16);
}

// As float_reference::RoundToBf16: rounds to nearest, ties to even. NaN becomes the quiet NaN with
// the same sign and upper six payload bits; denormals are rounded like any other value.
EPS_HOST_DEVICE inline uint16_t EncodeBf16One(float value) {
  const uint32_t bits = BitsOf(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// Elements in memory are floats, or the bits of bfloat16, which computations widen and results
// round once, to nearest, ties to even.
EPS_HOST_DEVICE inline float Load(const float* from) { return *from; }
EPS_HOST_DEVICE inline float Load(const uint16_t* from) { return DecodeBf16One(*from); }
EPS_HOST_DEVICE inline void Store(float value, float* to) { *to = value; }
EPS_HOST_DEVICE inline void Store(float value, uint16_t* to) { *to = EncodeBf16One(value); }

}  // namespace eps::elementwise

#endif  // EPS_WORKER_EXEC_CUDA_ELEMENTWISE_H_
