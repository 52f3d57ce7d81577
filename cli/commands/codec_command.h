#ifndef EPS_CLI_COMMANDS_CODEC_COMMAND_H_
#define EPS_CLI_COMMANDS_CODEC_COMMAND_H_

// `eps codec {list,roundtrip}`: which codecs there are, and what one makes of a file of numbers.
// Needs neither servers nor a model. docs/reference/codec_command.md.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/job/job_spec.h"

namespace eps {

// The arguments behind `eps codec`. InvalidArgument for arguments that do not fit; else as
// RoundtripFile.
absl::Status RunCodecCommand(const std::vector<std::string>& arguments);

// Every registered codec, by number: a table for people, or a JSON array of objects.
std::string CodecTableText();
std::string CodecTableJson();

struct RoundtripOptions {
  std::string codec;  // with parameters: "topk:0.01"
  Axis axis = Axis::kRow;
  uint32_t rows = 0;
  uint32_t cols = 0;
  // Elements of a chunk at most, but for the 32 rows that it has at least; 0: as a model of one
  // such tensor, or the whole tensor if the codec's values depend on where chunks end.
  uint64_t chunk_elements = 0;
  std::string in;   // rows * cols little-endian FP32 values, row-major
  std::string out;  // the same number of them; emptied first
};
struct RoundtripSummary {
  uint64_t elements = 0;
  uint64_t chunks = 0;
  uint64_t encoded_bytes = 0;
};
// Writes what a receiver decodes of `in`, encoded chunk by chunk, and holds one chunk at a time in
// memory. InvalidArgument: no such codec (names the known ones), or `out` is `in`. DataLoss: `in`
// has another size, or a value that the codec refuses. NotFound, PermissionDenied,
// ResourceExhausted, IoError: of the files. `out` is removed if it was begun and not finished.
absl::StatusOr<RoundtripSummary> RoundtripFile(const RoundtripOptions& options);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_CODEC_COMMAND_H_
