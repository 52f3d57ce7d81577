#ifndef EPS_COMPRESSION_PLUGIN_CODEC_PLUGIN_H_
#define EPS_COMPRESSION_PLUGIN_CODEC_PLUGIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compression/plugin/eps_codec.h"

namespace eps {

// The checked description of a plug-in codec (compression/plugin/eps_codec.h). A job has it in the
// name of the codec, so that only processes that encode or decode need the object.
struct CodecDescription {
  std::string name;
  std::string sha256;  // of the file's bytes, 64 hexadecimal digits
  uint32_t head_bytes = 0;
  uint32_t bytes_per_1024 = 0;
  bool error_feedback = false;

  // Returns the most bytes of n encoded elements.
  uint64_t MostBytes(uint64_t n) const {
    return head_bytes + (n / 1024) * bytes_per_1024 + (n % 1024 * bytes_per_1024 + 1023) / 1024;
  }
  bool operator==(const CodecDescription& other) const {
    return name == other.name && sha256 == other.sha256 && head_bytes == other.head_bytes &&
           bytes_per_1024 == other.bytes_per_1024 && error_feedback == other.error_feedback;
  }
};

// Returns the complete name of the codec in a job:
// "plugin:NAME:SHA256:HEAD_BYTES:BYTES_PER_1024[:feedback]".
std::string CodecNameOf(const CodecDescription& description);
// Parses the pieces of such a name after its first colon. InvalidArgument says what was found and
// what was expected.
absl::StatusOr<CodecDescription> ParseCodecName(const std::vector<std::string>& pieces);

// A plug-in codec that is loaded into this process, and stays loaded until the process ends.
// Immutable, thread-safe.
struct CodecPlugin : CodecDescription {
  std::string path;
  eps_codec_encode* encode = nullptr;
  eps_codec_decode* decode = nullptr;
};

// Loads the object in the file `path`, unless its bytes are loaded already. This runs code of the
// object, with all rights of this process. With an `expected_sha256` (64 hexadecimal digits), no
// code of a file with another digest runs. Thread-safe.
//
// Errors begin with the path. Those of ReadPluginFile and LoadPluginSymbol
// (base/plugin/shared_object.h); InvalidArgument if the object has another version of the
// interface, or describes itself in a way that the interface forbids.
absl::StatusOr<const CodecPlugin*> LoadCodecPlugin(const std::string& path,
                                                   absl::string_view expected_sha256 = "");

// Loads the plug-in codec that a job's codec name is, if it is one, from the file `path`. As
// LoadCodecPlugin; FailedPrecondition if the path is empty, with the key to set.
absl::Status LoadCodecOf(absl::string_view codec_name, const std::string& path);

// Returns the loaded plug-in of a description. FailedPrecondition names the missing object and the
// loaded ones, and the keys to set; InvalidArgument if the object describes itself in another way.
absl::StatusOr<const CodecPlugin*> FindLoadedCodec(const CodecDescription& description);

}  // namespace eps

#endif  // EPS_COMPRESSION_PLUGIN_CODEC_PLUGIN_H_
