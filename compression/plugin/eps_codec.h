// The interface between EPS and a plug-in codec: an encoding of gradients in a shared object that
// is built outside of this tree, in any language that can export a C function. This header is C99
// and includes nothing of EPS; `eps codec new` copies it into the folder of a new codec.
// docs/guides/write_a_codec.md explains how to write, check and use one.
//
// The object exports one function:
//
//   const eps_codec *eps_codec_v1(void);
//
// It returns a description that lives as long as the object stays loaded. EPS calls it once, and
// then `encode` and `decode` from several threads at once, each for other arrays. Workers encode
// each chunk of a gradient; servers, and storage devices that update, decode it.
#ifndef EPS_COMPRESSION_PLUGIN_EPS_CODEC_H_
#define EPS_COMPRESSION_PLUGIN_EPS_CODEC_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The version of this interface. EPS refuses an object of another version.
#define EPS_CODEC_ABI 1u

// Limits: EPS refuses a description that exceeds them. A name has 1 to 63 characters: small
// letters, digits and '_', beginning with a letter.
#define EPS_CODEC_MAX_HEAD_BYTES 4096u
#define EPS_CODEC_MAX_BYTES_PER_1024 8192u

// Encodes `n` elements, at least 1, and returns the number of bytes, which never exceeds that of
// the description. Equal elements give equal bytes. An element that is infinite, NaN, or of a
// magnitude of 2^50 or more must not vanish: after decoding, some element must be one of these, so
// that the server refuses the gradient as if it had not been encoded.
typedef size_t eps_codec_encode(size_t n, const float* elements, uint8_t* bytes);

// Decodes `size` bytes to all `n` elements, and returns 0. Equal bytes give equal elements on every
// machine. The bytes may be hostile: returns another number if they are no encoding of n elements;
// then the elements may be anything.
typedef int eps_codec_decode(size_t size, const uint8_t* bytes, size_t n, float* elements);

// Neither function may read or write outside of its arrays, which do not overlap and have any
// alignment of 4 (elements) and 1 (bytes); and neither may keep anything between two calls,
// allocate, lock, call the operating system or change the floating-point mode. The caller has set
// the mode that treats denormals as 0. Compile with -ffp-contract=off: a fused multiply-add gives
// other bits on other machines.

// The description of a codec, which its object returns.
typedef struct eps_codec {
  uint32_t abi;  // EPS_CODEC_ABI
  const char* name;
  // n elements are encoded in at most head_bytes + bytes_per_1024 * n / 1024 bytes, rounded up.
  uint32_t head_bytes;
  uint32_t bytes_per_1024;  // at least 1
  // 1: EPS adds what an encoding omits, elements minus decoded elements, to the next gradient of
  // the same chunk. 0: it is lost.
  uint32_t error_feedback;
  eps_codec_encode* encode;
  eps_codec_decode* decode;
} eps_codec;

// The function that the object exports, and its type.
#define EPS_CODEC_SYMBOL "eps_codec_v1"
typedef const eps_codec* eps_codec_entry(void);

#ifdef __cplusplus
}
#endif

#endif  // EPS_COMPRESSION_PLUGIN_EPS_CODEC_H_
