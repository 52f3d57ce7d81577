#ifndef EPS_WORKER_EXEC_CUDA_CRC_BODIES_H_
#define EPS_WORKER_EXEC_CUDA_CRC_BODIES_H_

// The kernel (grid.h) of CRC32C, with a thread block per piece of 64 KiB, its launch, and the
// combination of the pieces' CRCs.
//
// A CRC is the remainder of a polynomial over GF(2) modulo P. The highest bit of a word here is the
// coefficient of x^0 and the lowest that of x^31, as in the CRC itself; bytes are little endian.
// Zeros before the first byte change no remainder, so a piece becomes a whole number of rounds of
// 256 words by zeros before it. Thread t takes word t of each round:
//
//   state = state * x^8192 + word        (8192 bits are a round; tables in shared memory multiply)
//
// and in the end multiplies its state by x to the distance of its last word from the end of the
// piece, plus 32. The remainder of the piece is the sum (XOR) of all threads. The register's
// initial ones are ones in front of the piece: their remainder depends on its length alone.

#include <cstdint>
#include <cstring>

#include "worker/exec/cuda/elementwise.h"
#include "worker/exec/cuda/grid.h"
#include "worker/exec/cuda/kernels.h"

namespace eps::grid {

constexpr uint32_t kCrcPiece = EPS_CUDA_CRC_PIECE;
constexpr uint32_t kCrcRound = 4 * kThreads;   // bytes
constexpr uint32_t kCastagnoli = 0x82f63b78u;  // P without x^32
constexpr uint32_t kCrcOne = 0x80000000u;      // x^0
static_assert(kCrcPiece % kCrcRound == 0);

// Returns a * b modulo P.
EPS_HOST_DEVICE constexpr uint32_t CrcProduct(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (int i = 31; i >= 0; --i) {
    product ^= b & (0u - (a >> i & 1u));
    b = b >> 1 ^ (kCastagnoli & (0u - (b & 1u)));  // times x
  }
  return product;
}

// Returns x^exponent modulo P.
EPS_HOST_DEVICE constexpr uint32_t CrcPower(uint64_t exponent) {
  uint32_t power = kCrcOne;
  uint32_t square = kCrcOne >> 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1u) != 0) power = CrcProduct(power, square);
    square = CrcProduct(square, square);
  }
  return power;
}

// Factors of the kernel. A column of the GF(2) matrix of x^8192 is the image of one bit.
struct CrcFactors {
  uint32_t columns[32];
  uint32_t to_end[kThreads];  // of each thread's last word
};

constexpr CrcFactors MakeCrcFactors() {
  CrcFactors factors = {};
  const uint32_t round = CrcPower(8 * kCrcRound);
  for (uint32_t i = 0; i < 32; ++i) factors.columns[i] = CrcProduct(1u << i, round);
  uint32_t power = kCrcOne;
  for (uint32_t t = kThreads; t > 0; --t) {
    power = CrcProduct(power, CrcPower(32));
    factors.to_end[t - 1] = power;
  }
  return factors;
}

// Computes the CRC32C of one piece.
struct CrcBody {
  // The arguments of a launch for n bytes. `ones` and `last_ones` are the remainders of the
  // initial ones in front of a whole piece and of the last one.
  struct Args {
    CrcFactors factors;
    const uint8_t* bytes;
    uint64_t n;
    uint32_t ones;
    uint32_t last_ones;
    uint32_t* crcs;
  };
  static constexpr uint32_t kRun = 16;
  static_assert(kRun * kRun == kThreads);
  // The product with x^8192 of each value of each byte of a word; the remainders of all threads.
  struct Shared {
    uint32_t table[4][256];
    uint32_t remainders[kThreads];
    uint32_t sums[kRun];
  };
  static constexpr int kPhases = 4;
  static_assert(kThreads == 256, "a thread fills the table's entries of one value");

  EPS_HOST_DEVICE static void Run(int phase, const Args& args, Shared* shared, uint32_t block,
                                  uint32_t thread) {
    const uint64_t begin = uint64_t{block} * kCrcPiece;
    const bool last = args.n - begin <= kCrcPiece;
    const uint32_t size = last ? static_cast<uint32_t>(args.n - begin) : kCrcPiece;
    if (phase == 0) {
      for (uint32_t byte = 0; byte < 4; ++byte) {
        uint32_t sum = 0;
        for (uint32_t bit = 0; bit < 8; ++bit) {
          sum ^= args.factors.columns[8 * byte + bit] & (0u - (thread >> bit & 1u));
        }
        shared->table[byte][thread] = sum;
      }
    } else if (phase == 1) {
      const uint32_t state = StateOf(args.bytes + begin, size, *shared, thread);
      shared->remainders[thread] = CrcProduct(args.factors.to_end[thread], state);
    } else if (phase == 2) {
      if (thread < kRun) shared->sums[thread] = Sum(shared->remainders + thread * kRun);
    } else if (thread == 0) {
      args.crcs[block] = ~(Sum(shared->sums) ^ (last ? args.last_ones : args.ones));
    }
  }

 private:
  EPS_HOST_DEVICE static uint32_t Sum(const uint32_t* values) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < kRun; ++i) sum ^= values[i];
    return sum;
  }

  // Returns the word at `at`, with zeros for bytes before the piece.
  EPS_HOST_DEVICE static uint32_t WordAt(const uint8_t* piece, int32_t at) {
    uint32_t word = 0;
    if (at >= 0 && MisalignmentOf(piece + at) == 0) {
      memcpy(&word, __builtin_assume_aligned(piece + at, 4), 4);
      return word;
    }
    for (int32_t i = at < 0 ? -at : 0; i < 4; ++i) {
      word |= static_cast<uint32_t>(piece[at + i]) << (8 * i);
    }
    return word;
  }

  EPS_HOST_DEVICE static uint32_t StateOf(const uint8_t* piece, uint32_t size, const Shared& shared,
                                          uint32_t thread) {
    const uint32_t rounds = (size + kCrcRound - 1) / kCrcRound;
    int32_t at = static_cast<int32_t>(size) - static_cast<int32_t>(rounds * kCrcRound) +
                 static_cast<int32_t>(4 * thread);
    uint32_t state = 0;
    for (uint32_t round = 0; round < rounds; ++round, at += kCrcRound) {
      state = shared.table[0][state & 255u] ^ shared.table[1][state >> 8 & 255u] ^
              shared.table[2][state >> 16 & 255u] ^ shared.table[3][state >> 24] ^
              WordAt(piece, at);
    }
    return state;
  }
};

inline uint64_t CrcPieces(uint64_t n) { return DivideUp(n, kCrcPiece); }
inline uint64_t LastCrcPiece(uint64_t n) { return n - (CrcPieces(n) - 1) * kCrcPiece; }

template <class Launcher>
int LaunchCrc32c(const void* bytes, uint64_t n, uint32_t* crcs, Launcher& launcher) {
  if (n == 0) return 0;
  if (CrcPieces(n) > 0x7fffffffu) return kInvalidValue;
  static constexpr CrcFactors kFactors = MakeCrcFactors();
  const uint32_t ones = CrcProduct(~0u, CrcPower(8 * kCrcPiece));
  const uint32_t last_ones = CrcProduct(~0u, CrcPower(8 * LastCrcPiece(n)));
  return launcher.template Run<CrcBody>(
      static_cast<uint32_t>(CrcPieces(n)),
      {kFactors, static_cast<const uint8_t*>(bytes), n, ones, last_ones, crcs});
}

// Returns the CRC32C of n bytes from those of their pieces. With the ones at its begin and end, the
// CRC of a + b is the CRC of a, times x to the bits of b, plus the CRC of b.
inline uint32_t CombineCrc32c(const uint32_t* crcs, uint64_t n) {
  if (n == 0) return 0;
  const uint64_t last = CrcPieces(n) - 1;
  const uint32_t piece = CrcPower(8 * kCrcPiece);
  uint32_t crc = 0;
  for (uint64_t i = 0; i < last; ++i) crc = CrcProduct(crc, piece) ^ crcs[i];
  return CrcProduct(crc, CrcPower(8 * LastCrcPiece(n))) ^ crcs[last];
}

}  // namespace eps::grid

#endif  // EPS_WORKER_EXEC_CUDA_CRC_BODIES_H_
