// The upper half of each float, and on request something that a plug-in must not do: the macro
// BAD_NAME chooses it (BUILD). Without one it is a good codec. The bytes: the number of elements in
// 4 bytes, then 2 bytes for each.

#define _GNU_SOURCE
#include <fcntl.h>
#include <fenv.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "eps_codec.h"

enum { kHead = 4, kLargest = 8192 };

static size_t encoded_bytes(size_t n) { return kHead + 2 * n; }

__attribute__((unused)) static float limited(float x, float most) {
  return x > most ? most : x < -most ? -most : x;
}

// Returns the element that is encoded in place of one.
static float changed(float x, size_t i, size_t n) {
  (void)i, (void)n;
#if defined(BAD_NAN)
  if (x != x) x = 0;
#elif defined(BAD_CLAMP)
  if (x == x) x = limited(x, 0x1p49f);
#elif defined(BAD_LOSE_LAST)
  if (i + 1 == n && fabsf(x) < 0x1p50f) x = 0;
#elif defined(BAD_SATURATE)
  if (fabsf(x) < 0x1p50f) x = limited(x, 0x1p-8f);
#elif defined(BAD_KEPT)
  static size_t kept_n;
  static float kept;
  if (i == 0 && kept_n != n) kept = x;
  kept_n = n;
  if (i == 0 && fabsf(x) < 0x1p50f) x = kept;
#endif
  return x;
}

#if defined(BAD_SHARED_BUFFER) || defined(BAD_SHARED_DECODER)
static float buffer[kLargest];
#endif
#if defined(BAD_COUNTER)
static unsigned calls;
#endif

// Returns the number of the first element of largest magnitude, or of a NaN.
__attribute__((unused)) static size_t largest(size_t n, const float* elements) {
  size_t found = 0;
  for (size_t i = 0; i < n && elements[found] == elements[found]; ++i) {
    if (!(fabsf(elements[i]) <= fabsf(elements[found]))) found = i;
  }
  return found;
}

// Does the bad thing before elements are encoded.
static void before_encode(size_t n, const float* elements, uint8_t* bytes) {
  (void)n, (void)elements, (void)bytes;
#if defined(BAD_READ_BEYOND)
  (void)*(const volatile float*)(elements + n);
#elif defined(BAD_READ_BEFORE)
  (void)*(const volatile float*)(elements - 1);
#elif defined(BAD_WRITE_ELEMENTS)
  ((float*)(uintptr_t)elements)[0] *= 2;
#elif defined(BAD_WRITE_BEYOND)
  bytes[encoded_bytes(n)] = 0;
#elif defined(BAD_WRITE_FAR)
  *(bytes - 32) = 0;
#elif defined(BAD_FILE)
  close(open("/dev/null", O_RDONLY));
#elif defined(BAD_MAPPING)
  munmap(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096);
#elif defined(BAD_LOOP)
  for (volatile int forever = 1; forever;) {
  }
#elif defined(BAD_EXIT)
  _exit(0);
#elif defined(BAD_TRAP)
  __builtin_trap();
#elif defined(BAD_ROUNDING)
  fesetround(FE_UPWARD);
#elif defined(BAD_SIGNALS)
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, NULL);
#endif
}

__attribute__((unused)) static size_t encode(size_t n, const float* elements, uint8_t* bytes) {
  before_encode(n, elements, bytes);
#if defined(BAD_SHARED_BUFFER)
  memcpy(buffer, elements, n * sizeof(float));
  sched_yield();
  elements = buffer;
#endif
  for (size_t i = 0; i < kHead; ++i) bytes[i] = (uint8_t)(n >> 8 * i);
#if defined(BAD_SPARSE)
  const size_t sent = largest(n, elements);
#endif
  for (size_t i = 0; i < n; ++i) {
    float x = changed(elements[i], i, n);
#if defined(BAD_SPARSE)
    if (i != sent) x = 0;
#endif
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    bytes[kHead + 2 * i] = (uint8_t)(bits >> 16);
    bytes[kHead + 2 * i + 1] = (uint8_t)(bits >> 24);
  }
#if defined(BAD_COUNTER)
  bytes[kHead] ^= ++calls % 2;
#elif defined(BAD_ADDRESS)
  bytes[kHead] ^= (uintptr_t)elements % 64 == 4;
#elif defined(BAD_LARGE)
  if (elements[0] == 0) return encoded_bytes(n) + 1;
#elif defined(BAD_UNWRITTEN_BYTE)
  return encoded_bytes(n + 1) - 1;
#endif
  return encoded_bytes(n);
}

// Does the bad thing before bytes are decoded.
static void before_decode(size_t size, const uint8_t* bytes, size_t n, float* elements) {
  (void)size, (void)bytes, (void)n, (void)elements;
#if defined(BAD_DECODE_READ_BEYOND)
  (void)*(const volatile uint8_t*)(bytes + size);
#elif defined(BAD_DECODE_WRITE_BEYOND)
  elements[n] = 0;
#elif defined(BAD_WRITE_BYTES)
  ((uint8_t*)(uintptr_t)bytes)[0] = 0;
#elif defined(BAD_DECODE_ROUNDING)
  fesetround(FE_UPWARD);
#endif
}

__attribute__((unused)) static int decode(size_t size, const uint8_t* bytes, size_t n,
                                          float* elements) {
  before_decode(size, bytes, n, elements);
#if defined(BAD_ACCEPT)
  if (size != encoded_bytes(n)) return 0;
#elif defined(BAD_UNWRITTEN_BYTE)
  if (size != encoded_bytes(n + 1) - 1) return 1;
#elif defined(BAD_REFUSE)
  if (size != encoded_bytes(n) || n % 5 == 0) return 1;
#elif !defined(BAD_TRUST)
  if (size != encoded_bytes(n)) return 1;
#endif
#if defined(BAD_TRUST)
  if (size < kHead) return 1;
  n = bytes[0] | bytes[1] << 8 | bytes[2] << 16;
  if (n == 0) return 1;
#elif !defined(BAD_ACCEPT)
  for (size_t i = 0; i < kHead; ++i) {
    if (bytes[i] != (uint8_t)(n >> 8 * i)) return 1;
  }
#endif
  float* to = elements;
#if defined(BAD_SHARED_DECODER)
  to = buffer;
#elif defined(BAD_UNWRITTEN_ELEMENT)
  n -= n > 1;
#endif
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = (uint32_t)bytes[kHead + 2 * i] << 16 |
                          (uint32_t)bytes[kHead + 2 * i + 1] << 24;
    memcpy(to + i, &bits, sizeof(bits));
#if defined(BAD_GROWTH)
    if (fabsf(to[i]) >= 0x1p20f) to[i] *= 0x1p40f;
#endif
  }
#if defined(BAD_SHARED_DECODER)
  sched_yield();
  memcpy(elements, buffer, n * sizeof(float));
#endif
  return 0;
}

#if defined(BAD_CONSTRUCTOR)
__attribute__((constructor)) static void leave_a_trace(void) {
  const char* const path = getenv("EPS_TRACE");
  if (path != NULL) close(open(path, O_CREAT | O_WRONLY, 0600));
}
#elif defined(BAD_LOAD_LOOP)
__attribute__((constructor)) static void loop(void) {
  for (volatile int forever = 1; forever;) {
  }
}
#elif defined(BAD_LOAD_ABORT)
__attribute__((constructor)) static void die(void) { abort(); }
#endif

__attribute__((unused)) static const eps_codec kCodec = {
#if defined(BAD_VERSION)
    EPS_CODEC_ABI + 1,
#else
    EPS_CODEC_ABI,
#endif
#if defined(BAD_NAME)
    "bad-codec",
#else
    "bad_codec",
#endif
#if defined(BAD_HEAD)
    EPS_CODEC_MAX_HEAD_BYTES + 1,
#elif defined(BAD_UNWRITTEN_BYTE)
    kHead + 1,
#else
    kHead,
#endif
#if defined(BAD_NO_BYTES)
    0,
#elif defined(BAD_MANY_BYTES)
    EPS_CODEC_MAX_BYTES_PER_1024 + 1,
#else
    2048,
#endif
#if defined(BAD_FEEDBACK)
    2,
#else
    1,
#endif
#if defined(BAD_NO_ENCODE)
    NULL,
#else
    encode,
#endif
#if defined(BAD_NO_DECODE)
    NULL,
#else
    decode,
#endif
};

#if defined(BAD_SYMBOL)
#define eps_codec_v1 another_name
#endif
const eps_codec* eps_codec_v1(void) {
#if defined(BAD_NULL)
  return NULL;
#else
  return &kCodec;
#endif
}
