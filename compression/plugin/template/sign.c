// sign: a codec for EPS. It works as it is: change the format, keep the shape.
//
//   make          builds sign.so
//   make check    lets EPS check it
//
// One bit for each element, whether it is below 0, and one number for each block of 256 elements,
// their mean magnitude (scaled signs with error feedback: Karimireddy et al., arXiv 1901.09847).
// EPS adds what an encoding omits to the next gradient. The bytes of a block:
//
//   4               the scale, an FP32 number, little-endian
//   1 per 8 elements, rounded up: bit i % 8 of byte i / 8 is 1 if element i is below 0
//
// and the blocks follow each other without a gap.

#include <math.h>
#include <string.h>

#include "eps_codec.h"

enum {
  kBlock = 256,      // elements of a block; the last one may be shorter
  kScaleBytes = 4,
  kLanes = 16,       // sums that run side by side
};

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

// Returns the bytes of a block of n elements.
static size_t block_bytes(size_t n) { return kScaleBytes + (n + 7) / 8; }

// Returns the bytes of n elements.
static size_t encoded_bytes(size_t n) {
  const size_t tail = n % kBlock;
  return n / kBlock * block_bytes(kBlock) + (tail == 0 ? 0 : block_bytes(tail));
}

// Returns the mean magnitude of a block.
//
// A sum has one order, or other machines get other bits. One sum after the other would keep the
// compiler from adding several elements at once, so this order has 16 sums: element i goes to sum
// i % 16, and the sums are added in their order.
//
// An element that no server accepts (infinite, NaN, or of 2^50 or more) must not vanish in the
// mean: the scale then is infinite.
static float scale_of(size_t n, const float* restrict elements) {
  float sums[kLanes] = {0};
  int wild[kLanes] = {0};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float magnitude = fabsf(elements[i + lane]);
      sums[lane] += magnitude;
      wild[lane] |= !(magnitude < 0x1p50f);
    }
  }
  for (size_t lane = 0; i + lane < n; ++lane) {
    const float magnitude = fabsf(elements[i + lane]);
    sums[lane] += magnitude;
    wild[lane] |= !(magnitude < 0x1p50f);
  }
  float sum = 0;
  int any_wild = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    sum += sums[lane];
    any_wild |= wild[lane];
  }
  return any_wild ? INFINITY : sum / (float)n;
}

// Writes one bit for each of n elements.
static void write_signs(size_t n, const float* restrict elements, uint8_t* restrict bits) {
  uint8_t below[kBlock] = {0};
  for (size_t i = 0; i < n; ++i) below[i] = elements[i] < 0;
  for (size_t byte = 0; byte < (n + 7) / 8; ++byte) {
    unsigned value = 0;
    for (size_t bit = 0; bit < 8; ++bit) value |= (unsigned)below[8 * byte + bit] << bit;
    bits[byte] = (uint8_t)value;
  }
}

static void read_signs(size_t n, const uint8_t* restrict bits, float scale,
                       float* restrict elements) {
  const float values[2] = {scale, -scale};
  const size_t whole = n / 8;
  for (size_t byte = 0; byte < whole; ++byte) {
    for (size_t bit = 0; bit < 8; ++bit) {
      elements[8 * byte + bit] = values[bits[byte] >> bit & 1];
    }
  }
  for (size_t i = 8 * whole; i < n; ++i) elements[i] = values[bits[i / 8] >> i % 8 & 1];
}

static void write_float(float value, uint8_t* bytes) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  for (int i = 0; i < 4; ++i) bytes[i] = (uint8_t)(bits >> 8 * i);
}

static float read_float(const uint8_t* bytes) {
  uint32_t bits = 0;
  for (int i = 0; i < 4; ++i) bits |= (uint32_t)bytes[i] << 8 * i;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static size_t encode(size_t n, const float* elements, uint8_t* bytes) {
  for (size_t done = 0; done < n;) {
    const size_t block = smaller(n - done, kBlock);
    write_float(scale_of(block, elements + done), bytes);
    write_signs(block, elements + done, bytes + kScaleBytes);
    bytes += block_bytes(block);
    done += block;
  }
  return encoded_bytes(n);
}

// The bytes come over the network: never believe a length in them, and look at no byte before it is
// certain to be there. Here one comparison is enough, because the size follows from n.
static int decode(size_t size, const uint8_t* bytes, size_t n, float* elements) {
  if (size != encoded_bytes(n)) return 1;
  for (size_t done = 0; done < n;) {
    const size_t block = smaller(n - done, kBlock);
    read_signs(block, bytes + kScaleBytes, read_float(bytes), elements + done);
    bytes += block_bytes(block);
    done += block;
  }
  return 0;
}

static const eps_codec kCodec = {
    EPS_CODEC_ABI, "sign",
    kScaleBytes,  // head_bytes: of a last block that is shorter
    144,          // bytes_per_1024: four blocks of 4 + 32 bytes
    1,            // error_feedback: almost all of each element is omitted
    encode, decode,
};

// EPS finds this function by its name.
__attribute__((visibility("default"))) const eps_codec* eps_codec_v1(void) { return &kCodec; }
