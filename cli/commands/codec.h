#ifndef EPS_CLI_COMMANDS_CODEC_H_
#define EPS_CLI_COMMANDS_CODEC_H_

// `eps codec {list,roundtrip}` lists the codecs, and encodes and decodes a file of numbers
// (docs/reference/codec_command.md). Needs no servers and no model. Those of plugin/codec_plugin.h
// begin, describe and check a plug-in codec.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/job/job_spec.h"

namespace eps {

// Runs `eps codec` with the arguments after its name. InvalidArgument for malformed arguments;
// other errors are those of RoundtripFile and CodecPluginCommands::Run.
absl::Status RunCodec(const std::vector<std::string>& arguments);

// Return all registered codecs, by number, as a table or as a JSON array of objects.
std::string CodecTableText();
std::string CodecTableJson();

// The codec, the shape and the files of a round trip.
struct RoundtripOptions {
  std::string codec;  // with parameters: "topk:0.01"
  Axis axis = Axis::kRow;
  uint32_t rows = 0;
  uint32_t cols = 0;
  // The largest chunk in elements; a chunk has at least 32 rows. 0 chooses the chunks of a model
  // with this one tensor, or the whole tensor if the codec's values depend on where chunks end.
  uint64_t chunk_elements = 0;
  std::string in;   // rows * cols little-endian FP32 values, row-major
  std::string out;  // receives as many values; an existing file is truncated
};
// The totals of a round trip.
struct RoundtripSummary {
  uint64_t elements = 0;
  uint64_t chunks = 0;
  uint64_t encoded_bytes = 0;
};
// Encodes `in` chunk by chunk and writes what a receiver decodes. Holds one chunk in memory.
// InvalidArgument for an unknown codec, with the known ones, or if `out` is `in`; DataLoss if `in`
// has another size or a value that the codec refuses; NotFound, PermissionDenied, ResourceExhausted
// or IoError for the files. Removes an unfinished `out`.
absl::StatusOr<RoundtripSummary> RoundtripFile(const RoundtripOptions& options);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_CODEC_H_
