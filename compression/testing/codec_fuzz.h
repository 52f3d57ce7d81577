#ifndef EPS_COMPRESSION_TESTING_CODEC_FUZZ_H_
#define EPS_COMPRESSION_TESTING_CODEC_FUZZ_H_

// Only for tests and fuzzers: what has to hold of every codec for any bytes at all.

#include "absl/strings/string_view.h"

namespace eps {

// The first bytes of `input` choose what is opened, the rest are the encoded chunk:
//
//   0  the codec's number on the wire
//   1  which of its examples (CodecExamples), modulo their number
//   2  bit 0: blocks along columns; bit 1: the chunk is a gradient
//   3  rows of the first segment - 1, modulo 80
//   4  columns of the first segment - 1
//   5  vectors of 37 columns behind it, modulo 3
//
// Opens the chunk, reads every tile of what is accepted, and encodes that again. False if refused,
// or if there is no such codec. Ends the process if a refusal is not a short InvalidArgument, if
// bytes around the chunk or the order of reading matter, if anything but the tile is written, or if
// a gradient got through that sums cannot bear.
bool ReadUntrustedChunk(absl::string_view input);

}  // namespace eps

#endif  // EPS_COMPRESSION_TESTING_CODEC_FUZZ_H_
