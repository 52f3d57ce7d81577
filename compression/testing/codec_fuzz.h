#ifndef EPS_COMPRESSION_TESTING_CODEC_FUZZ_H_
#define EPS_COMPRESSION_TESTING_CODEC_FUZZ_H_

// For tests and fuzzers only: the properties that every codec must have for arbitrary bytes.

#include "absl/strings/string_view.h"

namespace eps {

// Opens untrusted bytes. The first bytes of `input` select what is opened; the rest are the encoded
// chunk:
//
//   0  the codec's number on the wire
//   1  the index of the codec's example (CodecExamples), modulo their number
//   2  bit 0: blocks along columns; bit 1: the chunk is a gradient
//   3  rows of the first segment - 1, modulo 80
//   4  columns of the first segment - 1
//   5  number of vectors of 37 columns after it, modulo 3
//
// Opens the chunk and, if it is accepted, reads every tile and encodes the values again. Returns
// false if the chunk is refused or there is no such codec. Ends the process if a refusal is not a
// short InvalidArgument, if bytes around the chunk or the order of reading change the result, if
// anything outside of the tile is written, or if an inadmissible gradient is accepted.
bool ReadUntrustedChunk(absl::string_view input);

}  // namespace eps

#endif  // EPS_COMPRESSION_TESTING_CODEC_FUZZ_H_
